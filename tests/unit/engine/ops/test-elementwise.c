/* SPDX-License-Identifier: MIT */
/* Functions of each element, comparisons and choices, against PyTorch's numbers: values and
 * gradients at kinks, ends of domains, for large numbers and those that are not finite. */
#include "runtime/engine/ops/ops.h"
#include "tests/golden/choose.h"
#include "tests/golden/kinks.h"
#include "tests/golden/map.h"
#include "tests/lib/on_device.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST 64

struct leaf {
    plume_tensor t;
    double data[MOST], grad[MOST];
};

static void make(struct leaf *leaf, size_t n, bool f64)
{
    assert_true(n <= MOST);
    assert_int_equal(pl_tensor_init(&leaf->t, f64 ? PLUME_F64 : PLUME_F32, 1, &n), 0);
    memset(leaf->grad, 0, sizeof(leaf->grad));
    leaf->t.data = leaf->data;
    leaf->t.grad = leaf->grad;
    leaf->t.wants_grad = leaf->t.is_param = true;
}

static void set(struct leaf *leaf, size_t i, double value, bool f64)
{
    if (f64)
        leaf->data[i] = value;
    else
        ((float *)leaf->data)[i] = (float)value;
}

static plume_tensor *op(struct pl_tape *tape,
                        enum plume_op which,
                        struct plume_op_args args,
                        size_t n,
                        plume_tensor **in)
{
    plume_tensor *ret = NULL;

    assert_int_equal(pl_op_call(tape, which, in, n, &args, &ret, NULL), 0);
    return ret;
}

/* Runs y and, from weights by index as in elementwise.py, backward. */
static void run(struct pl_tape *tape, plume_tensor *y, bool backward, bool f64)
{
    struct leaf w;
    plume_tensor *loss, *roots[2];

    make(&w, y->count, f64);
    w.t.wants_grad = false;
    for (size_t i = 0; i < y->count; i++)
        set(&w, i, ((double)(i * 3 % 7) - 2.5) / 2, f64);
    loss =
        op(tape, PLUME_OP_BINARY, (struct plume_op_args){{2}, {0}}, 2, (plume_tensor *[]){y, &w.t});
    loss = op(tape, PLUME_OP_REDUCE, (struct plume_op_args){{0, 9}, {0}}, 1, &loss);
    pl_tape_end(tape);
    roots[0] = loss;
    roots[1] = y;
    assert_int_equal(pl_tape_prepare(tape, roots, 2, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(tape, NULL), 0);
    if (backward)
        assert_int_equal(
            pl_tape_backward(tape, &(struct pl_backward){.loss = loss, .seed = 1}, NULL), 0);
}

/* Values that f32 cannot hold are infinite there, or 0. */
static bool is_close(double got, double want, bool f64)
{
    if (isnan(want) || isnan(got))
        return isnan(want) && isnan(got);
    if (!f64)
        want = (double)(float)want;
    if (isinf(want) || isinf(got))
        return want == got;
    return fabs(got - want) <= (f64 ? 1e-13 : 4e-6) * (1 + fabs(want));
}

static void same(const char *name,
                 size_t k,
                 const char *what,
                 const void *got,
                 const double *want,
                 size_t n,
                 bool f64)
{
    for (size_t i = 0; i < n; i++) {
        double x = f64 ? ((const double *)got)[i] : (double)((const float *)got)[i];

        if (!is_close(x, want[i], f64))
            fail_msg("%s %zu: %s[%zu] is %.17g, PyTorch's is %.17g", name, k, what, i, x, want[i]);
    }
}

static void begin(struct pl_tape *tape, bool f64)
{
    pl_tape_init(tape, pl_device_cpu(), f64 ? PL_REAL_F64 : PL_REAL_F32, true);
    pl_tape_begin(tape);
}

static void map(const char *name, const struct golden_map *golden, size_t k, bool f64)
{
    struct pl_tape tape;
    struct leaf x;
    plume_tensor *y, *in[] = {&x.t};

    make(&x, PL_COUNT(golden_x), f64);
    for (size_t i = 0; i < x.t.count; i++)
        set(&x, i, golden_x[i], f64);
    begin(&tape, f64);
    y = op(&tape, PLUME_OP_MAP, (struct plume_op_args){{golden[k].fn}, {golden[k].p, golden[k].q}},
           1, in);
    run(&tape, y, true, f64);
    same(name, k, "y", pl_tensor_data(y), golden[k].y, y->count, f64);
    same(name, k, "dx", x.grad, golden[k].dx, y->count, f64);
    pl_tape_finish(&tape);
}

static void choose(size_t k, bool f64)
{
    struct pl_tape tape;
    struct leaf a, b, c;
    bool where = golden_choose[k].op == PLUME_CHOOSE_WHERE;
    bool backward = golden_choose[k].op <= PLUME_CHOOSE_WHERE;
    plume_tensor *y, *in[] = {&a.t, &b.t, &c.t};

    make(&a, PL_COUNT(golden_a), f64);
    make(&b, PL_COUNT(golden_a), f64);
    make(&c, PL_COUNT(golden_a), f64);
    for (size_t i = 0; i < a.t.count; i++) {
        set(&a, i, golden_a[i], f64);
        set(&b, i, golden_b[i], f64);
        set(&c, i, (double)(i % 5) - 2, f64);
    }
    begin(&tape, f64);
    y = op(&tape, PLUME_OP_CHOOSE, (struct plume_op_args){{golden_choose[k].op}, {0}},
           where ? 3 : 2, in);
    assert_int_equal(y->wants_grad, backward);
    run(&tape, y, backward, f64);
    same("choose", k, "y", pl_tensor_data(y), golden_choose[k].y, y->count, f64);
    same("choose", k, "da", a.grad, golden_choose[k].da, y->count, f64);
    same("choose", k, "db", b.grad, golden_choose[k].db, y->count, f64);
    same("choose", k, "dc", c.grad, golden_choose[k].dc, y->count, f64);
    pl_tape_finish(&tape);
}

static void test_functions_as_pytorch(void **state)
{
    (void)state;
    for (size_t k = 0; k < PL_COUNT(golden_maps); k++) {
        map("map", golden_maps, k, true);
        map("map", golden_maps, k, false);
    }
    for (size_t k = 0; k < PL_COUNT(golden_kinks); k++) {
        map("kink", golden_kinks, k, true);
        map("kink", golden_kinks, k, false);
    }
}

static void test_choices_as_pytorch(void **state)
{
    (void)state;
    for (size_t k = 0; k < PL_COUNT(golden_choose); k++) {
        choose(k, true);
        choose(k, false);
    }
}

/* The nearest finite number of the type, where it is asked for. */
static void test_full_may_be_finite(void **state)
{
    (void)state;
    for (int f64 = 0; f64 < 2; f64++)
        for (int finite = 0; finite < 2; finite++) {
            struct pl_tape tape;
            double most = f64 ? DBL_MAX : finite ? FLT_MAX : INFINITY;
            plume_tensor *y;

            begin(&tape, f64);
            y = op(&tape, PLUME_OP_FULL, (struct plume_op_args){{1, 1}, {DBL_MAX, finite}}, 0,
                   NULL);
            run(&tape, y, false, f64);
            same("full", 0, "y", pl_tensor_data(y), &most, 1, f64);
            pl_tape_finish(&tape);
        }
}

static void refused(struct plume_op_args args, enum plume_op which, size_t n, const char *words)
{
    struct pl_tape tape;
    struct pl_error err = {0};
    struct leaf x;
    plume_tensor *ret = NULL, *in[] = {&x.t, &x.t, &x.t};

    make(&x, 4, true);
    begin(&tape, true);
    assert_true(pl_op_call(&tape, which, in, n, &args, &ret, &err) < 0);
    if (!strstr(pl_error_text(&err), words))
        fail_msg("'%s' has not '%s'", pl_error_text(&err), words);
    pl_tape_end(&tape);
    pl_tape_finish(&tape);
}

static void test_refusals(void **state)
{
    (void)state;
    refused((struct plume_op_args){{PLUME_MAP_CLAMP}, {1, 0}}, PLUME_OP_MAP, 1, "larger");
    refused((struct plume_op_args){{PLUME_MAP_CLAMP}, {NAN, 0}}, PLUME_OP_MAP, 1, "larger");
    refused((struct plume_op_args){{PLUME_MAP_POW}, {NAN, 0}}, PLUME_OP_MAP, 1, "not a number");
    refused((struct plume_op_args){{0}, {0}}, PLUME_OP_MAP, 1, "unknown function 0");
    refused((struct plume_op_args){{99}, {0}}, PLUME_OP_MAP, 1, "unknown function 99");
    refused((struct plume_op_args){{99}, {0}}, PLUME_OP_CHOOSE, 2, "unknown operation 99");
    refused((struct plume_op_args){{PLUME_CHOOSE_MAX}, {0}}, PLUME_OP_CHOOSE, 3, "takes 2 inputs");
    refused((struct plume_op_args){{PLUME_CHOOSE_WHERE}, {0}}, PLUME_OP_CHOOSE, 2, "takes 3");
    refused((struct plume_op_args){{0}, {0}}, PLUME_OP_FULL, 0, "number of dimensions");
    refused((struct plume_op_args){{1, 0}, {0}}, PLUME_OP_FULL, 0, "not positive");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_functions_as_pytorch),
        cmocka_unit_test(test_choices_as_pytorch),
        cmocka_unit_test(test_full_may_be_finite),
        cmocka_unit_test(test_refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
