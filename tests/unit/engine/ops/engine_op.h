/* SPDX-License-Identifier: MIT */
/* Calls of ops on the tape of an engine_net.h, as modules make them; they must succeed. */
#ifndef PL_TESTS_UNIT_ENGINE_OPS_ENGINE_OP_H
#define PL_TESTS_UNIT_ENGINE_OPS_ENGINE_OP_H

#include "tests/unit/engine/engine_net.h"

#define OPS_MAX 256

static bool called[OPS_MAX]; /* by number */

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
    called[which] = true;
    return t;
}

#define OP(which, args, ...)                                                                       \
    op(net, which, sizeof((plume_tensor *[]){__VA_ARGS__}) / sizeof(plume_tensor *),               \
       (plume_tensor *[]){__VA_ARGS__}, (struct plume_op_args)args)
#define ARGS(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define NONE ARGS({0}, {0})

/* Height and width of an op's numbers in one. */
#define PAIR(h, w) ((h) | (int64_t)(w) << 32)

/* The leaves: t[0] a [4, 6], t[1] b [6], t[2] c [2, 3, 4], t[3] d [2, 4, 3], t[4] labels [4],
 * t[5] table [5, 3], t[6] one element, t[7] the weights of the loss, t[8]
 * and t[9] buffers [3]. */
static PL_UNUSED void make_on(struct net *net, struct pl_device *dev, enum pl_real real)
{
    *net = (struct net){0};
    pl_tape_init(&net->tape, dev, real, true);
    leaf(net, real, 2, (size_t[]){4, 6});
    leaf(net, real, 1, (size_t[]){6});
    leaf(net, real, 3, (size_t[]){2, 3, 4});
    leaf(net, real, 3, (size_t[]){2, 4, 3});
    labels(net, 4, 5);
    leaf(net, real, 2, (size_t[]){5, 3});
    leaf(net, real, 1, (size_t[]){1});
    leaf(net, real, 1, (size_t[]){64});
    for (int i = 0; i < 2; i++) /* running mean and variance */
        leaf(net, real, 1, (size_t[]){3})->wants_grad = false;
}

#endif
