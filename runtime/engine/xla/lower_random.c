/* SPDX-License-Identifier: MIT */
/* Dropout and random tensors, by the bits of kernels/philox.h; rotary position embedding. */
#include "kernels/philox.h"
#include "runtime/engine/xla/lower_private.h"

#include <math.h>
#include <stdlib.h>

/* A word of the tape's seed and step. */
static struct pl_hlo_value word(struct pl_lower *l, size_t which, struct pl_hlo_value like)
{
    return pl_hlo_repeat(l->h, pl_hlo_slice(l->h, l->draw, 0, which, 1), like);
}

/* The words of a product with a constant. */
static void multiply(struct pl_hlo *h,
                     struct pl_hlo_value a,
                     uint32_t factor,
                     struct pl_hlo_value *ret_high,
                     struct pl_hlo_value *ret_low)
{
    struct pl_hlo_value wide =
        pl_hlo_with(h, "multiply", pl_hlo_convert(h, a, "ui64"), (double)factor);

    *ret_low = pl_hlo_convert(h, wide, "ui32");
    *ret_high = pl_hlo_convert(h, pl_hlo_with(h, "shift_right_logical", wide, 32), "ui32");
}

/* pl_philox(seed, (number << 32) + i, step) for i < n / 4: the first n of their words. */
static struct pl_hlo_value philox(struct pl_lower *l, size_t count, uint32_t number)
{
    size_t n = (count + 3) / 4, all = 4 * n;
    struct pl_hlo *h = l->h;
    struct pl_hlo_value c[4], key[2], words[4], a_high, a_low, b_high, b_low;

    c[0] = pl_hlo_iota(h, "ui32", 1, &n, 0);
    c[1] = pl_hlo_fill_like(h, c[0], number);
    for (size_t k = 0; k < 2; k++) {
        key[k] = word(l, k, c[0]);
        c[2 + k] = word(l, 2 + k, c[0]);
    }
    for (int round = 0; round < 10; round++) {
        multiply(h, c[0], 0xd2511f53u, &a_high, &a_low);
        multiply(h, c[2], 0xcd9e8d57u, &b_high, &b_low);
        c[0] = pl_hlo_two(h, "xor", pl_hlo_two(h, "xor", b_high, c[1]), key[0]);
        c[1] = b_low;
        c[2] = pl_hlo_two(h, "xor", pl_hlo_two(h, "xor", a_high, c[3]), key[1]);
        c[3] = a_low;
        key[0] = pl_hlo_with(h, "add", key[0], 0x9e3779b9u);
        key[1] = pl_hlo_with(h, "add", key[1], 0xbb67ae85u);
    }
    for (size_t k = 0; k < 4; k++)
        words[k] = pl_hlo_reshape2(h, c[k], n, 1);
    return pl_hlo_slice(h, pl_hlo_reshape(h, pl_hlo_concat(h, words, 4, 1), 1, &all), 0, 0, count);
}

/* dropout: kept[0]: which elements are dropped */

static struct pl_hlo_value drop(struct pl_lower *l, size_t i, struct pl_hlo_value x)
{
    struct pl_hlo_value kept;

    x = pl_hlo_reshape_like(l->h, x, l->kept[i][0]);
    kept = pl_hlo_with(l->h, "multiply", x, 1 / (1 - pl_lower_node(l, i)->attr.f[0]));
    return pl_hlo_select(l->h, l->kept[i][0], pl_hlo_fill_like(l->h, x, 0), kept);
}

void pl_lower_dropout_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo_value bits = philox(l, node->out->count, (uint32_t)node->attr.i[0]);

    l->kept[i][0] = pl_hlo_compare(l->h, "LT", bits,
                                   pl_hlo_fill_like(l->h, bits, pl_dropout_limit(node->attr.f[0])));
    pl_lower_set(l, i, drop(l, i, pl_lower_in(l, i, 0)));
}

void pl_lower_dropout_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, drop(l, i, dy));
}

/* ---- random tensors ---- */

/* number / 2^shift, in [0, 1) or as near as f32 is. */
static struct pl_hlo_value share(struct pl_hlo *h, struct pl_hlo_value bits, int drop_bits)
{
    if (drop_bits)
        bits = pl_hlo_with(h, "shift_right_logical", bits, drop_bits);
    return pl_hlo_with(h, "multiply", pl_hlo_convert(h, bits, "f32"), ldexp(1, drop_bits - 32));
}

/* Numbers 0 and 1 of four make two, 2 and 3 the other two (pl_random_normal()). */
static struct pl_hlo_value normal(struct pl_hlo *h, struct pl_hlo_value bits, size_t n)
{
    size_t pairs = (n + 1) / 2, all = 2 * pairs;
    struct pl_hlo_value length, angle, two[2];

    bits = pl_hlo_reshape2(h, bits, pairs, 2);
    /* log((number + 1) 2^-32), whose number is never 0 in f32 either. */
    length = pl_hlo_convert(h, pl_hlo_slice(h, bits, 1, 0, 1), "f32");
    length = pl_hlo_with(h, "multiply", pl_hlo_with(h, "add", length, 1), 0x1p-32);
    length = pl_hlo_with(h, "multiply", pl_hlo_one(h, "log", length), -2);
    length = pl_hlo_one(h, "sqrt", pl_hlo_with(h, "maximum", length, 0));
    angle = pl_hlo_with(h, "multiply", share(h, pl_hlo_slice(h, bits, 1, 1, 1), 0), 2 * M_PI);
    two[0] = pl_hlo_two(h, "multiply", length, pl_hlo_one(h, "cosine", angle));
    two[1] = pl_hlo_two(h, "multiply", length, pl_hlo_one(h, "sine", angle));
    return pl_hlo_slice(h, pl_hlo_reshape(h, pl_hlo_concat(h, two, 2, 1), 1, &all), 0, 0, n);
}

/* The upper half of the counters is theirs. */
void pl_lower_random_forward(struct pl_lower *l, size_t i)
{
    const struct pl_node *node = pl_lower_node(l, i);
    const struct pl_attr *at = &node->attr;
    size_t n = node->out->count;
    bool is_normal = at->i[0] == PL_RANDOM_NORMAL;
    struct pl_hlo_value bits =
        philox(l, is_normal ? n + n % 2 : n, 0x80000000u | (uint32_t)at->i[1]);
    double limit = ceil(at->f[0] * 0x1p32);
    struct pl_hlo_value y;

    if (at->i[0] == PL_RANDOM_BERNOULLI) {
        y = limit >= 0x1p32
                ? pl_hlo_fill(l->h, "f32", 1, &n, 1)
                : pl_hlo_convert(
                      l->h, pl_hlo_compare(l->h, "LT", bits, pl_hlo_fill_like(l->h, bits, limit)),
                      "f32");
        pl_lower_set(l, i, y);
        return;
    }
    y = is_normal ? normal(l->h, bits, n) : share(l->h, bits, 8);
    y = pl_hlo_with(l->h, "multiply", y, is_normal ? at->f[1] : at->f[1] - at->f[0]);
    pl_lower_set(l, i, pl_hlo_with(l->h, "add", y, at->f[0]));
}

/* ---- rotary: x [batch, time, heads, dim] as pairs ---- */

/* Cosines or sines of the angles [time, dim / 2], repeated over batch and heads. */
static struct pl_hlo_value angles(struct pl_lower *l,
                                  const struct pl_node *node,
                                  double (*of)(double),
                                  struct pl_hlo_value like)
{
    size_t time = node->out->shape[1], dim = node->out->shape[2] / (size_t)node->attr.i[0];
    size_t shape[] = {time, dim / 2};
    float *numbers = calloc(time * dim + 1, sizeof(*numbers));
    struct pl_hlo_value v = {0};

    for (size_t k = 0; numbers && k < time * (dim / 2); k++)
        numbers[k] = (float)of((double)((size_t)node->attr.i[1] + k / (dim / 2)) *
                               pow(node->attr.f[0], -2 * (double)(k % (dim / 2)) / (double)dim));
    if (numbers)
        v = pl_hlo_numbers(l->h, 2, shape, numbers);
    else
        l->h->failed = -ENOMEM;
    free(numbers);
    return numbers ? pl_hlo_broadcast(l->h, v, (size_t[]){1, 3}, 4, like.shape) : like;
}

static struct pl_hlo_value rotate(struct pl_lower *l, size_t i, struct pl_hlo_value x, bool back)
{
    const struct pl_node *node = pl_lower_node(l, i);
    struct pl_hlo *h = l->h;
    size_t batch = node->out->shape[0], time = node->out->shape[1];
    size_t heads = (size_t)node->attr.i[0], half = node->out->shape[2] / heads / 2;
    size_t four[] = {batch, time, heads, half};
    bool together = node->attr.i[2];
    size_t pairs[] = {batch, time, heads, together ? half : 2, together ? 2 : half};
    struct pl_hlo_value one, two, c, s, y[2];

    x = pl_hlo_reshape(h, x, 5, pairs);
    one = pl_hlo_reshape(h, pl_hlo_slice(h, x, together ? 4 : 3, 0, 1), 4, four);
    two = pl_hlo_reshape(h, pl_hlo_slice(h, x, together ? 4 : 3, 1, 1), 4, four);
    c = angles(l, node, cos, one);
    s = angles(l, node, sin, one);
    if (back)
        s = pl_hlo_one(h, "negate", s);
    y[0] = pl_hlo_two(h, "subtract", pl_hlo_two(h, "multiply", one, c),
                      pl_hlo_two(h, "multiply", two, s));
    y[1] =
        pl_hlo_two(h, "add", pl_hlo_two(h, "multiply", one, s), pl_hlo_two(h, "multiply", two, c));
    pairs[together ? 4 : 3] = 1;
    y[0] = pl_hlo_reshape(h, y[0], 5, pairs);
    y[1] = pl_hlo_reshape(h, y[1], 5, pairs);
    return pl_hlo_concat(h, y, 2, together ? 4 : 3);
}

void pl_lower_rotary_forward(struct pl_lower *l, size_t i)
{
    pl_lower_set(l, i, rotate(l, i, pl_lower_in(l, i, 0), false));
}

void pl_lower_rotary_backward(struct pl_lower *l, size_t i, struct pl_hlo_value dy)
{
    pl_lower_add(l, i, 0, rotate(l, i, dy, true));
}
