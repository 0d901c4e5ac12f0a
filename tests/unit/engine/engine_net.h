/* SPDX-License-Identifier: MIT */
/* A few leaf tensors and a function of them, for tests of the tape and of the ops. */
#ifndef PL_TESTS_UNIT_ENGINE_ENGINE_NET_H
#define PL_TESTS_UNIT_ENGINE_ENGINE_NET_H

#include "runtime/engine/ops/ops.h"
#include "runtime/engine/util/rng.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS 10

/* A few leaf tensors and a function of them. */
struct net {
    struct pl_tape tape;
    plume_tensor t[TENSORS];
    size_t n;
    int32_t labels[64];
};

static PL_UNUSED plume_tensor *
leaf(struct net *net, enum pl_real real, size_t rank, const size_t *shape)
{
    plume_tensor *t = &net->t[net->n++];
    struct pl_rng rng;

    assert_int_equal(pl_tensor_init(t, pl_dtype_of_real(real), rank, shape), 0);
    t->data = calloc(t->count, 8);
    t->grad = calloc(t->count, 8);
    t->wants_grad = t->is_param = true;
    pl_rng_init(&rng, 42, net->n);
    for (size_t i = 0; i < t->count; i++) {
        double value = pl_rng_normal(&rng);

        if (real == PL_REAL_F64)
            ((double *)t->data)[i] = value;
        else
            ((float *)t->data)[i] = (float)value;
    }
    return t;
}

static PL_UNUSED plume_tensor *labels(struct net *net, size_t rows, size_t classes)
{
    plume_tensor *t = &net->t[net->n++];

    assert_int_equal(pl_tensor_init(t, PLUME_I32, 1, (size_t[]){rows}), 0);
    for (size_t i = 0; i < rows; i++)
        net->labels[i] = (int32_t)((i * 7) % classes);
    t->data = net->labels;
    return t;
}

static void finish(struct net *net)
{
    for (size_t i = 0; i < net->n; i++) {
        if (net->t[i].data != net->labels)
            free(net->t[i].data);
        free(net->t[i].grad);
    }
    pl_tape_finish(&net->tape);
}

typedef plume_tensor *(*function)(struct net *net);

static PL_UNUSED int call(struct net *net,
                          enum plume_op op,
                          size_t n,
                          plume_tensor *const *in,
                          int64_t arg,
                          plume_tensor **ret,
                          struct pl_error *err)
{
    return pl_op_call(&net->tape, op, in, n, &(struct plume_op_args){{arg}, {0}}, ret, err);
}

#define CALL(op, arg, ...)                                                                         \
    ({                                                                                             \
        plume_tensor *in_[] = {__VA_ARGS__}, *t_ = NULL;                                           \
        assert_int_equal(call(net, op, PL_COUNT(in_), in_, arg, &t_, NULL), 0);                    \
        t_;                                                                                        \
    })

/* Traces, plans and runs forward. */
static plume_tensor *forward(struct net *net, function f)
{
    plume_tensor *loss;

    pl_tape_begin(&net->tape);
    loss = f(net);
    pl_tape_end(&net->tape);
    assert_int_equal(pl_tape_prepare(&net->tape, &loss, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&net->tape, NULL), 0);
    return loss;
}

static PL_UNUSED int backward(struct net *net, plume_tensor *loss)
{
    return pl_tape_backward(&net->tape, &(struct pl_backward){.loss = loss, .seed = 1}, NULL);
}

static double value_of(struct net *net, function f)
{
    return on_device_scalar(forward(net, f));
}

/* Central differences with step h are off by h^2 f'''/6 and by rounding 1e-16 f/h; for h = 1e-5
 * and values around 1 both are below 1e-10. The tolerance leaves room for larger f'''. */
static PL_UNUSED void check_gradients(struct net *net, function f)
{
    const double h = 1e-5, tolerance = 1e-8;
    plume_tensor *loss = forward(net, f);

    for (size_t i = 0; i < net->n; i++) /* what is there is overwritten */
        if (net->t[i].grad)
            memset(net->t[i].grad, 0xff, net->t[i].count * 8);
    assert_int_equal(backward(net, loss), 0);
    for (size_t i = 0; i < net->n; i++) {
        plume_tensor *t = &net->t[i];

        for (size_t k = 0; t->wants_grad && k < t->count; k++) {
            double *x = (double *)t->data + k, keep = *x, up, down, got;

            *x = keep + h;
            up = value_of(net, f);
            *x = keep - h;
            down = value_of(net, f);
            *x = keep;
            got = ((double *)t->grad)[k];
            if (fabs(got - (up - down) / (2 * h)) > tolerance)
                fail_msg("tensor %zu element %zu: gradient %.12g, differences say %.12g", i, k, got,
                         (up - down) / (2 * h));
        }
    }
    assert_int_equal(net->tape.recordings, 1);
}

#endif
