/* SPDX-License-Identifier: MIT */
/* Functions of a few leaf tensors that have every op with a gradient in them, as modules call it.
 */
#ifndef PL_TESTS_UNIT_ENGINE_ENGINE_CASES_H
#define PL_TESTS_UNIT_ENGINE_ENGINE_CASES_H

#include "tests/unit/engine/ops/engine_op.h"

/* A loss that weighs each element of x differently: sum x_i sin(i + 1), by way of t[last]. */
static plume_tensor *weigh(struct net *net, plume_tensor *x)
{
    plume_tensor *flat = OP(PLUME_OP_RESHAPE, ARGS({1, 0}, {0}), x);
    plume_tensor *weights = OP(PLUME_OP_SLICE, ARGS({0, 0, (int64_t)x->count}, {0}), &net->t[7]);
    plume_tensor *product = OP(PLUME_OP_BINARY, ARGS({2}, {0}), flat, weights);

    return OP(PLUME_OP_REDUCE, ARGS({0, 9, 0, 0}, {0}), product);
}

static plume_tensor *f_unary(struct net *net)
{
    plume_tensor *x = &net->t[0];

    for (int64_t act = PLUME_GELU; act <= PLUME_SIGMOID; act++)
        x = OP(PLUME_OP_UNARY, ARGS({act}, {0}), x);
    return weigh(net, x);
}

/* Its kink is far from what is random here. */
static plume_tensor *f_relu(struct net *net)
{
    return weigh(net, OP(PLUME_OP_UNARY, ARGS({PLUME_RELU}, {0}), &net->t[0]));
}

static plume_tensor *f_linear_activated(struct net *net)
{
    plume_tensor *x = &net->t[0];
    plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]);

    for (int64_t act = PLUME_GELU; act <= PLUME_SIGMOID; act++) {
        plume_tensor *h = OP(PLUME_OP_LINEAR, ARGS({act}, {0}), x, w); /* [4, 4] */

        x = OP(PLUME_OP_LINEAR, ARGS({act}, {0}), h,
               OP(PLUME_OP_RESHAPE, ARGS({2, 6, 4}, {0}), &net->t[3]), &net->t[1]);
    }
    return weigh(net, x);
}

static plume_tensor *f_binary(struct net *net)
{
    plume_tensor *x = &net->t[0], *b = &net->t[1], *one = &net->t[6];

    for (int64_t kind = 0; kind < 4; kind++) { /* the row, one element, the same shape */
        x = OP(PLUME_OP_BINARY, ARGS({kind}, {0}), x, b);
        x = OP(PLUME_OP_BINARY, ARGS({kind}, {0}), x, one);
        x = OP(PLUME_OP_BINARY, ARGS({kind}, {0}), x, &net->t[0]);
    }
    x = OP(PLUME_OP_BINARY, ARGS({2}, {0}), b, x); /* the other way round */
    return weigh(net, x);
}

/* Both are repeated, in the front, the middle and the end; one tensor twice. */
static plume_tensor *f_broadcast(struct net *net)
{
    plume_tensor *a = OP(PLUME_OP_RESHAPE, ARGS({4, 4, 1, 6, 1}, {0}), &net->t[0]);
    plume_tensor *b = OP(PLUME_OP_RESHAPE, ARGS({3, 6, 1, 1}, {0}), &net->t[1]);
    plume_tensor *row = OP(PLUME_OP_RESHAPE, ARGS({2, 6, 1}, {0}), &net->t[1]);
    plume_tensor *x = OP(PLUME_OP_BINARY, ARGS({1}, {0}),
                         OP(PLUME_OP_EXPAND, ARGS({2, 6, 6}, {0}), row), &net->t[1]); /* [6, 6] */
    plume_tensor *y = OP(PLUME_OP_BINARY, ARGS({2}, {0}), b, a); /* [4, 6, 6, 1] */

    y = OP(PLUME_OP_REDUCE, ARGS({0, 1, 0, 1}, {0}), y); /* [6, 6, 1] */
    return OP(PLUME_OP_BINARY, NONE, weigh(net, x), weigh(net, y));
}

static plume_tensor *f_square(struct net *net)
{
    return weigh(net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), &net->t[0], &net->t[0]));
}

/* Every function, of numbers where it has one slope; the sums differ in size. */
static plume_tensor *f_map(struct net *net)
{
    plume_tensor *square = OP(PLUME_OP_BINARY, ARGS({2}, {0}), &net->t[0], &net->t[0]);
    plume_tensor *positive = OP(PLUME_OP_AFFINE, ARGS({0}, {1, 0.5}), square), *sum = NULL;

    for (int64_t fn = PLUME_MAP_EXP; fn <= PLUME_MAP_TAN; fn++) {
        plume_tensor *y = fn == PLUME_MAP_CLAMP ? OP(PLUME_OP_MAP, ARGS({fn}, {0.1, 9}), positive)
                                                : OP(PLUME_OP_MAP, ARGS({fn}, {1.5, 0}), positive);

        if (fn == PLUME_MAP_TAN) /* far from its poles */
            y = OP(PLUME_OP_MAP, ARGS({fn}, {0}),
                   OP(PLUME_OP_AFFINE, ARGS({0}, {0.1, 0}), positive));
        if (fn == PLUME_MAP_ELU || fn == PLUME_MAP_LEAKY) /* the other side */
            y = OP(PLUME_OP_MAP, ARGS({fn}, {0.3, 0}), OP(PLUME_OP_AFFINE, ARGS({0}, {-1, 0}), y));
        sum = sum ? OP(PLUME_OP_BINARY, NONE, sum, weigh(net, y)) : weigh(net, y);
    }
    return sum;
}

/* Chosen by position, so that roundings choose no other: a row, a column and one element. */
static plume_tensor *f_choose(struct net *net)
{
    plume_tensor *a = &net->t[0], *row = &net->t[1];
    plume_tensor *five =
        op(net, PLUME_OP_FULL, 0, NULL, (struct plume_op_args)ARGS({2, 1, 1}, {5}));
    plume_tensor *mask = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_NE}, {0}), a, a); /* 0 */
    plume_tensor *first = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_WHERE}, {0}), mask, a, row);
    plume_tensor *least = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_MIN}, {0}), five, a);
    plume_tensor *most = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_MAX}, {0}), a, a); /* halves */
    plume_tensor *last = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_WHERE}, {0}), five, first, least);

    mask = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_LT}, {0}), five, a);
    last = OP(PLUME_OP_CHOOSE, ARGS({PLUME_CHOOSE_WHERE}, {0}), mask, five, last);
    return OP(PLUME_OP_BINARY, NONE, weigh(net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), last, most)),
              weigh(net, least));
}

static plume_tensor *f_affine(struct net *net)
{
    plume_tensor *two = op(net, PLUME_OP_FULL, 0, NULL, (struct plume_op_args)ARGS({1, 1}, {2}));
    plume_tensor *x = OP(PLUME_OP_AFFINE, ARGS({0}, {-1.5, 0.25}), &net->t[0]);

    return weigh(net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), x, OP(PLUME_OP_DETACH, NONE, two)));
}

static plume_tensor *f_reduce(struct net *net)
{
    plume_tensor *c = &net->t[2];
    plume_tensor *parts[] = {
        OP(PLUME_OP_REDUCE, ARGS({0, 1, 0, 1}, {0}), c), /* [3, 4] */
        OP(PLUME_OP_REDUCE, ARGS({1, 2, 0, 0}, {0}), c), /* [2, 4] */
    };
    plume_tensor *row = OP(PLUME_OP_REDUCE, ARGS({2, 3, 1, 1}, {0}), c); /* [2, 3, 1] */
    plume_tensor *joined = op(net, PLUME_OP_CAT, 2, parts, (struct plume_op_args)NONE); /* [5, 4] */
    plume_tensor *sum = OP(PLUME_OP_BINARY, NONE, weigh(net, joined), weigh(net, row));

    return OP(PLUME_OP_BINARY, NONE, sum, OP(PLUME_OP_REDUCE, ARGS({0, 3, 0, 1}, {0}), c));
}

static plume_tensor *f_matmul(struct net *net)
{
    plume_tensor *c = &net->t[2], *d = &net->t[3], *sum = NULL;

    /* c d, c^T d^T as stored the other way round, each also by one matrix for all. */
    for (int64_t way = 0; way < 2; way++) {
        plume_tensor *product = OP(PLUME_OP_MATMUL, ARGS({way, way}, {0}), c, d);
        plume_tensor *one = OP(PLUME_OP_SLICE, ARGS({0, 1, 1}, {0}), d);
        plume_tensor *flat = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 3}, {0}), one);
        plume_tensor *shared = OP(PLUME_OP_MATMUL, ARGS({way, way}, {0}), c, flat);
        plume_tensor *both = OP(PLUME_OP_BINARY, NONE, weigh(net, product), weigh(net, shared));

        sum = sum ? OP(PLUME_OP_BINARY, NONE, sum, both) : both;
    }
    /* c c^T, of one tensor. */
    return OP(PLUME_OP_BINARY, NONE, sum, weigh(net, OP(PLUME_OP_MATMUL, ARGS({0, 1}, {0}), c, c)));
}

static plume_tensor *f_layernorm(struct net *net)
{
    plume_tensor *x = OP(PLUME_OP_LAYERNORM, NONE, &net->t[0]);

    return weigh(net, OP(PLUME_OP_LAYERNORM, NONE, x, &net->t[1],
                         OP(PLUME_OP_AFFINE, ARGS({0}, {2, 1}), &net->t[1])));
}

static plume_tensor *f_softmax(struct net *net)
{
    plume_tensor *x = OP(PLUME_OP_SOFTMAX, NONE, &net->t[0]);

    return weigh(net,
                 OP(PLUME_OP_SOFTMAX, ARGS({1}, {0}), OP(PLUME_OP_AFFINE, ARGS({0}, {3, 0}), x)));
}

static plume_tensor *f_losses(struct net *net)
{
    plume_tensor *d = OP(PLUME_OP_RESHAPE, ARGS({2, 2, 12}, {0}), &net->t[3]);
    plume_tensor *a = OP(PLUME_OP_MSE, NONE, &net->t[2], d);

    return OP(PLUME_OP_BINARY, NONE, a, OP(PLUME_OP_CROSS_ENTROPY, NONE, &net->t[0], &net->t[4]));
}

static plume_tensor *f_embedding(struct net *net)
{
    plume_tensor *y = OP(PLUME_OP_EMBEDDING, NONE, &net->t[5], &net->t[4]); /* [4, 3] */

    return weigh(net, OP(PLUME_OP_NORMALIZE, NONE, y));
}

/* Elements chosen several times and not at all, by given and by found positions. The labels [4] of
 * [0, 5) choose rows, and columns 0 to 4 of each row. */
static plume_tensor *f_index(struct net *net)
{
    plume_tensor *a = &net->t[0], *c = &net->t[2]; /* [4, 6], [2, 3, 4] */
    plume_tensor *column = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 1}, {0}), &net->t[4]);
    plume_tensor *x = OP(PLUME_OP_GATHER, ARGS({1, 0}, {0}), a, column);              /* [4, 1] */
    plume_tensor *y = OP(PLUME_OP_GATHER, ARGS({0, 1}, {0}), &net->t[1], &net->t[4]); /* [4] */
    plume_tensor *most = OP(PLUME_OP_TOP, ARGS({1, 2, 0, 1}, {0}), c);       /* [2, 2, 4] */
    plume_tensor *z = OP(PLUME_OP_GATHER, ARGS({1, 0, 1, 1}, {0}), c, most); /* not those at 1 */
    plume_tensor *hot = OP(PLUME_OP_ONE_HOT, ARGS({6}, {0}), &net->t[4]);    /* [4, 6] */
    plume_tensor *sum = OP(PLUME_OP_CUMSUM, ARGS({1}, {0}), c);
    plume_tensor *last =
        op(net, PLUME_OP_RANGE, 0, NULL, (struct plume_op_args)ARGS({4, 3, -1}, {0}));
    plume_tensor *src;

    z = OP(PLUME_OP_GATHER, ARGS({2, 1}, {0}), z, last);        /* the other way round */
    src = z;                                                    /* has another use, too */
    z = OP(PLUME_OP_SCATTER_ADD, ARGS({1}, {0}), c, most, src); /* [2, 3, 4] */
    last = OP(PLUME_OP_WHOLE, ARGS({4}, {0}), last,
              op(net, PLUME_OP_RANGE, 0, NULL,
                 (struct plume_op_args)ARGS({1, 3, 1}, {0}))); /* 0, 2, 1, 0 */
    /* what counts is where a label is at most that */
    y = OP(PLUME_OP_BINARY, ARGS({2}, {0}), y,
           OP(PLUME_OP_WHOLE, ARGS({6}, {0}), &net->t[4], last));
    z = OP(PLUME_OP_SCATTER_ADD, ARGS({2, 1}, {0}), z, last, z);
    a = OP(PLUME_OP_SCATTER_ADD, ARGS({0, 1}, {0}), a, last, a);
    sum = OP(PLUME_OP_BINARY, NONE, weigh(net, sum),
             weigh(net, OP(PLUME_OP_CUMSUM, ARGS({0, 1}, {0}), c)));
    sum = OP(PLUME_OP_BINARY, NONE, sum, weigh(net, src));
    x = OP(PLUME_OP_BINARY, ARGS({2}, {0}), x, OP(PLUME_OP_BINARY, ARGS({2}, {0}), a, hot));
    x = OP(PLUME_OP_BINARY, NONE, weigh(net, x), weigh(net, y));
    return OP(PLUME_OP_BINARY, NONE, OP(PLUME_OP_BINARY, NONE, x, weigh(net, z)), sum);
}

static plume_tensor *f_dropout(struct net *net)
{
    return weigh(net, OP(PLUME_OP_DROPOUT, ARGS({0}, {0.4}), &net->t[0]));
}

/* Views of views, overlapping and not, dense and not. */
static plume_tensor *f_views(struct net *net)
{
    plume_tensor *c = OP(PLUME_OP_AFFINE, ARGS({0}, {2, 0}), &net->t[2]); /* [2, 3, 4] */
    plume_tensor *t = OP(PLUME_OP_PERMUTE, ARGS({2, 0, 1}, {0}), c);      /* [4, 2, 3] */
    plume_tensor *flat = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), t);   /* copies */
    plume_tensor *left = OP(PLUME_OP_SLICE, ARGS({1, 0, 4}, {0}), flat);  /* [4, 4] */
    plume_tensor *right = OP(PLUME_OP_SLICE, ARGS({1, 2, 4}, {0}), flat); /* overlaps */
    plume_tensor *once = OP(PLUME_OP_BINARY, ARGS({2}, {0}), left, right);

    return OP(PLUME_OP_BINARY, NONE, weigh(net, once), weigh(net, t));
}

/* Views that make all of their base: written, not added to. */
static plume_tensor *f_covering_views(struct net *net)
{
    plume_tensor *x = OP(PLUME_OP_AFFINE, ARGS({0}, {2, 0}), &net->t[0]); /* [4, 6] */
    plume_tensor *a = OP(PLUME_OP_SLICE, ARGS({1, 0, 2}, {0}), x);
    plume_tensor *b = OP(PLUME_OP_SLICE, ARGS({1, 2, 4}, {0}), x);

    return OP(PLUME_OP_BINARY, ARGS({2}, {0}), weigh(net, a), weigh(net, b));
}

/* Along the last and the middle dimension, a part given twice, and i32. */
static plume_tensor *f_cat(struct net *net)
{
    plume_tensor *c = &net->t[2], *d = &net->t[3]; /* [2, 3, 4], [2, 4, 3] */
    plume_tensor *turned = OP(PLUME_OP_PERMUTE, ARGS({0, 2, 1}, {0}), d);
    plume_tensor *last = OP(PLUME_OP_CAT, ARGS({2}, {0}), c, turned, c); /* [2, 3, 12] */
    plume_tensor *piece = OP(PLUME_OP_SLICE, ARGS({2, 1, 3}, {0}), last);
    plume_tensor *middle = OP(PLUME_OP_CAT, ARGS({1}, {0}), piece, d); /* [2, 7, 3] */

    return OP(PLUME_OP_BINARY, NONE, weigh(net, middle),
              weigh(net, OP(PLUME_OP_REDUCE, ARGS({1, 2, 0, 0}, {0}), last)));
}

/* Rows of one tensor against rows of another, each its own label. */
static plume_tensor *f_info_nce(struct net *net)
{
    plume_tensor *b = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]);
    plume_tensor *left = OP(PLUME_OP_NORMALIZE, NONE, &net->t[0]);
    plume_tensor *right = OP(PLUME_OP_NORMALIZE, NONE, b);
    plume_tensor *all = OP(PLUME_OP_MATMUL, ARGS({0, 1}, {0}), left, right);
    plume_tensor *own = op(net, PLUME_OP_ARANGE, 0, NULL, (struct plume_op_args)ARGS({4}, {0}));

    return OP(PLUME_OP_CROSS_ENTROPY, NONE, OP(PLUME_OP_AFFINE, ARGS({0}, {5, 0}), all), own);
}

static plume_tensor *f_attention(struct net *net)
{
    plume_tensor *q = &net->t[2], *flat = OP(PLUME_OP_RESHAPE, ARGS({3, 1, 4, 6}, {0}), &net->t[0]);
    plume_tensor *k = OP(PLUME_OP_RESHAPE, ARGS({3, 2, 3, 4}, {0}), &net->t[3]);
    plume_tensor *v = OP(PLUME_OP_PERMUTE, ARGS({0, 2, 1}, {0}), &net->t[3]);
    plume_tensor *y = OP(PLUME_OP_ATTENTION, ARGS({2, 0}, {0}), q, k, v);

    y = OP(PLUME_OP_ATTENTION, ARGS({1, 1}, {0}), y, y, q); /* one tensor twice */
    flat = OP(PLUME_OP_ATTENTION, ARGS({2, 1}, {0}), flat); /* packed: [1, 4, 2] */
    return OP(PLUME_OP_BINARY, NONE, weigh(net, y), weigh(net, flat));
}

static plume_tensor *f_image(struct net *net)
{
    plume_tensor *x = OP(PLUME_OP_RESHAPE, ARGS({4, 1, 2, 3, 4}, {0}), &net->t[0]);
    plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({4, 2, 2, 2, 3}, {0}), &net->t[2]);
    plume_tensor *b = OP(PLUME_OP_SLICE, ARGS({0, 1, 2}, {0}), &net->t[1]);
    plume_tensor *y = OP(PLUME_OP_CONV2D, ARGS({1, 1, PLUME_IDENTITY}, {0}), x, w, b);
    plume_tensor *z = OP(PLUME_OP_CONV2D, ARGS({2, 0, PLUME_RELU}, {0}), x, w);

    y = OP(PLUME_OP_POOL2D, ARGS({2, 2, 0, 0}, {0}), y); /* [1, 2, 2, 2] */
    y = OP(PLUME_OP_POOL2D, ARGS({2, 1, 1, 1}, {0}), y); /* [1, 2, 3, 3] */
    return OP(PLUME_OP_BINARY, NONE, weigh(net, y), weigh(net, z));
}

/* Two groups, dilation and unequal strides; a transposed one; both also plain, with an activation.
 */
static plume_tensor *f_convs(struct net *net)
{
    plume_tensor *x = OP(PLUME_OP_RESHAPE, ARGS({4, 1, 2, 3, 4}, {0}), &net->t[0]);
    plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({4, 2, 1, 3, 4}, {0}), &net->t[2]);
    plume_tensor *b = OP(PLUME_OP_SLICE, ARGS({0, 1, 2}, {0}), &net->t[1]);
    plume_tensor *all = OP(PLUME_OP_RESHAPE, ARGS({4, 2, 2, 2, 3}, {0}), &net->t[3]);
    struct plume_op_args how = {{PAIR(1, 2), PAIR(2, 1), PAIR(2, 1), 0, 2, PLUME_IDENTITY},
                                {0}}; /* [1, 2, 3, 2] */
    plume_tensor *in[] = {x, w, b}, *y = op(net, PLUME_OP_CONV, 3, in, how), *z;

    how.i[2] = PAIR(1, 1);
    how.i[4] = 1;
    how.i[5] = PLUME_TANH;
    in[1] = all;
    z = op(net, PLUME_OP_CONV, 3, in, how);
    how.i[1] = how.i[3] = PAIR(0, 1);
    z = OP(PLUME_OP_BINARY, NONE, weigh(net, z),
           weigh(net, op(net, PLUME_OP_CONV_TRANSPOSE, 3, in, how)));
    how.i[4] = 2;
    in[1] = w;
    in[0] = y;
    return OP(PLUME_OP_BINARY, NONE, z, weigh(net, op(net, PLUME_OP_CONV_TRANSPOSE, 2, in, how)));
}

/* To more and to fewer, along the middle and the last dimension. */
static plume_tensor *f_resample(struct net *net)
{
    plume_tensor *c = &net->t[2], *sum = NULL; /* [2, 3, 4] */

    for (int64_t mode = 0; mode < 4; mode++) {
        plume_tensor *x = OP(PLUME_OP_RESAMPLE, ARGS({1, 5, mode}, {0}), c);

        x = weigh(net, OP(PLUME_OP_RESAMPLE, ARGS({2, 3, mode}, {0}), x));
        sum = sum ? OP(PLUME_OP_BINARY, NONE, sum, x) : x;
    }
    return sum;
}

/* Turned by position and noise that is the same each time. */
static plume_tensor *f_rotary(struct net *net)
{
    plume_tensor *c = &net->t[2];
    plume_tensor *x = OP(PLUME_OP_ROTARY, ARGS({2, 3, 0}, {100}), c);
    plume_tensor *y = OP(PLUME_OP_ROTARY, ARGS({1, 0, 1}, {100}), c);
    plume_tensor *noise =
        op(net, PLUME_OP_RANDOM, 0, NULL, (struct plume_op_args)ARGS({0, 3, 2, 3, 4}, {-1, 1}));

    return weigh(
        net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), x, OP(PLUME_OP_BINARY, ARGS({2}, {0}), y, noise)));
}

/* A part of t[7] in another shape. */
static plume_tensor *
some(struct net *net, int64_t first, size_t rank, int64_t a, int64_t b, int64_t c)
{
    int64_t n = a * b * c;
    plume_tensor *part = OP(PLUME_OP_SLICE, ARGS({0, first, n}, {0}), &net->t[7]);

    return OP(PLUME_OP_RESHAPE, ARGS({(int64_t)rank, a, b, c}, {0}), part);
}

/* With a first and a last state, one input twice; without; and of one time, whose weight gets no
 * gradient. */
static plume_tensor *f_lstm(struct net *net)
{
    plume_tensor *x = some(net, 0, 3, 2, 2, 8), *w = some(net, 32, 2, 8, 2, 1);
    plume_tensor *first = some(net, 48, 2, 2, 2, 1), *short_w = some(net, 60, 2, 4, 1, 1);
    plume_tensor *y = OP(PLUME_OP_LSTM, ARGS({1}, {0}), x, w, first, some(net, 52, 2, 2, 2, 1));
    plume_tensor *z = OP(PLUME_OP_LSTM, ARGS({1}, {0}), x, w, first, first);
    plume_tensor *rows = OP(PLUME_OP_LSTM, NONE, &net->t[2], short_w);
    plume_tensor *one = OP(PLUME_OP_RESHAPE, ARGS({3, 6, 1, 4}, {0}), &net->t[0]);

    y = weigh(net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), y, z));
    y = OP(PLUME_OP_BINARY, NONE, y, weigh(net, rows));
    rows = OP(PLUME_OP_LSTM, NONE, one, some(net, 56, 2, 4, 1, 1));
    return OP(PLUME_OP_BINARY, NONE, y, weigh(net, rows));
}

/* With bias and first state, a tensor twice; without; with one of them; and of one time, whose
 * weight gets no gradient. */
static plume_tensor *f_gru(struct net *net)
{
    plume_tensor *x = some(net, 0, 3, 2, 2, 6), *w = some(net, 24, 2, 6, 2, 1);
    plume_tensor *bias = some(net, 36, 1, 6, 1, 1), *first = some(net, 42, 2, 2, 2, 1);
    plume_tensor *y = OP(PLUME_OP_GRU, ARGS({1}, {0}), x, w, bias, first);
    plume_tensor *z = OP(PLUME_OP_GRU, ARGS({0}, {0}), x, w, first);
    plume_tensor *one = some(net, 46, 3, 4, 1, 3), *short_w = some(net, 58, 2, 3, 1, 1);

    y = weigh(net, OP(PLUME_OP_BINARY, ARGS({2}, {0}), y, z));
    z = OP(PLUME_OP_GRU, ARGS({1}, {0}), x, w, bias);
    y = OP(PLUME_OP_BINARY, NONE, y, weigh(net, z));
    return OP(PLUME_OP_BINARY, NONE, y, weigh(net, OP(PLUME_OP_GRU, NONE, one, short_w)));
}

static plume_tensor *f_batchnorm(struct net *net)
{
    plume_tensor *w = OP(PLUME_OP_SLICE, ARGS({0, 0, 3}, {0}), &net->t[1]);
    plume_tensor *b = OP(PLUME_OP_SLICE, ARGS({0, 3, 3}, {0}), &net->t[1]);
    plume_tensor *x = OP(PLUME_OP_BATCHNORM, NONE, &net->t[2], w, b, &net->t[8], &net->t[9]);

    return weigh(net, OP(PLUME_OP_BATCHNORM, ARGS({PLUME_RELU}, {1e-3, 0.2}), x, w, b, &net->t[8],
                         &net->t[9]));
}

static const struct {
    const char *name;
    function f;
    double roundings; /* that gradients may be apart, relative to the largest; 0: any */
} cases[] = {
    {"relu", f_relu, 16},
    {"unary", f_unary, 16},
    {"linear_activated", f_linear_activated, 96},
    {"binary", f_binary, 0}, /* divides by numbers near 0 */
    {"broadcast", f_broadcast, 16},
    {"square", f_square, 16},
    {"map", f_map, 16},
    {"choose", f_choose, 16},
    {"affine", f_affine, 16},
    {"reduce", f_reduce, 16},
    {"matmul", f_matmul, 16},
    {"layernorm", f_layernorm, 16},
    {"softmax", f_softmax, 16},
    {"losses", f_losses, 16},
    {"embedding", f_embedding, 16},
    {"index", f_index, 16},
    {"dropout", f_dropout, 16},
    {"cat", f_cat, 16},
    {"info_nce", f_info_nce, 16},
    {"attention", f_attention, 16},
    {"image", f_image, 16},
    {"convs", f_convs, 16},
    {"resample", f_resample, 16},
    {"rotary", f_rotary, 16},
    {"lstm", f_lstm, 16},
    {"gru", f_gru, 16},
    {"batchnorm", f_batchnorm, 16},
    {"views", f_views, 16},
    {"covering_views", f_covering_views, 16},
};

/* The largest difference of a gradient of `a` from b's, relative to b's largest element. */
static PL_UNUSED double gradient_apart(const struct net *a, const struct net *b)
{
    double worst = 0;

    for (size_t i = 0; i < a->n; i++) {
        double largest = 1e-3, apart = 0;

        for (size_t k = 0; a->t[i].wants_grad && k < a->t[i].count; k++) {
            double want = ((double *)b->t[i].grad)[k];

            largest = fmax(largest, fabs(want));
            apart = fmax(apart, fabs(((float *)a->t[i].grad)[k] - want));
        }
        worst = fmax(worst, apart / largest);
    }
    return worst;
}

#endif
