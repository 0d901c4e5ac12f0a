/* SPDX-License-Identifier: MIT */
/* Tapes that are refused before anything is compiled, and the text's form. That programs compute
 * what ops do: graphs-xla and tests/xla/xla.bats, which need a device. */
#include "plume/ops_whole.h"
#include "runtime/engine/xla/lower.h"
#include "tests/unit/engine/engine_net.h"

#include <errno.h>

static const struct pl_op strange = {.name = "strange"};
static const struct pl_op foreign = {.name = "foreign"};

static plume_tensor *apply(struct net *net, const struct pl_op *op, plume_tensor *x)
{
    struct pl_apply what = {
        .op = op, .in = &x, .n_in = 1, .rank = x->rank, .shape = {x->shape[0], x->shape[1]}};
    plume_tensor *y = NULL;

    assert_int_equal(pl_tape_apply(&net->tape, &what, &y, NULL), 0);
    return y;
}

static plume_tensor *
op(struct net *net, enum plume_op which, size_t n, plume_tensor *in, struct plume_op_args args)
{
    plume_tensor *list[] = {in, in}, *y = NULL;

    assert_int_equal(pl_op_call(&net->tape, which, list, n, &args, &y, NULL), 0);
    return y;
}

static void start(struct net *net, enum pl_real real)
{
    pl_tape_init(&net->tape, pl_device_cpu(), real, true);
    leaf(net, real, 2, (size_t[]){3, 4});
    pl_tape_begin(&net->tape);
}

static void test_check_names_each_missing_op_once(void **state)
{
    struct net n = {0}, *net = &n;
    struct pl_error err = {0};
    plume_tensor *y;

    (void)state;
    start(net, PL_REAL_F32);
    y = apply(net, &strange, &net->t[0]);
    y = CALL(PLUME_OP_UNARY, PLUME_TANH, y);
    y = apply(net, &foreign, apply(net, &strange, y));
    pl_tape_end(&net->tape);
    assert_int_equal(pl_lower_check(&net->tape, &err), -ENOTSUP);
    assert_non_null(strstr(pl_error_text(&err), "yet: strange, foreign;"));
    finish(net);
}

static void test_check_refuses_other_types(void **state)
{
    struct net n = {0}, *net = &n;
    struct pl_error err = {0};

    (void)state;
    start(net, PL_REAL_F64);
    CALL(PLUME_OP_UNARY, PLUME_TANH, &net->t[0]);
    pl_tape_end(&net->tape);
    assert_int_equal(pl_lower_check(&net->tape, &err), -ENOTSUP);
    assert_non_null(strstr(pl_error_text(&err), "not f32, bf16 or i32"));
    finish(net);
}

/* A value for the only leaf, in a new lowering. */
static struct pl_lower begin(struct net *net, struct pl_hlo *h, struct pl_lower_leaf *only)
{
    *only = (struct pl_lower_leaf){.tensor = &net->t[0],
                                   .value = pl_hlo_new(h, "f32", 2, net->t[0].shape)};
    return (struct pl_lower){.h = h, .tape = &net->tape, .leaves = only, .n_leaves = 1};
}

static void test_lower_refuses_foreign_tensors_and_losses(void **state)
{
    struct net n = {0}, *net = &n;
    struct pl_lower_leaf only;
    struct pl_hlo h = {0};
    struct pl_lower l;
    struct pl_error err = {0};
    plume_tensor *y, *sum, *free_of;

    (void)state;
    start(net, PL_REAL_F32);
    y = CALL(PLUME_OP_UNARY, PLUME_TANH, &net->t[0]);
    sum = op(net, PLUME_OP_AFFINE, 1, y, (struct plume_op_args){{0}, {2, 0}});
    free_of = op(net, PLUME_OP_FULL, 0, NULL, (struct plume_op_args){{1, 1}, {3}});
    pl_tape_end(&net->tape);
    l = begin(net, &h, &only);
    l.n_leaves = 0;
    assert_int_equal(pl_lower_forward(&l, &err), -EINVAL);
    assert_non_null(strstr(pl_error_text(&err), "neither a parameter or buffer, nor of the batch"));
    pl_lower_finish(&l);

    l = begin(net, &h, &only);
    assert_int_equal(pl_lower_forward(&l, &err), 0);
    assert_int_equal(pl_lower_value(&l, &net->t[1]).id, 0);
    assert_int_equal(pl_lower_backward(&l, sum, &err), -EINVAL); /* 12 elements */
    assert_int_equal(pl_lower_backward(&l, free_of, &err), -EINVAL);
    pl_lower_finish(&l);
    pl_hlo_finish(&h);
    finish(net);
}

/* The gradient of a view of a leaf, and two uses that add up. */
static void test_lower_writes_gradients_of_views(void **state)
{
    struct net n = {0}, *net = &n;
    struct pl_lower_leaf only;
    struct pl_hlo h = {0};
    struct pl_lower l;
    plume_tensor *y, *loss;

    (void)state;
    start(net, PL_REAL_F32);
    y = op(net, PLUME_OP_SLICE, 1, &net->t[0], (struct plume_op_args){{1, 1, 2}, {0}});
    loss = op(net, PLUME_OP_MSE, 2, y, (struct plume_op_args){{0}, {0}});
    pl_tape_end(&net->tape);
    l = begin(net, &h, &only);
    assert_int_equal(pl_lower_forward(&l, NULL), 0);
    assert_int_equal(pl_lower_backward(&l, loss, NULL), 0);
    assert_true(only.grad.id > 0);
    assert_int_equal(only.grad.shape[1], 4);
    assert_non_null(strstr(pl_buf_str(&h.text), "stablehlo.slice %1 [0:3, 1:3] : (tensor<3x4xf32>) "
                                                "-> tensor<3x2xf32>"));
    assert_non_null(strstr(pl_buf_str(&h.text), "low = [0, 1], high = [0, 1], interior = [0, 0]"));
    pl_lower_finish(&l);
    pl_hlo_finish(&h);
    finish(net);
}

/* The comparisons of the program of sum(f(x)) and its gradient. */
static size_t comparisons(const struct plume_op_args *f)
{
    struct net n = {0}, *net = &n;
    struct pl_lower_leaf only;
    struct pl_hlo h = {0};
    struct pl_lower l;
    plume_tensor *loss;
    size_t compared = 0;

    start(net, PL_REAL_F32);
    loss = op(net, PLUME_OP_REDUCE, 1, op(net, PLUME_OP_MAP, 1, &net->t[0], *f),
              (struct plume_op_args){{0, 2}, {0}});
    pl_tape_end(&net->tape);
    l = begin(net, &h, &only);
    assert_int_equal(pl_lower_forward(&l, NULL), 0);
    assert_int_equal(pl_lower_backward(&l, loss, NULL), 0);
    for (const char *at = pl_buf_str(&h.text); (at = strstr(at, "stablehlo.compare")); at++)
        compared++;
    pl_lower_finish(&l);
    pl_hlo_finish(&h);
    finish(net);
    return compared;
}

/* StableHLO's sign of a NaN is a NaN; the gradient of abs is 0 there, as the kernels'. */
static void test_the_slope_of_abs_looks_for_nan(void **state)
{
    (void)state;
    assert_int_equal(comparisons(&(struct plume_op_args){{PLUME_MAP_ABS}, {0}}), 1);
}

/* Clamp's gradient compares x with the bounds that are finite: an infinite x is beside none. */
static void test_an_infinite_bound_of_clamp_is_none(void **state)
{
    static const struct {
        double least, most;
        size_t compared;
    } list[] = {{-1, 1, 2}, {-INFINITY, 1, 1}, {-1, INFINITY, 1}, {-INFINITY, INFINITY, 0}};

    (void)state;
    for (size_t i = 0; i < PL_COUNT(list); i++) {
        struct plume_op_args clamp = {{PLUME_MAP_CLAMP}, {list[i].least, list[i].most}};

        assert_int_equal(comparisons(&clamp), list[i].compared);
    }
}

/* Without its kind, constants of whole numbers may be compared as if they had no sign. */
static void test_whole_numbers_are_compared_with_their_sign(void **state)
{
    struct net n = {0}, *net = &n;
    struct pl_lower_leaf only;
    struct pl_hlo h = {0};
    struct pl_lower l;
    plume_tensor *number[2];

    (void)state;
    start(net, PL_REAL_F32);
    for (int64_t k = 0; k < 2; k++)
        number[k] = op(net, PLUME_OP_RANGE, 0, NULL, (struct plume_op_args){{1, -k}, {0}});
    CALL(PLUME_OP_WHOLE, PLUME_WHOLE_LE, number[0], number[1]);
    pl_tape_end(&net->tape);
    l = begin(net, &h, &only);
    assert_int_equal(pl_lower_forward(&l, NULL), 0);
    assert_non_null(strstr(pl_buf_str(&h.text), ", SIGNED : (tensor<1x1xi32>, tensor<1x1xi32>)"));
    pl_lower_finish(&l);
    pl_hlo_finish(&h);
    finish(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_names_each_missing_op_once),
        cmocka_unit_test(test_check_refuses_other_types),
        cmocka_unit_test(test_lower_refuses_foreign_tensors_and_losses),
        cmocka_unit_test(test_lower_writes_gradients_of_views),
        cmocka_unit_test(test_an_infinite_bound_of_clamp_is_none),
        cmocka_unit_test(test_the_slope_of_abs_looks_for_nan),
        cmocka_unit_test(test_whole_numbers_are_compared_with_their_sign),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
