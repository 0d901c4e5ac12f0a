/* SPDX-License-Identifier: MIT */
/* Random functions of a few leaf tensors: graphs of ops with views, tensors used several times and
 * dead ends. The same seed is the same function. */
#ifndef PL_TESTS_UNIT_ENGINE_ENGINE_RANDOM_H
#define PL_TESTS_UNIT_ENGINE_ENGINE_RANDOM_H

#include "tests/unit/engine/engine_net.h"

#define RANDOM_POOL 40

struct random_net {
    struct net net;
    uint64_t seed;
    size_t ops;
    struct pl_rng rng;
    plume_tensor *pool[RANDOM_POOL];
    size_t n;
};

static plume_tensor *random_op(struct random_net *r,
                               enum plume_op which,
                               size_t n,
                               plume_tensor *const *in,
                               struct plume_op_args args)
{
    plume_tensor *t = NULL;
    struct pl_error err = {0};

    if (pl_op_call(&r->net.tape, which, in, n, &args, &t, &err) < 0)
        fail_msg("seed %llu: %s", (unsigned long long)r->seed, pl_error_text(&err));
    return t;
}

#define RANDOM(which, n, in, ...) random_op(r, which, n, in, (struct plume_op_args){__VA_ARGS__})

static size_t random_below(struct random_net *r, size_t limit)
{
    return (size_t)pl_rng_below(&r->rng, limit);
}

/* All of x in row-major order, cut or repeated to `count` elements in one row. */
static plume_tensor *random_row(struct random_net *r, plume_tensor *x, size_t count)
{
    plume_tensor *flat = RANDOM(PLUME_OP_RESHAPE, 1, &x, {1, 0}, {0}), *list[32];
    size_t n = 0, have = 0;

    while (have < count && n < PL_COUNT(list)) {
        size_t take = PL_MIN(count - have, flat->count);

        list[n++] =
            RANDOM(PLUME_OP_SLICE, 1, &flat,
                   {0, (int64_t)random_below(r, flat->count - take + 1), (int64_t)take}, {0});
        have += take;
    }
    flat = n == 1 ? list[0] : RANDOM(PLUME_OP_CAT, n, list, {0}, {0});
    return have < count ? random_row(r, flat, count) : flat;
}

/* y as a tensor of x's shape. */
static plume_tensor *random_like(struct random_net *r, plume_tensor *x, plume_tensor *y)
{
    struct plume_op_args args = {{(int64_t)x->rank}, {0}};

    for (size_t i = 0; i < x->rank; i++)
        args.i[i + 1] = (int64_t)x->shape[i];
    y = random_row(r, y, x->count);
    return random_op(r, PLUME_OP_RESHAPE, 1, &y, args);
}

/* A view of x. */
static plume_tensor *random_view(struct random_net *r, plume_tensor *x)
{
    size_t dim = random_below(r, x->rank), first = random_below(r, x->shape[dim]), at = 0;
    struct plume_op_args args = {{0}, {0}};

    switch (random_below(r, 3)) {
    case 0:
        return RANDOM(
            PLUME_OP_SLICE, 1, &x,
            {(int64_t)dim, (int64_t)first, (int64_t)(1 + random_below(r, x->shape[dim] - first))},
            {0});
    case 1:
        at = random_below(r, x->rank);
        for (size_t i = 0; i < x->rank; i++) /* turned around by `at` */
            args.i[i] = (int64_t)((i + at) % x->rank);
        return random_op(r, PLUME_OP_PERMUTE, 1, &x, args);
    default:
        return RANDOM(PLUME_OP_RESHAPE, 1, &x, {2, (int64_t)x->shape[0], 0}, {0});
    }
}

/* A product of x, taken as rows, with a matrix from y. */
static plume_tensor *random_product(struct random_net *r, plume_tensor *x, plume_tensor *y)
{
    plume_tensor *rows =
        RANDOM(PLUME_OP_RESHAPE, 1, &x, {2, 0, (int64_t)x->shape[x->rank - 1]}, {0});
    size_t in = rows->shape[1], out = 1 + random_below(r, 5);
    plume_tensor *flat = random_row(r, y, in * out);
    bool turned = random_below(r, 2);
    int64_t shape[] = {2, (int64_t)(turned ? out : in), (int64_t)(turned ? in : out)};
    plume_tensor *w = RANDOM(PLUME_OP_RESHAPE, 1, &flat, {shape[0], shape[1], shape[2]}, {0});
    plume_tensor *list[] = {rows, w};

    if (turned && random_below(r, 2))
        return RANDOM(PLUME_OP_LINEAR, 2, list, {(int64_t)random_below(r, PLUME_SIGMOID + 1)}, {0});
    return RANDOM(PLUME_OP_MATMUL, 2, list, {0, turned}, {0});
}

static plume_tensor *random_step(struct random_net *r)
{
    plume_tensor *x = r->pool[random_below(r, r->n)], *y = r->pool[random_below(r, r->n)];
    plume_tensor *list[2] = {x, NULL};
    size_t dim;

    switch (random_below(r, 11)) {
    case 0:
        return RANDOM(PLUME_OP_AFFINE, 1, &x, {0}, {0.75, 0.5});
    case 1:
        return RANDOM(PLUME_OP_UNARY, 1, &x,
                      {(int64_t)(PLUME_GELU + random_below(r, PLUME_SIGMOID - PLUME_GELU + 1))},
                      {0});
    case 2:
        list[1] = random_below(r, 3) ? random_like(r, x, y) : random_row(r, y, 1);
        return RANDOM(PLUME_OP_BINARY, 2, list, {(int64_t)random_below(r, 3)}, {0});
    case 3:
        return RANDOM(PLUME_OP_LAYERNORM, 1, &x, {0}, {0.1});
    case 4:
        return RANDOM(PLUME_OP_SOFTMAX, 1, &x, {(int64_t)random_below(r, 2)}, {0});
    case 5:
        dim = random_below(r, x->rank);
        return RANDOM(PLUME_OP_REDUCE, 1, &x,
                      {(int64_t)dim, (int64_t)dim + 1, 1, (int64_t)random_below(r, 2)}, {0});
    case 6:
        list[1] = random_like(r, x, y);
        return RANDOM(PLUME_OP_CAT, 2, list, {0}, {0});
    case 7:
        return RANDOM(PLUME_OP_DROPOUT, 1, &x, {0}, {0.3});
    case 8:
        return random_product(r, x, y);
    default:
        return random_view(r, x);
    }
}

/* The mean square of x's elements, bounded before. */
static plume_tensor *random_end(struct random_net *r, plume_tensor *x)
{
    plume_tensor *list[2];

    list[0] = RANDOM(PLUME_OP_UNARY, 1, &x, {PLUME_TANH}, {0});
    list[1] = random_like(r, x, &r->net.t[3]);
    return RANDOM(PLUME_OP_MSE, 2, list, {0}, {0});
}

static plume_tensor *random_function(struct net *net)
{
    struct random_net *r = (struct random_net *)net; /* its first member */
    plume_tensor *sum[2];

    pl_rng_init(&r->rng, r->seed, 7);
    r->n = 0;
    for (size_t i = 0; i < 4; i++)
        r->pool[r->n++] = &net->t[i];
    for (size_t i = 0; i < r->ops; i++) {
        plume_tensor *t = random_step(r);

        if (t->count < 400 && r->n < RANDOM_POOL)
            r->pool[r->n++] = t;
        else if (t->count < 400)
            r->pool[4 + random_below(r, RANDOM_POOL - 4)] = t;
    }
    sum[0] = random_end(r, r->pool[r->n - 1]);
    for (size_t i = 0; i < 3; i++) {
        sum[1] = random_end(r, r->pool[random_below(r, r->n)]);
        sum[0] = RANDOM(PLUME_OP_BINARY, 2, sum, {0}, {0});
    }
    return sum[0];
}

static void random_make(
    struct random_net *r, struct pl_device *dev, enum pl_real real, uint64_t seed, size_t ops)
{
    struct net *net = &r->net;

    *r = (struct random_net){.seed = seed, .ops = ops};
    pl_tape_init(&net->tape, dev, real, true);
    leaf(net, real, 2, (size_t[]){4, 6});
    leaf(net, real, 3, (size_t[]){2, 3, 4});
    leaf(net, real, 1, (size_t[]){7});
    leaf(net, real, 2, (size_t[]){3, 5});
}

#endif
