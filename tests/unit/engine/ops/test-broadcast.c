/* SPDX-License-Identifier: MIT */
/* add, sub, mul and div of shapes that are broadcast, against PyTorch's numbers. */
#include "runtime/engine/ops/ops.h"
#include "tests/golden/broadcast.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST 12

struct leaf {
    plume_tensor t;
    double data[MOST], grad[MOST];
};

/* The numbers of broadcast.py. */
static void make(struct leaf *leaf, size_t rank, const size_t *shape, int by, int least, bool f64)
{
    assert_int_equal(pl_tensor_init(&leaf->t, f64 ? PLUME_F64 : PLUME_F32, rank, shape), 0);
    assert_true(leaf->t.count <= MOST);
    leaf->t.data = leaf->data;
    leaf->t.grad = leaf->grad;
    leaf->t.wants_grad = leaf->t.is_param = true;
    for (size_t i = 0; i < leaf->t.count; i++) {
        double value = (((int)i * by + 3) % 11 + least) / 4.0;

        if (f64)
            leaf->data[i] = value;
        else
            ((float *)leaf->data)[i] = (float)value;
    }
}

static plume_tensor *op(struct pl_tape *tape, enum plume_op which, int64_t i, plume_tensor **in)
{
    struct plume_op_args args = {{i, 9}, {0}};
    plume_tensor *ret = NULL;

    assert_int_equal(
        pl_op_call(tape, which, in, which == PLUME_OP_BINARY ? 2 : 1, &args, &ret, NULL), 0);
    return ret;
}

static void
same(size_t i, const char *what, const void *got, const double *want, size_t n, bool f64)
{
    for (size_t k = 0; k < n; k++) {
        double x = f64 ? ((const double *)got)[k] : (double)((const float *)got)[k];

        /* A few roundings of sums of up to 12 terms near 1. */
        if (!(fabs(x - want[k]) <= (f64 ? 1e-14 : 1e-5) * (1 + fabs(want[k]))))
            fail_msg("case %zu: %s[%zu] is %.17g, PyTorch's is %.17g", i, what, k, x, want[k]);
    }
}

static void one(size_t i, bool f64)
{
    struct pl_tape tape;
    struct leaf a, b, w;
    plume_tensor *y, *loss, *roots[2];

    make(&a, golden_broadcast[i].a_rank, golden_broadcast[i].a, 7, -5, f64);
    make(&b, golden_broadcast[i].b_rank, golden_broadcast[i].b, 5, 2, f64);
    make(&w, golden_broadcast[i].rank, golden_broadcast[i].shape, 3, -4, f64);
    w.t.wants_grad = false;
    pl_tape_init(&tape, pl_device_cpu(), f64 ? PL_REAL_F64 : PL_REAL_F32, true);
    pl_tape_begin(&tape);
    y = op(&tape, PLUME_OP_BINARY, golden_broadcast[i].op, (plume_tensor *[]){&a.t, &b.t});
    assert_int_equal(y->rank, golden_broadcast[i].rank);
    assert_memory_equal(y->shape, golden_broadcast[i].shape, y->rank * sizeof(*y->shape));
    loss = op(&tape, PLUME_OP_BINARY, 2, (plume_tensor *[]){y, &w.t});
    loss = op(&tape, PLUME_OP_REDUCE, 0, &loss);
    pl_tape_end(&tape);
    roots[0] = loss;
    roots[1] = y;
    assert_int_equal(pl_tape_prepare(&tape, roots, 2, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&tape, NULL), 0);
    assert_int_equal(pl_tape_backward(&tape, &(struct pl_backward){.loss = loss, .seed = 1}, NULL),
                     0);
    same(i, "y", pl_tensor_data(y), golden_broadcast[i].y, y->count, f64);
    same(i, "da", a.grad, golden_broadcast[i].da, a.t.count, f64);
    same(i, "db", b.grad, golden_broadcast[i].db, b.t.count, f64);
    pl_tape_finish(&tape);
}

static void test_as_pytorch(void **state)
{
    (void)state;
    for (size_t i = 0; i < PL_COUNT(golden_broadcast); i++) {
        one(i, true);
        one(i, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_as_pytorch)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
