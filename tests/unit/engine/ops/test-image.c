/* SPDX-License-Identifier: MIT */
/* Ops over images as the tape calls them: strides, padding, overlapping windows and shapes that do
 * not fit. Plain shapes are compared with PyTorch in tests/engine/test-golden.c. */
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/util/rng.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define ELEMENTS_MAX 256

struct leaf {
    plume_tensor t;
    double data[ELEMENTS_MAX], grad[ELEMENTS_MAX];
};

static struct leaf x, w, b;
static int32_t labels_data[2] = {1, 4};
static plume_tensor labels;
static struct pl_tape tape;

static void make(struct leaf *leaf, size_t rank, const size_t *shape, uint64_t stream)
{
    struct pl_rng rng;

    assert_int_equal(pl_tensor_init(&leaf->t, PLUME_F64, rank, shape), 0);
    assert_true(leaf->t.count <= ELEMENTS_MAX);
    leaf->t.data = leaf->data;
    leaf->t.grad = leaf->grad;
    leaf->t.wants_grad = leaf->t.is_param = true;
    pl_rng_init(&rng, 7, stream);
    for (size_t i = 0; i < leaf->t.count; i++)
        leaf->data[i] = pl_rng_normal(&rng);
}

static plume_tensor *op(enum plume_op which, size_t n, plume_tensor *const *in, const int64_t *i)
{
    struct plume_op_args args = {{0}, {0}};
    plume_tensor *ret = NULL;

    memcpy(args.i, i, 5 * sizeof(args.i[0]));
    assert_int_equal(pl_op_call(&tape, which, in, n, &args, &ret, NULL), 0);
    return ret;
}

/* conv2d with stride 2 and padding, means and then maxima of windows that overlap */
static plume_tensor *trace(void)
{
    plume_tensor *h;

    pl_tape_begin(&tape);
    h = op(PLUME_OP_CONV2D, 3, (plume_tensor *[]){&x.t, &w.t, &b.t},
           (int64_t[]){2, 1, PLUME_RELU, 0, 0});
    h = op(PLUME_OP_POOL2D, 1, &h, (int64_t[]){2, 1, 1, 1, 0});
    h = op(PLUME_OP_POOL2D, 1, &h, (int64_t[]){3, 2, 1, 0, 0});
    h = op(PLUME_OP_RESHAPE, 1, &h, (int64_t[]){2, 2, 0, 0, 0});
    h = op(PLUME_OP_CROSS_ENTROPY, 2, (plume_tensor *[]){h, &labels}, (int64_t[]){0, 0, 0, 0, 0});
    pl_tape_end(&tape);
    return h;
}

static double forward(void)
{
    plume_tensor *loss = trace();

    assert_int_equal(pl_tape_prepare(&tape, &loss, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&tape, NULL), 0);
    return on_device_scalar(loss);
}

/* Central differences: errors of h^2 f''' and 1e-16 / h are below 1e-9 with h = 1e-5; no relu or
 * maximum is within h of a change, which the seed sees to. */
static void check(struct leaf *leaf)
{
    for (size_t i = 0; i < leaf->t.count; i++) {
        double keep = leaf->data[i], up, down;

        leaf->data[i] = keep + 1e-5;
        up = forward();
        leaf->data[i] = keep - 1e-5;
        down = forward();
        leaf->data[i] = keep;
        if (fabs(leaf->grad[i] - (up - down) / 2e-5) > 1e-8)
            fail_msg("element %zu: gradient %.12g, differences say %.12g", i, leaf->grad[i],
                     (up - down) / 2e-5);
    }
}

static void setup(void)
{
    make(&x, 4, (size_t[]){2, 2, 6, 7}, 1);
    make(&w, 4, (size_t[]){3, 2, 3, 2}, 2);
    make(&b, 1, (size_t[]){3}, 3);
    assert_int_equal(pl_tensor_init(&labels, PLUME_I32, 1, (size_t[]){2}), 0);
    labels.data = labels_data;
    pl_tape_init(&tape, pl_device_cpu(), PL_REAL_F64, true);
}

static void test_gradients_with_strides_and_padding(void **state)
{
    plume_tensor *loss;

    setup();
    forward();
    loss = trace();
    assert_int_equal(pl_tape_prepare(&tape, &loss, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&tape, NULL), 0);
    assert_int_equal(pl_tape_backward(&tape, &(struct pl_backward){.loss = loss, .seed = 1}, NULL),
                     0);
    check(&x);
    check(&w);
    check(&b);
    assert_true(pl_tape_flops(&tape, true) > pl_tape_flops(&tape, false));
    pl_tape_finish(&tape);
}

static void refused(enum plume_op which, size_t n, plume_tensor *const *in, const int64_t *i)
{
    struct plume_op_args args = {{i[0], i[1], i[2], i[3]}, {0}};
    struct pl_error err = {0};
    plume_tensor *ret = NULL;

    assert_int_equal(pl_op_call(&tape, which, in, n, &args, &ret, &err), -EINVAL);
    assert_null(ret);
    assert_non_null(strstr(pl_error_text(&err), "2d"));
}

static void test_ops_refuse_what_does_not_fit(void **state)
{
    plume_tensor *const in[] = {&x.t, &w.t, &b.t}, *const swapped[] = {&w.t, &x.t, &b.t};
    plume_tensor *bias = &b.t;

    setup();
    pl_tape_begin(&tape);
    refused(PLUME_OP_CONV2D, 2, swapped, (int64_t[]){1, 0, 0, 0}); /* kernel larger than image */
    refused(PLUME_OP_CONV2D, 2, in, (int64_t[]){0, 0, 0, 0});
    refused(PLUME_OP_CONV2D, 2, in, (int64_t[]){1, -1, 0, 0});
    refused(PLUME_OP_CONV2D, 2, in, (int64_t[]){1, 0, PLUME_GELU, 0});
    refused(PLUME_OP_CONV2D, 3, (plume_tensor *[]){&x.t, &w.t, &w.t}, (int64_t[]){1, 0, 0, 0});
    refused(PLUME_OP_POOL2D, 1, &bias, (int64_t[]){2, 2, 0, 0});
    refused(PLUME_OP_POOL2D, 1, in, (int64_t[]){2, 0, 0, 0});
    refused(PLUME_OP_POOL2D, 1, in, (int64_t[]){2, 1, 2, 0});
    refused(PLUME_OP_POOL2D, 1, in, (int64_t[]){17, 1, 0, 0});
    refused(PLUME_OP_POOL2D, 1, in, (int64_t[]){8, 1, 0, 1});
    pl_tape_end(&tape);
    pl_tape_finish(&tape);
}

/* One value has no variance: PyTorch refuses it in training, too. */
static void test_batchnorm_needs_two_values_of_a_channel(void **state)
{
    static const struct {
        size_t rank, shape[4];
        bool training, joint, fits;
    } cases[] = {
        {2, {1, 3}, true, false, false},       {2, {2, 3}, true, false, true},
        {4, {1, 3, 1, 1}, true, false, false}, {4, {1, 3, 1, 2}, true, false, true},
        {2, {1, 3}, true, true, true}, /* other ranks have more values */
        {2, {1, 3}, false, false, true},
    };
    plume_tensor *in[5] = {&x.t};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct plume_op_args none = {{0}, {0}};
        struct pl_error err = {0};
        struct leaf of_channels[4];
        plume_tensor *ret = NULL;

        make(&x, cases[i].rank, cases[i].shape, 1);
        for (size_t k = 0; k < 4; k++) {
            make(&of_channels[k], 1, (size_t[]){3}, 2 + k);
            of_channels[k].t.wants_grad = k < 2;
            in[1 + k] = &of_channels[k].t;
        }
        pl_tape_init(&tape, pl_device_cpu(), PL_REAL_F64, cases[i].training);
        tape.lone_norms = cases[i].joint;
        pl_tape_begin(&tape);
        assert_int_equal(pl_op_call(&tape, PLUME_OP_BATCHNORM, in, 5, &none, &ret, &err),
                         cases[i].fits ? 0 : -EINVAL);
        if (!cases[i].fits)
            assert_non_null(strstr(pl_error_text(&err), "a channel needs more than one value"));
        pl_tape_end(&tape);
        pl_tape_finish(&tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_with_strides_and_padding),
        cmocka_unit_test(test_ops_refuse_what_does_not_fit),
        cmocka_unit_test(test_batchnorm_needs_two_values_of_a_channel),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
