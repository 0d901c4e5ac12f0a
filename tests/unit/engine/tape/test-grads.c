/* SPDX-License-Identifier: MIT */
/* Accumulation of gradients: views of one tensor in one op, several seeds, tapes in sequence,
 * accumulation, replicas with an arena of their own. */
#include "tests/unit/engine/engine_net.h"

static plume_tensor *op(struct net *net,
                        enum plume_op which,
                        size_t n,
                        plume_tensor *const *in,
                        struct plume_op_args args)
{
    plume_tensor *t = NULL;
    struct pl_error err = {0};

    if (pl_op_call(&net->tape, which, in, n, &args, &t, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return t;
}

static plume_tensor *slice(struct net *net, plume_tensor *x, size_t first, size_t count)
{
    return op(net, PLUME_OP_SLICE, 1, &x,
              (struct plume_op_args){{0, (int64_t)first, (int64_t)count}, {0}});
}

static plume_tensor *mul(struct net *net, plume_tensor *a, plume_tensor *b)
{
    return op(net, PLUME_OP_BINARY, 2, (plume_tensor *[]){a, b}, (struct plume_op_args){{2}, {0}});
}

static plume_tensor *sum(struct net *net, plume_tensor *x)
{
    return op(net, PLUME_OP_REDUCE, 1, &x, (struct plume_op_args){{0, 9}, {0}});
}

static plume_tensor *affine(struct net *net, plume_tensor *x, double scale)
{
    return op(net, PLUME_OP_AFFINE, 1, &x, (struct plume_op_args){{0}, {scale, 0}});
}

/* Dense views that share some elements: both gradients go to the same place. */
static plume_tensor *f_overlap(struct net *net)
{
    plume_tensor *x = affine(net, &net->t[0], 2);

    return sum(net, mul(net, slice(net, x, 0, 5), slice(net, x, 1, 5)));
}

/* A whole and a part of it, repeated. */
static plume_tensor *f_whole_and_row(struct net *net)
{
    plume_tensor *x = affine(net, &net->t[0], 2), *row = slice(net, x, 2, 1);

    return sum(
        net, mul(net, x, op(net, PLUME_OP_RESHAPE, 1, &row, (struct plume_op_args){{1, 0}, {0}})));
}

/* The same of a leaf. */
static plume_tensor *f_leaf_and_row(struct net *net)
{
    plume_tensor *x = &net->t[0], *row = slice(net, x, 5, 1);

    return sum(
        net, mul(net, x, op(net, PLUME_OP_RESHAPE, 1, &row, (struct plume_op_args){{1, 0}, {0}})));
}

/* Products of rows with rows of the same matrix. */
static plume_tensor *f_product(struct net *net)
{
    plume_tensor *x = affine(net, &net->t[0], 0.25);
    plume_tensor *list[] = {x, slice(net, x, 1, 4)};

    return sum(net, mul(net, op(net, PLUME_OP_MATMUL, 2, list, (struct plume_op_args){{0, 1}, {0}}),
                        op(net, PLUME_OP_LINEAR, 2, list, (struct plume_op_args){{1}, {0}})));
}

/* A normalisation by rows of what is normalised: the kernel need not write dx first. */
static plume_tensor *f_norm_by_its_rows(struct net *net)
{
    plume_tensor *x = affine(net, &net->t[0], 2), *row[2];

    for (size_t i = 0; i < 2; i++) {
        row[i] = slice(net, x, 3 + i, 1);
        row[i] = op(net, PLUME_OP_RESHAPE, 1, &row[i], (struct plume_op_args){{1, 0}, {0}});
    }
    x = op(net, PLUME_OP_LAYERNORM, 3, (plume_tensor *[]){x, row[0], row[1]},
           (struct plume_op_args){{0}, {0}});
    return sum(net, mul(net, x, x));
}

/* The loss is one element of a tensor: the others have no gradient. */
static plume_tensor *f_loss_is_a_part(struct net *net)
{
    plume_tensor *x = &net->t[0], *sums;

    x = mul(net, x, affine(net, x, 3));
    sums = op(net, PLUME_OP_REDUCE, 1, &x, (struct plume_op_args){{1, 9}, {0}});
    return slice(net, sums, 2, 1);
}

static const function cases[] = {f_overlap, f_whole_and_row,    f_leaf_and_row,
                                 f_product, f_norm_by_its_rows, f_loss_is_a_part};

static void make(struct net *net, enum pl_real real, size_t columns)
{
    *net = (struct net){0};
    pl_tape_init(&net->tape, pl_device_cpu(), real, true);
    leaf(net, real, 2, (size_t[]){6, columns});
}

static void test_views_of_one_tensor_in_one_op(void **state)
{
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct net net;

        print_message("# case %zu\n", i);
        make(&net, PL_REAL_F64, 5);
        check_gradients(&net, cases[i]);
        finish(&net);
    }
}

/* The vectorised kernels, on several of their chunks. Tolerance: sums of a few thousand products of
 * numbers around 4, 6e-8 each. */
static void test_views_of_one_tensor_in_vectors(void **state)
{
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct net want, got;
        plume_tensor *loss;

        make(&want, PL_REAL_F64, 3001);
        make(&got, PL_REAL_F32, 3001);
        assert_int_equal(backward(&want, forward(&want, cases[i])), 0);
        loss = forward(&got, cases[i]);
        memset(got.tape.memory, 0xff, got.tape.memory_bytes);
        assert_int_equal(pl_tape_forward(&got.tape, NULL), 0);
        assert_int_equal(backward(&got, loss), 0);
        for (size_t k = 0; k < want.t[0].count; k++) {
            double a = ((double *)want.t[0].grad)[k], b = ((float *)got.t[0].grad)[k];

            if (!(fabs(a - b) <= 1e-3 * fmax(1, fabs(a))))
                fail_msg("case %zu element %zu: %g instead of %g", i, k, b, a);
        }
        finish(&want);
        finish(&got);
    }
}

/* A function cut in two: one tape makes three outputs (one a view), another, which reads them as
 * leaves, the loss; gradients go from the second's backward to the first's. As a whole on one tape
 * it is the same. */
static void outputs_of(struct net *net, plume_tensor *ret[3])
{
    plume_tensor *x = affine(net, &net->t[0], 0.5);

    ret[0] = op(net, PLUME_OP_UNARY, 1, &x, (struct plume_op_args){{PLUME_TANH}, {0}});
    ret[1] = slice(net, mul(net, x, x), 1, 3);
    ret[2] = affine(net, ret[0], -1); /* an output that is made of another */
}

static plume_tensor *loss_of(struct net *net, plume_tensor *const out[3])
{
    plume_tensor *a = sum(net, mul(net, out[0], out[2])), *b = sum(net, out[1]);

    return op(net, PLUME_OP_BINARY, 2, (plume_tensor *[]){a, b}, (struct plume_op_args){{0}, {0}});
}

static plume_tensor *f_in_one(struct net *net)
{
    plume_tensor *out[3];

    outputs_of(net, out);
    return loss_of(net, out);
}

static void run_in_two(struct net *first, struct net *second, double seed, bool accumulate)
{
    plume_tensor *out[3], *loss;

    pl_tape_begin(&first->tape);
    outputs_of(first, out);
    pl_tape_end(&first->tape);
    pl_tape_begin(&second->tape);
    loss = loss_of(second, out);
    pl_tape_end(&second->tape);
    assert_int_equal(pl_tape_prepare(&first->tape, out, 3, 3, NULL), 0);
    assert_int_equal(pl_tape_prepare(&second->tape, &loss, 1, 1, NULL), 0);
    memset(first->tape.memory, 0xff, first->tape.memory_bytes);
    memset(second->tape.memory, 0xff, second->tape.memory_bytes);
    assert_int_equal(pl_tape_forward(&first->tape, NULL), 0);
    assert_int_equal(pl_tape_forward(&second->tape, NULL), 0);
    assert_int_equal(
        pl_tape_backward(&second->tape, &(struct pl_backward){.loss = loss, .seed = seed}, NULL),
        0);
    assert_int_equal(
        pl_tape_backward(&first->tape, &(struct pl_backward){.accumulate = accumulate}, NULL), 0);
}

static void test_gradients_go_from_tape_to_tape(void **state)
{
    struct net one, first, second = {0};

    make(&one, PL_REAL_F64, 5);
    make(&first, PL_REAL_F64, 5);
    pl_tape_init(&second.tape, pl_device_cpu(), PL_REAL_F64, true);
    check_gradients(&one, f_in_one);
    memset(first.t[0].grad, 0xff, first.t[0].count * sizeof(double));
    run_in_two(&first, &second, 1, false);
    for (size_t k = 0; k < one.t[0].count; k++) /* sums in another order */
        assert_true(fabs(((double *)one.t[0].grad)[k] - ((double *)first.t[0].grad)[k]) < 1e-12);
    run_in_two(&first, &second, 2, true); /* a loss scale of 2, added: three times in all */
    for (size_t k = 0; k < one.t[0].count; k++)
        assert_true(fabs(3 * ((double *)one.t[0].grad)[k] - ((double *)first.t[0].grad)[k]) <
                    1e-12);
    finish(&one);
    finish(&first);
    finish(&second);
}

/* A replica's parameters have their gradients elsewhere, so far from the others'. */
static void test_a_replica_writes_its_own_arena(void **state)
{
    double arena[3][32];
    struct net net;
    plume_tensor *loss;
    void *own;

    make(&net, PL_REAL_F64, 5);
    own = net.t[0].grad;
    net.t[0].grad = arena[0];
    memset(arena, 0, sizeof(arena));
    loss = forward(&net, f_whole_and_row);
    assert_int_equal(backward(&net, loss), 0);
    net.tape.param_shift = (char *)arena[2] - (char *)arena[0];
    assert_ptr_equal(pl_tape_grad(&net.tape, &net.t[0]), arena[2]);
    memset(arena[2], 0xff, sizeof(arena[2]));
    assert_int_equal(backward(&net, loss), 0);
    assert_memory_equal(arena[0], arena[2], net.t[0].count * sizeof(double));
    for (size_t k = 0; k < PL_COUNT(arena[1]); k++)
        assert_true(arena[1][k] == 0);
    net.t[0].grad = own;
    finish(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_views_of_one_tensor_in_one_op),
        cmocka_unit_test(test_views_of_one_tensor_in_vectors),
        cmocka_unit_test(test_gradients_go_from_tape_to_tape),
        cmocka_unit_test(test_a_replica_writes_its_own_arena),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
