/* SPDX-License-Identifier: MIT */
/* Every op as modules call it: its gradient through the tape against central differences in f64,
 * and f32 and 16-bit runs of the same function against f64. */
#include "tests/unit/engine/engine_cases.h"

/* Modules that were compiled against earlier headers pass these numbers, and this struct. */
_Static_assert(PLUME_OP_LINEAR == 1 && PLUME_OP_CAT == 9 && PLUME_OP_LAYERNORM == 15 &&
                   PLUME_OP_EMBEDDING == 18 && PLUME_OP_ATTENTION == 22 && PLUME_OP_FULL == 26 &&
                   PLUME_OP_ONE_HOT == 30 && PLUME_OP_RANDOM == 35 && PLUME_OP_LSTM == 36 &&
                   PLUME_OP_DETACH == 37 && PLUME_OP_WHOLE == 42,
               "ops keep their numbers");
_Static_assert(sizeof(struct plume_op_args) == 80 && offsetof(struct plume_op_args, f) == 64,
               "the numbers of an op keep their places");
_Static_assert(offsetof(struct plume_api, op) == 6 * sizeof(void *) &&
                   offsetof(struct plume_api, vocabulary) == 13 * sizeof(void *),
               "functions keep their places");

static void make(struct net *net, enum pl_real real)
{
    make_on(net, pl_device_cpu(), real);
}

static void test_gradients(void **state)
{
    (void)state;
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct net net;

        make(&net, PL_REAL_F64);
        print_message("# %s\n", cases[i].name);
        check_gradients(&net, cases[i].f);
        finish(&net);
    }
}

/* A new op needs a function above. */
static void test_gradients_of_every_op(void **state)
{
    static const struct plume_op_args none;
    struct net n, *net = &n;
    enum plume_op which = PLUME_OP_NONE + 1;
    plume_tensor *t, *list[] = {&n.t[0], &n.t[4]};

    (void)state;
    memset(called, 0, sizeof(called));
    make(&n, PL_REAL_F64);
    for (size_t i = 0; i < PL_COUNT(cases); i++)
        forward(net, cases[i].f);
    finish(&n);
    make(&n, PL_REAL_F64);
    for (; pl_op_call(&n.tape, which, NULL, 0, &none, &t, NULL) != -ENOSYS; which++)
        if (!called[which]) { /* a metric, which has no gradient */
            if (which != PLUME_OP_CORRECT)
                fail_msg("the gradient of %s is in no case", pl_op_name(which, NULL));
            t = op(net, which, 2, list, none);
            assert_true(n.tape.nodes[n.tape.n - 1].op->no_grad && !t->wants_grad);
        }
    assert_true(which > PLUME_OP_LSTM);
    finish(&n);
}

/* f32, bf16 and f16 against f64, in roundings of the type. An op rounds once (16-bit tensors, too:
 * the kernels compute in f32), the functions are about ten ops deep, and weighted sums of random
 * signs average out: 16 is twice the maximum seen. linear_activated is ten layers that each amplify
 * a difference, and has exponentials with errors of a few roundings: seen 42. */
static void test_other_types(void **state)
{
    (void)state;
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct net want, got;
        plume_tensor *loss;

        make(&want, PL_REAL_F64);
        loss = forward(&want, cases[i].f);
        assert_int_equal(backward(&want, loss), 0);
        for (int low = 0; low < 3; low++) {
            static const enum plume_dtype types[] = {0, PLUME_BF16, PLUME_F16};
            static const double rounding[] = {0x1p-24, 0x1p-9, 0x1p-12};
            double apart;

            make(&got, PL_REAL_F32);
            got.tape.amp_dtype = types[low];
            got.tape.amp_o3 = low > 0;
            loss = forward(&got, cases[i].f);
            for (size_t k = 0; k < got.n; k++)
                if (got.t[k].grad) /* a leaf that the function does not use */
                    memset(got.t[k].grad, 0, got.t[k].count * sizeof(float));
            assert_int_equal(backward(&got, loss), 0);
            apart = gradient_apart(&got, &want);
            if (cases[i].roundings > 0 && !(apart <= cases[i].roundings * rounding[low]))
                fail_msg("%s type %d: gradients %g apart", cases[i].name, low, apart);
            finish(&got);
        }
        finish(&want);
    }
}

/* Running mean and variance are f32 at every level: no cast comes between them and the op.
 * Tolerance: the sums are of 16-bit numbers. */
static void test_running_statistics_are_not_cast(void **state)
{
    struct net want, got;

    (void)state;
    make(&want, PL_REAL_F64);
    forward(&want, f_batchnorm);
    make(&got, PL_REAL_F32);
    got.tape.amp_dtype = PLUME_BF16;
    got.tape.amp_o3 = true;
    forward(&got, f_batchnorm);
    for (size_t i = 8; i < 10; i++)
        for (size_t k = 0; k < 3; k++)
            assert_true(fabs(((float *)got.t[i].data)[k] - ((double *)want.t[i].data)[k]) <=
                        4 * 0x1p-9);
    finish(&want);
    finish(&got);
}

static void test_autocast_puts_casts_where_they_belong(void **state)
{
    struct net n, *net = &n;
    plume_tensor *x, *y, *z, *loss;

    (void)state;
    make(&n, PL_REAL_F32);
    n.tape.amp_dtype = PLUME_BF16;
    pl_tape_begin(&n.tape);
    x = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &n.t[2]);
    y = OP(PLUME_OP_LINEAR, NONE, &n.t[0], x, OP(PLUME_OP_SLICE, ARGS({0, 0, 4}, {0}), &n.t[1]));
    assert_int_equal(y->dtype, PLUME_BF16);
    z = OP(PLUME_OP_UNARY, ARGS({PLUME_GELU}, {0}), y);
    assert_int_equal(z->dtype, PLUME_BF16); /* promotes: stays */
    z = OP(PLUME_OP_BINARY, NONE, z, OP(PLUME_OP_SLICE, ARGS({0, 0, 4}, {0}), &n.t[1]));
    assert_int_equal(z->dtype, PLUME_F32); /* the widest */
    z = OP(PLUME_OP_LINEAR, NONE, OP(PLUME_OP_LAYERNORM, NONE, &n.t[0]), x);
    assert_int_equal(z->dtype, PLUME_BF16);
    loss = OP(PLUME_OP_SOFTMAX, NONE, z);
    assert_int_equal(loss->dtype, PLUME_F32);
    loss = OP(PLUME_OP_MSE, NONE, loss, loss);
    pl_tape_end(&n.tape);
    {
        size_t casts = 0;

        for (size_t i = 0; i < n.tape.n; i++)
            casts += strcmp(n.tape.nodes[i].op->name, "cast") == 0 && n.tape.nodes[i].in[0] == x &&
                     n.tape.nodes[i].out->dtype == PLUME_BF16;
        assert_int_equal(casts, 1); /* the weight is cast once */
    }
    finish(&n);
}

static void test_dropout_by_seed_and_step(void **state)
{
    double value[4];

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct net net;

        make(&net, PL_REAL_F64);
        net.tape.seed = i == 1;
        net.tape.step = i == 2;
        net.tape.want_grad = i != 3;
        value[i] = on_device_scalar(forward(&net, f_dropout));
        finish(&net);
    }
    assert_true(value[0] != value[1] && value[0] != value[2] && value[0] != value[3]);
}

/* Two random tensors of a step differ; each changes with the seed and the step, is the same in f64
 * and f32, and is random in evaluation, too. */
static void test_random_by_seed_step_and_type(void **state)
{
    enum { FIRST, AGAIN, SEED, STEP, NARROW, EVALUATION, CASES };
    static const struct plume_op_args args = {{PLUME_RANDOM_UNIFORM, 2, 3, 2}, {-1, 1}};
    double value[CASES][2];

    (void)state;
    for (int i = 0; i < CASES; i++) {
        struct net n, *net = &n;
        plume_tensor *y[2];

        make(&n, i == NARROW ? PL_REAL_F32 : PL_REAL_F64);
        n.tape.seed = i == SEED;
        n.tape.step = i == STEP;
        n.tape.want_grad = i != EVALUATION;
        pl_tape_begin(&n.tape);
        for (int k = 0; k < 2; k++)
            y[k] = op(net, PLUME_OP_RANDOM, 0, NULL, args);
        pl_tape_end(&n.tape);
        assert_int_equal(pl_tape_prepare(&n.tape, y, 2, 0, NULL), 0);
        assert_int_equal(pl_tape_forward(&n.tape, NULL), 0);
        for (int k = 0; k < 2; k++)
            value[i][k] = on_device_scalar(y[k]);
        finish(&n);
    }
    assert_true(value[FIRST][0] != value[FIRST][1]);
    for (int k = 0; k < 2; k++) {
        assert_true(value[AGAIN][k] == value[FIRST][k] && value[NARROW][k] == value[FIRST][k]);
        assert_true(value[EVALUATION][k] == value[FIRST][k]);
        assert_true(value[SEED][k] != value[FIRST][k] && value[STEP][k] != value[FIRST][k]);
        assert_true(fabs(value[FIRST][k]) <= 1);
    }
}

static void test_plan_reuses_memory(void **state)
{
    struct net n, *net = &n;
    plume_tensor *x, *loss;

    (void)state;
    make(&n, PL_REAL_F32);
    pl_tape_begin(&n.tape);
    x = &n.t[0];
    for (int i = 0; i < 40; i++)
        x = OP(PLUME_OP_AFFINE, ARGS({0}, {1.01, 0}), x);
    loss = weigh(net, x);
    pl_tape_end(&n.tape);
    assert_int_equal(pl_tape_prepare(&n.tape, &loss, 1, 1, NULL), 0);
    assert_true(n.tape.memory_bytes * 10 < n.tape.unshared_bytes);
    finish(&n);
}

/* Device memory keeps two numbers per row of logits, from which the gradients are computed. */
static void test_no_probabilities_are_kept_on_a_device(void **state)
{
    struct pl_device_ops ops = *pl_device_cpu()->ops;
    struct pl_device device = {.ops = &ops};
    struct net net;

    (void)state;
    for (int host = 0; host < 2; host++) {
        make(&net, PL_REAL_F64);
        ops.host = host;
        net.tape.dev = &device;
        check_gradients(&net, f_losses);
        for (size_t i = 0; i < net.tape.n; i++)
            if (strcmp(net.tape.nodes[i].op->name, "cross_entropy") == 0)
                assert_int_equal(net.tape.nodes[i].saved_bytes,
                                 (host ? 24 : 2 * 4) * sizeof(double));
        finish(&net);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_gradients_of_every_op),
        cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_running_statistics_are_not_cast),
        cmocka_unit_test(test_autocast_puts_casts_where_they_belong),
        cmocka_unit_test(test_dropout_by_seed_and_step),
        cmocka_unit_test(test_random_by_seed_step_and_type),
        cmocka_unit_test(test_plan_reuses_memory),
        cmocka_unit_test(test_no_probabilities_are_kept_on_a_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
