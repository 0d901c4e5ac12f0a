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

/* Groups, sizes and padding of convolutions of [1, 2, 3, 4] by [2, 2, 2, 3], and with a bias [6].
 */
static void test_convolutions_that_are_refused(void **state)
{
    static const struct {
        enum plume_op op;
        size_t n;
        int64_t stride, pad, dilation, out_pad, groups;
        const char *text;
    } bad[] = {
        {PLUME_OP_CONV, 2, 0, 0, 1, 0, 1, "stride, dilation and groups must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 0, "must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), -1, PAIR(1, 1), 0, 1, "must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 3, "cannot be divided into these groups"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 2, "x has not the channels of w"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(9, 1), 0, 1, "larger than the padded image"},
        {PLUME_OP_CONV, 3, PAIR(1, 1), 0, PAIR(1, 1), 0, 1, "b has not one number per channel"},
        {PLUME_OP_CONV_TRANSPOSE, 2, PAIR(2, 2), 0, PAIR(1, 1), PAIR(2, 0), 1, "output padding"},
        {PLUME_OP_CONV_TRANSPOSE, 2, PAIR(1, 1), PAIR(5, 5), PAIR(1, 1), 0, 1, "nothing is left"},
        {PLUME_OP_CONV_TRANSPOSE, 3, PAIR(1, 1), 0, PAIR(1, 1), 0, 1, "b has not one number"},
    };
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        plume_tensor *x = OP(PLUME_OP_RESHAPE, ARGS({4, 1, 2, 3, 4}, {0}), &n.t[0]);
        plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({4, 2, 2, 2, 3}, {0}), &n.t[2]);
        plume_tensor *in[] = {x, w, &n.t[1]}, *t = NULL;
        struct plume_op_args args = {
            {bad[i].stride, bad[i].pad, bad[i].dilation, bad[i].out_pad, bad[i].groups}, {0}};
        struct pl_error err = {0};

        assert_int_equal(pl_op_call(&n.tape, bad[i].op, in, bad[i].n, &args, &t, &err), -EINVAL);
        if (!strstr(pl_error_text(&err), bad[i].text))
            fail_msg("case %zu: '%s' has not '%s'", i, pl_error_text(&err), bad[i].text);
        assert_null(t);
    }
    pl_tape_end(&n.tape);
    finish(&n);
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

/* Labels of a row may lie in one dimension, or in those of the rows; not in these the other way
 * round. */
static void test_labels_belong_to_their_rows(void **state)
{
    static const struct {
        size_t shape[4]; /* after the rank; 0: 1 */
        bool fits;
    } given[] = {{{1, 6}, true},    {{2, 1, 6}, true},  {{2, 2, 3}, true},
                 {{3, 2, 3}, true}, {{2, 3, 2}, false}, {{3, 3, 1, 2}, false}};
    static const enum plume_op ops[] = {PLUME_OP_CROSS_ENTROPY, PLUME_OP_CORRECT};
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < 2 * PL_COUNT(given); i++) {
        const size_t *s = given[i / 2].shape;
        plume_tensor *all = op(net, PLUME_OP_ARANGE, 0, NULL, (struct plume_op_args)ARGS({6}, {0}));
        plume_tensor *labels =
            OP(PLUME_OP_RESHAPE,
               ARGS({(int64_t)s[0], (int64_t)s[1], (int64_t)s[2], s[3] ? (int64_t)s[3] : 1}, {0}),
               all);
        plume_tensor *in[] = {&n.t[2], labels}, *t = NULL; /* logits [2, 3, 4] */
        struct pl_error err = {0};
        int r = pl_op_call(&n.tape, ops[i % 2], in, 2, NULL, &t, &err);

        assert_int_equal(r, given[i / 2].fits ? 0 : -EINVAL);
        if (r < 0 && !strstr(pl_error_text(&err), "is one transposed?: f64[2, 3, 4], i32[3, "))
            fail_msg("%s", pl_error_text(&err));
    }
    pl_tape_end(&n.tape);
    finish(&n);
}

static void test_numbers_belong_to_each_other(void **state)
{
    static const struct {
        int64_t full[5]; /* the rank, the shape */
        bool fits;
    } given[] = {{{3, 2, 3, 4}, true},  {{4, 2, 1, 3, 4}, true}, {{2, 2, 12}, true},
                 {{2, 24, 1}, true},    {{3, 2, 4, 3}, false},   {{3, 3, 2, 4}, false},
                 {{3, 4, 3, 2}, false}, {{4, 4, 3, 1, 2}, false}};
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < PL_COUNT(given); i++) {
        struct plume_op_args args = {{0}, {1}};
        plume_tensor *in[] = {&n.t[2], NULL}, *t = NULL; /* [2, 3, 4] */
        struct pl_error err = {0};
        int r;

        memcpy(args.i, given[i].full, sizeof(given[i].full));
        in[1] = op(net, PLUME_OP_FULL, 0, NULL, args);
        r = pl_op_call(&n.tape, PLUME_OP_MSE, in, 2, NULL, &t, &err);
        if (r != (given[i].fits ? 0 : -EINVAL))
            fail_msg("case %zu: %d", i, r);
    }
    pl_tape_end(&n.tape);
    finish(&n);
}

static void test_shapes_that_ops_refuse(void **state)
{
    struct {
        enum plume_op op;
        size_t n;
        int in[3];
        struct plume_op_args args;
        const char *text;
    } bad[] = {
        {PLUME_OP_CAT,
         2,
         {2, 3},
         {{0}, {0}},
         "cat: along dimension 0, input 1 differs from input 0 in another dimension, or in its "
         "type: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_CAT,
         2,
         {2, 3},
         {{3}, {0}},
         "cat: there is no dimension 3: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_CAT,
         2,
         {4, 1},
         {{0}, {0}},
         "cat: along dimension 0, input 1 differs from input 0 in another dimension, or in its "
         "type: i32[4], f64[6]"},
        {PLUME_OP_MSE,
         2,
         {2, 3},
         {{0}, {0}},
         "mse: the two have other dimensions: is one transposed?: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_ARANGE, 0, {0}, {{0}, {0}}, "arange: 0 is not a valid number of labels"},
        {PLUME_OP_RANGE, 0, {0}, {{0, 1, 1}, {0}}, "range: 0 is not a valid number of labels"},
        {PLUME_OP_RANGE,
         0,
         {0},
         {{3, INT32_MAX - 1, 1}, {0}},
         "range: 3 numbers from 2147483646 by 1: not all of them have 32 bits"},
        {PLUME_OP_RANGE,
         0,
         {0},
         {{2, 0, INT64_MIN}, {0}},
         "range: 2 numbers from 0 by -9223372036854775808: not all of them have 32 bits"},
        {PLUME_OP_EXPAND,
         1,
         {1},
         {{2, 4, 5}, {0}},
         "expand: only dimensions of 1 are repeated, and dimension 1 is to be 5: f64[6]"},
        {PLUME_OP_EXPAND,
         1,
         {0},
         {{1, 24}, {0}},
         "expand: needs real numbers, and at most 1 dimensions: f64[4, 6]"},
        {PLUME_OP_EXPAND, 1, {1}, {{6, 6}, {0}}, "expand: 6 is not a number of dimensions"},
        {PLUME_OP_MATMUL,
         2,
         {2, 2},
         {{0}, {0}},
         "matmul: the inner dimensions differ: f64[2, 3, 4], f64[2, 3, 4]"},
        {PLUME_OP_RESHAPE,
         1,
         {0},
         {{2, 5, 0}, {0}},
         "reshape: the new shape [5, 0] has another number of elements: f64[4, 6]"},
        {PLUME_OP_SLICE,
         1,
         {0},
         {{1, 4, 3}, {0}},
         "slice: 3 elements from element 4 of dimension 1 on are asked for: f64[4, 6]"},
        {PLUME_OP_PERMUTE,
         1,
         {0},
         {{1, 1}, {0}},
         "permute: the order does not name each dimension once: element 1 is 1: f64[4, 6]"},
        {PLUME_OP_BINARY,
         2,
         {0, 2},
         {{0}, {0}},
         "add: from the last dimension on, sizes must be equal, or one of them 1: "
         "f64[4, 6], f64[2, 3, 4]"},
        {PLUME_OP_ATTENTION,
         1,
         {2},
         {{3}, {0}},
         "attention: the width cannot be shared among the heads: f64[2, 3, 4]"},
        {PLUME_OP_LAYERNORM,
         3,
         {2, 1, 1},
         {{0}, {0}},
         "layernorm: wanted: x [..., n], gamma [n], beta [n]: f64[2, 3, 4], f64[6], f64[6]"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {0}},
         "batchnorm: weight, bias and the two buffers must have one number per channel: f64[2, 3, "
         "4], f64[6], f64[6], f64[4, 6], f64[4, 6]"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {1e-5, -0.1}},
         "batchnorm: momentum is -0.1: must be above 0, or 0 for the default"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {-1e-5}},
         "batchnorm: eps is -1e-05: must be above 0, or 0 for the default"},
        {PLUME_OP_BATCHNORM, 5, {2, 1, 1}, {{0}, {0, NAN}}, NULL},
        {PLUME_OP_LAYERNORM,
         1,
         {0},
         {{0}, {NAN}},
         "layernorm: eps is nan: must be above 0, or 0 for the default"},
        {PLUME_OP_LAYERNORM,
         1,
         {0},
         {{1}, {-1}},
         "rmsnorm: eps is -1: must be above 0, or 0 for the default"},
        {PLUME_OP_NORMALIZE,
         1,
         {0},
         {{0}, {INFINITY}},
         "normalize: eps is inf: must be above 0, or 0 for the default"},
        {PLUME_OP_DROPOUT, 1, {0}, {{0}, {1}}, "dropout: p is 1: must be 0 or more, and below 1"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{1}, {0}},
         "gather: the index must be i32 and have x's other dimensions: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 1},
         {{1, 1}, {0}},
         "gather: wanted: x, index i32[m]: f64[4, 6], f64[6]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{2, 1}, {0}},
         "gather: there is no dimension 2: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{-1, 1}, {0}},
         "gather: there is no dimension -1: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER, 2, {4, 4}, {{0, 1}, {0}}, "gather: needs real numbers: i32[4], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{1, 1, 1, 1ll << 40}, {0}},
         "gather: 1099511627776 is not an index to skip"},
        {PLUME_OP_TOP,
         1,
         {0},
         {{1, 7}, {0}},
         "argmax or topk: 7 elements are asked for, and dimension 1 has 6"},
        {PLUME_OP_TOP,
         1,
         {0},
         {{1, 0}, {0}},
         "argmax or topk: 0 elements are asked for, and dimension 1 has 6"},
        {PLUME_OP_CONV,
         2,
         {0, 0},
         {{1, 0, 1, 0, 1}, {0}},
         "conv: wanted: x [batch, in, height, width], w with 4 dimensions, b [out]: f64[4, 6], "
         "f64[4, 6]"},
        {PLUME_OP_RESAMPLE, 1, {0}, {{1, 0, 0}, {0}}, "upsample or adaptive pool: 0 is not a size"},
        {PLUME_OP_RESAMPLE, 1, {0}, {{1, 2, 4}, {0}}, "upsample or adaptive pool: unknown mode 4"},
        {PLUME_OP_ROTARY,
         1,
         {2},
         {{4}, {100}},
         "rotary: the width is not an even number per head: f64[2, 3, 4]"},
        {PLUME_OP_ROTARY,
         1,
         {2},
         {{1, -1}, {100}},
         "rotary: the first position is -1, the base 100: must be 0 or more, and positive"},
        {PLUME_OP_RANDOM, 0, {0}, {{3, 1, 4}, {0}}, "uniform, bernoulli or normal: unknown kind 3"},
        {PLUME_OP_RANDOM, 0, {0}, {{0, 1, 4}, {1, 0}}, "uniform: the range from 1 to 0 is empty"},
        {PLUME_OP_RANDOM, 0, {0}, {{1, 1, 4}, {1.5}}, "bernoulli: p is 1.5: must be in [0, 1]"},
        {PLUME_OP_RANDOM, 0, {0}, {{2, 1, 4}, {0, -1}}, "normal: the standard deviation is -1"},
        {PLUME_OP_RANDOM, 0, {0}, {{0, 6, 4}, {0, 1}}, "uniform: 6 is not a number of dimensions"},
        {PLUME_OP_LSTM,
         2,
         {2, 0},
         {{0}, {0}},
         "lstm: wanted: [batch, time, 4 hidden], w [4 hidden, hidden]: f64[2, 3, 4], f64[4, 6]"},
        {PLUME_OP_GRU,
         2,
         {2, 0},
         {{0}, {0}},
         "gru: wanted: [batch, time, 3 hidden], w [3 hidden, hidden]: f64[2, 3, 4], f64[4, 6]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {2, 4, 3},
         {{0, 1}, {0}},
         "scatter_add: wanted: x, index i32, src with x's other dimensions: f64[2, 3, 4], i32[4], "
         "f64[2, 4, 3]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {1, 4, 1},
         {{0, 1}, {0}},
         "scatter_add: each element of src must have an index: f64[6], i32[4], f64[6]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {0, 4, 0},
         {{2}, {0}},
         "scatter_add: there is no dimension 2: f64[4, 6], i32[4], f64[4, 6]"},
        {PLUME_OP_WHOLE,
         2,
         {4, 0},
         {{0}, {0}},
         "whole_add: needs numbers of i32: i32[4], f64[4, 6]"},
        {PLUME_OP_WHOLE,
         2,
         {4, 4},
         {{10}, {0}},
         "an operation of whole numbers: unknown operation 10"},
        {PLUME_OP_CUMSUM, 1, {4}, {{0}, {0}}, "cumsum: needs real numbers: i32[4]"},
        {PLUME_OP_CUMSUM, 1, {0}, {{5}, {0}}, "cumsum: there is no dimension 5: f64[4, 6]"},
        {PLUME_OP_ONE_HOT, 1, {4}, {{0}, {0}}, "one_hot: 0 is not a number of classes"},
        {PLUME_OP_ONE_HOT,
         1,
         {0},
         {{3}, {0}},
         "one_hot: needs labels of i32, and room for one more dimension: f64[4, 6]"},
        {PLUME_OP_EMBEDDING, 2, {4, 4}, {{0}, {0}}, NULL},
        {PLUME_OP_SOFTMAX, 1, {4}, {{0}, {0}}, "softmax: needs rows of real numbers: i32[4]"},
    };
    struct net net;

    (void)state;
    make(&net, PL_REAL_F64);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};
        plume_tensor *in[5], *t = NULL;

        for (size_t k = 0; k < 5; k++)
            in[k] = &net.t[k < 3 ? bad[i].in[k] : 0];
        assert_int_equal(pl_op_call(&net.tape, bad[i].op, in, bad[i].n, &bad[i].args, &t, &err),
                         -EINVAL);
        if (bad[i].text)
            assert_string_equal(pl_error_text(&err), bad[i].text);
        assert_null(t);
    }
    assert_int_equal(net.tape.n, 0);
    finish(&net);
}

/* The second is repeated along the first's leading dimensions, and in no other way. */
static void test_whole_numbers_are_repeated_from_the_front(void **state)
{
    static const struct {
        int64_t rank, n[2];
        bool fits;
    } seconds[] = {{1, {1}, true},  {1, {4}, true},     {2, {3, 4}, true},  {1, {3}, false},
                   {1, {2}, false}, {2, {3, 1}, false}, {2, {1, 4}, false}, {1, {12}, false}};

    (void)state;
    for (size_t i = 0; i < PL_COUNT(seconds); i++) {
        struct net n, *net = &n;
        struct plume_op_args args = {{1, 0, 0}, {0}}, shape = {{seconds[i].rank}, {0}};
        plume_tensor *in[2], *y = NULL;

        make(&n, PL_REAL_F64);
        pl_tape_begin(&n.tape);
        args.i[0] = 12;
        in[0] = op(net, PLUME_OP_RANGE, 0, NULL, args);
        in[0] = OP(PLUME_OP_RESHAPE, ARGS({2, 3, 4}, {0}), in[0]);
        args.i[0] = seconds[i].n[0] * PL_MAX(seconds[i].n[1], 1);
        in[1] = op(net, PLUME_OP_RANGE, 0, NULL, args);
        shape.i[1] = seconds[i].n[0];
        shape.i[2] = seconds[i].n[1];
        in[1] = op(net, PLUME_OP_RESHAPE, 1, &in[1], shape);
        assert_int_equal(pl_op_call(&n.tape, PLUME_OP_WHOLE, in, 2, NULL, &y, NULL),
                         seconds[i].fits ? 0 : -EINVAL);
        pl_tape_end(&n.tape);
        finish(&n);
    }
}

/* A batch's labels out of range are named, for each op that reads labels; those that the op skips
 * are none. */
static void test_labels_out_of_range_are_named(void **state)
{
    static const struct {
        enum plume_op op;
        int x;
        struct plume_op_args args;
        const char *text;
    } ops[] = {
        {PLUME_OP_GATHER,
         0,
         {{1, 1}, {0}},
         "label 17 of row 2 is not in [0, 5], the classes of gather"},
        {PLUME_OP_GATHER, 0, {{1, 1, 1, 17}, {0}}, NULL},
        {PLUME_OP_SCATTER_ADD,
         0,
         {{0, 1}, {0}},
         "label 17 of row 2 is not in [0, 3], the classes of scatter_add"},
        {PLUME_OP_EMBEDDING,
         5,
         {{0}, {0}},
         "label 17 of row 2 is not in [0, 4], the classes of embedding"},
        {PLUME_OP_CROSS_ENTROPY,
         0,
         {{0}, {0}},
         "label 17 of row 2 is not in [0, 5], the classes of cross_entropy"},
        {PLUME_OP_ONE_HOT,
         -1,
         {{3}, {0}},
         "label 17 of row 2 is not in [0, 2], the classes of one_hot"},
    };

    (void)state;
    for (size_t i = 0; i < PL_COUNT(ops); i++) {
        struct net n, *net = &n;
        struct pl_error err = {0};
        plume_tensor *in[3], *y;
        bool scatters = ops[i].op == PLUME_OP_SCATTER_ADD;
        int r;

        make(&n, PL_REAL_F64);
        n.labels[0] = n.labels[1] = n.labels[3] = 1;
        n.labels[2] = 17;
        in[0] = in[2] = ops[i].x < 0 ? &n.t[4] : &n.t[ops[i].x];
        in[1] = &n.t[4];
        pl_tape_begin(&n.tape);
        y = op(net, ops[i].op, ops[i].x < 0 ? 1 : scatters ? 3 : 2, in, ops[i].args);
        pl_tape_end(&n.tape);
        assert_int_equal(pl_tape_prepare(&n.tape, &y, 1, 0, NULL), 0);
        assert_int_equal(pl_tape_forward(&n.tape, NULL), 0);
        r = pl_op_check_labels(&n.tape, &err);
        assert_int_equal(r, ops[i].text ? -EDOM : 0);
        if (ops[i].text)
            assert_string_equal(pl_error_text(&err), ops[i].text);
        for (size_t k = 0; k < y->count && scatters; k++)
            assert_true(isnan(((const double *)pl_tensor_data(y))[k]));
        finish(&n);
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
        cmocka_unit_test(test_convolutions_that_are_refused),
        cmocka_unit_test(test_labels_belong_to_their_rows),
        cmocka_unit_test(test_numbers_belong_to_each_other),
        cmocka_unit_test(test_shapes_that_ops_refuse),
        cmocka_unit_test(test_labels_out_of_range_are_named),
        cmocka_unit_test(test_whole_numbers_are_repeated_from_the_front),
        cmocka_unit_test(test_plan_reuses_memory),
        cmocka_unit_test(test_no_probabilities_are_kept_on_a_device),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
