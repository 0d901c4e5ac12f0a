/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/hlo.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

void pl_hlo_finish(struct pl_hlo *h)
{
    pl_buf_finish(&h->text);
    *h = (struct pl_hlo){0};
}

size_t pl_hlo_count(const struct pl_hlo_value *v)
{
    size_t count = 1;

    for (size_t i = 0; i < v->rank; i++)
        count *= v->shape[i];
    return count;
}

static void keep(struct pl_hlo *h, int r)
{
    if (r < 0)
        h->failed = r;
}

void pl_hlo_type_text(struct pl_hlo *h, struct pl_buf *text, const struct pl_hlo_value *v)
{
    keep(h, pl_buf_adds(text, "tensor<"));
    for (size_t i = 0; i < v->rank; i++)
        keep(h, pl_buf_addf(text, "%zux", v->shape[i]));
    keep(h, pl_buf_addf(text, "%s>", v->type));
}

/* Appends a type to the running line. */
static void type(struct pl_hlo *h, struct pl_hlo_value v)
{
    pl_hlo_type_text(h, &h->text, &v);
}

static void PL_PRINTF(2, 3) add(struct pl_hlo *h, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    keep(h, n >= 0 && (size_t)n < sizeof(text) ? pl_buf_adds(&h->text, text) : -ENOMEM);
}

void pl_hlo_line(struct pl_hlo *h, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    keep(h, n >= 0 && (size_t)n < sizeof(text) ? pl_buf_adds(&h->text, text) : -ENOMEM);
}

struct pl_hlo_value pl_hlo_new(struct pl_hlo *h, const char *of, size_t rank, const size_t *shape)
{
    struct pl_hlo_value v = {.id = ++h->next, .type = of, .rank = rank};

    for (size_t i = 0; i < rank; i++)
        v.shape[i] = shape[i];
    return v;
}

/* " : (TYPES OF n OPERANDS) -> TYPE\n" */
static void
signature(struct pl_hlo *h, const struct pl_hlo_value *in, size_t n, struct pl_hlo_value out)
{
    add(h, " : (");
    for (size_t i = 0; i < n; i++) {
        add(h, i ? ", " : "");
        type(h, in[i]);
    }
    add(h, ") -> ");
    type(h, out);
    add(h, "\n");
}

/* "[1, 2]" */
static void list(struct pl_hlo *h, const size_t *numbers, size_t n)
{
    add(h, "[");
    for (size_t i = 0; i < n; i++)
        add(h, i ? ", %zu" : "%zu", numbers[i]);
    add(h, "]");
}

static void signed_list(struct pl_hlo *h, const int64_t *numbers, size_t n)
{
    add(h, "[");
    for (size_t i = 0; i < n; i++)
        add(h, i ? ", %lld" : "%lld", (long long)numbers[i]);
    add(h, "]");
}

struct pl_hlo_value
pl_hlo_fill(struct pl_hlo *h, const char *of, size_t rank, const size_t *shape, double number)
{
    struct pl_hlo_value v;

    if (strcmp(of, "bf16") == 0)
        return pl_hlo_convert(h, pl_hlo_fill(h, "f32", rank, shape, number), of);
    v = pl_hlo_new(h, of, rank, shape);
    add(h, "    %%%u = stablehlo.constant dense<", v.id);
    if (strcmp(of, "f32") != 0)
        add(h, "%.0f", number);
    else if (isnan(number))
        add(h, "0x7FC00000");
    else if (isinf(number))
        add(h, number > 0 ? "0x7F800000" : "0xFF800000");
    else
        add(h, "%.9e", (double)(float)number);
    add(h, "> : ");
    type(h, v);
    add(h, "\n");
    return v;
}

struct pl_hlo_value
pl_hlo_numbers(struct pl_hlo *h, size_t rank, const size_t *shape, const float *numbers)
{
    struct pl_hlo_value v = pl_hlo_new(h, "f32", rank, shape);
    const unsigned char *bytes = (const unsigned char *)numbers;

    /* One number in this form would be the bits of all. */
    if (pl_hlo_count(&v) == 1)
        return pl_hlo_fill(h, "f32", rank, shape, (double)numbers[0]);
    add(h, "    %%%u = stablehlo.constant dense<\"0x", v.id);
    for (size_t i = 0; i < pl_hlo_count(&v) * sizeof(*numbers); i++)
        add(h, "%02X", bytes[i]);
    add(h, "\"> : ");
    type(h, v);
    add(h, "\n");
    return v;
}

struct pl_hlo_value pl_hlo_fill_like(struct pl_hlo *h, struct pl_hlo_value v, double number)
{
    return pl_hlo_fill(h, v.type, v.rank, v.shape, number);
}

struct pl_hlo_value
pl_hlo_two(struct pl_hlo *h, const char *op, struct pl_hlo_value a, struct pl_hlo_value b)
{
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    add(h, "    %%%u = stablehlo.%s %%%u, %%%u : ", v.id, op, a.id, b.id);
    type(h, v);
    add(h, "\n");
    return v;
}

struct pl_hlo_value
pl_hlo_with(struct pl_hlo *h, const char *op, struct pl_hlo_value a, double number)
{
    return pl_hlo_two(h, op, a, pl_hlo_fill_like(h, a, number));
}

struct pl_hlo_value pl_hlo_one(struct pl_hlo *h, const char *op, struct pl_hlo_value a)
{
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    add(h, "    %%%u = stablehlo.%s %%%u : ", v.id, op, a.id);
    type(h, v);
    add(h, "\n");
    return v;
}

/* The kind of comparison is not left to the compiler: XLA folds constants of whole numbers without
 * it as if they had no sign. */
struct pl_hlo_value
pl_hlo_compare(struct pl_hlo *h, const char *how, struct pl_hlo_value a, struct pl_hlo_value b)
{
    struct pl_hlo_value v = pl_hlo_new(h, "i1", a.rank, a.shape);
    const char *kind = strcmp(a.type, "i32") == 0                      ? "SIGNED"
                       : a.type[0] == 'u' || strcmp(a.type, "i1") == 0 ? "UNSIGNED"
                                                                       : "FLOAT";

    add(h, "    %%%u = stablehlo.compare %s, %%%u, %%%u, %s", v.id, how, a.id, b.id, kind);
    signature(h, (struct pl_hlo_value[]){a, b}, 2, v);
    return v;
}

struct pl_hlo_value pl_hlo_select(struct pl_hlo *h,
                                  struct pl_hlo_value which,
                                  struct pl_hlo_value yes,
                                  struct pl_hlo_value no)
{
    struct pl_hlo_value v = pl_hlo_new(h, yes.type, yes.rank, yes.shape);

    add(h, "    %%%u = stablehlo.select %%%u, %%%u, %%%u : ", v.id, which.id, yes.id, no.id);
    type(h, which);
    add(h, ", ");
    type(h, v);
    add(h, "\n");
    return v;
}

struct pl_hlo_value pl_hlo_convert(struct pl_hlo *h, struct pl_hlo_value a, const char *to)
{
    struct pl_hlo_value v;

    if (strcmp(a.type, to) == 0)
        return a;
    v = pl_hlo_new(h, to, a.rank, a.shape);
    add(h, "    %%%u = stablehlo.convert %%%u", v.id, a.id);
    signature(h, &a, 1, v);
    return v;
}

static bool same_shape(const struct pl_hlo_value *a, size_t rank, const size_t *shape)
{
    for (size_t i = 0; i < rank && a->rank == rank; i++)
        if (a->shape[i] != shape[i])
            return false;
    return a->rank == rank;
}

struct pl_hlo_value
pl_hlo_reshape(struct pl_hlo *h, struct pl_hlo_value a, size_t rank, const size_t *shape)
{
    struct pl_hlo_value v;

    if (same_shape(&a, rank, shape))
        return a;
    v = pl_hlo_new(h, a.type, rank, shape);
    add(h, "    %%%u = stablehlo.reshape %%%u", v.id, a.id);
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value pl_hlo_reshape2(struct pl_hlo *h, struct pl_hlo_value a, size_t m, size_t n)
{
    return pl_hlo_reshape(h, a, 2, (size_t[]){m, n});
}

struct pl_hlo_value
pl_hlo_reshape_like(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value like)
{
    return pl_hlo_reshape(h, a, like.rank, like.shape);
}

struct pl_hlo_value pl_hlo_broadcast(
    struct pl_hlo *h, struct pl_hlo_value a, const size_t *dims, size_t rank, const size_t *shape)
{
    struct pl_hlo_value v;

    if (same_shape(&a, rank, shape))
        return a;
    v = pl_hlo_new(h, a.type, rank, shape);
    add(h, "    %%%u = stablehlo.broadcast_in_dim %%%u, dims = ", v.id, a.id);
    list(h, dims, a.rank);
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value
pl_hlo_along(struct pl_hlo *h, struct pl_hlo_value a, size_t dim, struct pl_hlo_value like)
{
    return pl_hlo_broadcast(h, a, &dim, like.rank, like.shape);
}

struct pl_hlo_value pl_hlo_repeat(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value like)
{
    return pl_hlo_broadcast(h, pl_hlo_reshape(h, a, 0, NULL), NULL, like.rank, like.shape);
}

struct pl_hlo_value pl_hlo_transpose(struct pl_hlo *h, struct pl_hlo_value a, const size_t *order)
{
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    for (size_t i = 0; i < a.rank; i++)
        v.shape[i] = a.shape[order[i]];
    add(h, "    %%%u = stablehlo.transpose %%%u, dims = ", v.id, a.id);
    list(h, order, a.rank);
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value
pl_hlo_slice(struct pl_hlo *h, struct pl_hlo_value a, size_t dim, size_t first, size_t count)
{
    struct pl_hlo_value v;

    if (first == 0 && count == a.shape[dim])
        return a;
    v = pl_hlo_new(h, a.type, a.rank, a.shape);
    v.shape[dim] = count;
    add(h, "    %%%u = stablehlo.slice %%%u [", v.id, a.id);
    for (size_t i = 0; i < a.rank; i++)
        add(h, "%s%zu:%zu", i ? ", " : "", i == dim ? first : 0,
            i == dim ? first + count : a.shape[i]);
    add(h, "]");
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value pl_hlo_strided_slice(struct pl_hlo *h,
                                         struct pl_hlo_value a,
                                         const size_t *first,
                                         const size_t *end,
                                         const size_t *step)
{
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    add(h, "    %%%u = stablehlo.slice %%%u [", v.id, a.id);
    for (size_t i = 0; i < a.rank; i++) {
        add(h, "%s%zu:%zu:%zu", i ? ", " : "", first[i], end[i], step[i]);
        v.shape[i] = (end[i] - first[i] + step[i] - 1) / step[i];
    }
    add(h, "]");
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value pl_hlo_pad(struct pl_hlo *h,
                               struct pl_hlo_value a,
                               const int64_t *low,
                               const int64_t *high,
                               const int64_t *between)
{
    struct pl_hlo_value zero = pl_hlo_fill(h, a.type, 0, NULL, 0);
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    for (size_t i = 0; i < a.rank; i++)
        v.shape[i] = (size_t)((int64_t)a.shape[i] + low[i] + high[i] +
                              between[i] * ((int64_t)a.shape[i] - 1));
    add(h, "    %%%u = stablehlo.pad %%%u, %%%u, low = ", v.id, a.id, zero.id);
    signed_list(h, low, a.rank);
    add(h, ", high = ");
    signed_list(h, high, a.rank);
    add(h, ", interior = ");
    signed_list(h, between, a.rank);
    signature(h, (struct pl_hlo_value[]){a, zero}, 2, v);
    return v;
}

struct pl_hlo_value
pl_hlo_concat(struct pl_hlo *h, const struct pl_hlo_value *values, size_t n, size_t dim)
{
    struct pl_hlo_value v;

    if (n == 1)
        return values[0];
    v = pl_hlo_new(h, values[0].type, values[0].rank, values[0].shape);
    v.shape[dim] = 0;
    add(h, "    %%%u = stablehlo.concatenate ", v.id);
    for (size_t i = 0; i < n; i++) {
        add(h, "%%%u, ", values[i].id);
        v.shape[dim] += values[i].shape[dim];
    }
    add(h, "dim = %zu", dim);
    signature(h, values, n, v);
    return v;
}

struct pl_hlo_value
pl_hlo_iota(struct pl_hlo *h, const char *of, size_t rank, const size_t *shape, size_t dim)
{
    struct pl_hlo_value v = pl_hlo_new(h, of, rank, shape);

    add(h, "    %%%u = stablehlo.iota dim = %zu : ", v.id, dim);
    type(h, v);
    add(h, "\n");
    return v;
}

struct pl_hlo_value
pl_hlo_reduce(struct pl_hlo *h, const char *op, struct pl_hlo_value a, unsigned dims)
{
    bool sum = strcmp(op, "add") == 0;
    struct pl_hlo_value init = pl_hlo_fill(h, a.type, 0, NULL, sum ? 0 : -INFINITY), v;
    size_t shape[PL_HLO_RANK_MAX], gone[PL_HLO_RANK_MAX], rank = 0, n = 0;

    for (size_t i = 0; i < a.rank; i++)
        if (dims & 1u << i)
            gone[n++] = i;
        else
            shape[rank++] = a.shape[i];
    v = pl_hlo_new(h, a.type, rank, shape);
    add(h, "    %%%u = stablehlo.reduce(%%%u init: %%%u) applies stablehlo.%s across dimensions = ",
        v.id, a.id, init.id, op);
    list(h, gone, n);
    signature(h, (struct pl_hlo_value[]){a, init}, 2, v);
    return v;
}

struct pl_hlo_value pl_hlo_all_reduce(struct pl_hlo *h, struct pl_hlo_value a, unsigned replicas)
{
    struct pl_hlo_value v = pl_hlo_new(h, a.type, a.rank, a.shape);

    add(h, "    %%%u = \"stablehlo.all_reduce\"(%%%u) ({^bb0(%%l: tensor<%s>, %%r: tensor<%s>): ",
        v.id, a.id, a.type, a.type);
    add(h, "%%s = stablehlo.add %%l, %%r : tensor<%s> stablehlo.return %%s : tensor<%s>}) ", a.type,
        a.type);
    add(h, "{replica_groups = dense<[[");
    for (unsigned i = 0; i < replicas; i++)
        add(h, "%s%u", i ? ", " : "", i);
    add(h, "]]> : tensor<1x%uxi64>}", replicas);
    signature(h, &a, 1, v);
    return v;
}

struct pl_hlo_value pl_hlo_dot(struct pl_hlo *h,
                               struct pl_hlo_value a,
                               struct pl_hlo_value b,
                               const struct pl_hlo_dot *how)
{
    unsigned a_used = 1u << how->a_sum, b_used = 1u << how->b_sum;
    size_t shape[PL_HLO_RANK_MAX], rank = 0;
    struct pl_hlo_value v;

    for (size_t i = 0; i < how->n_batch; i++) {
        shape[rank++] = a.shape[how->a_batch[i]];
        a_used |= 1u << how->a_batch[i];
        b_used |= 1u << how->b_batch[i];
    }
    for (size_t i = 0; i < a.rank; i++)
        if (!(a_used & 1u << i))
            shape[rank++] = a.shape[i];
    for (size_t i = 0; i < b.rank; i++)
        if (!(b_used & 1u << i))
            shape[rank++] = b.shape[i];
    v = pl_hlo_new(h, a.type, rank, shape);
    add(h, "    %%%u = stablehlo.dot_general %%%u, %%%u, ", v.id, a.id, b.id);
    if (how->n_batch) {
        add(h, "batching_dims = ");
        list(h, how->a_batch, how->n_batch);
        add(h, " x ");
        list(h, how->b_batch, how->n_batch);
        add(h, ", ");
    }
    add(h, "contracting_dims = [%zu] x [%zu], precision = [%s, %s]", how->a_sum, how->b_sum,
        h->low ? "DEFAULT" : "HIGHEST", h->low ? "DEFAULT" : "HIGHEST");
    signature(h, (struct pl_hlo_value[]){a, b}, 2, v);
    return v;
}
