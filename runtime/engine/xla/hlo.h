/* SPDX-License-Identifier: MIT */
/* Writes StableHLO text: a function body in single-assignment form, one line an operation. Each
 * function appends a line and returns its result; shapes must fit, as no one but the compiler
 * checks them. After running out of memory the rest does nothing: look at `failed` at the end.
 *
 * The operations are those of the StableHLO specification (openxla/stablehlo, docs/spec.md). */
#ifndef PL_RUNTIME_ENGINE_XLA_HLO_H
#define PL_RUNTIME_ENGINE_XLA_HLO_H

#include "common/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_HLO_RANK_MAX 8

struct pl_hlo {
    struct pl_buf text;
    unsigned next; /* number of the next value */
    bool low;      /* products may round their factors to bf16, as their operands are */
    int failed;    /* -ENOMEM */
};

/* A value of the function. Zeroed: none. */
struct pl_hlo_value {
    unsigned id;      /* "%id"; from 1 */
    const char *type; /* of an element: "f32", "i32", "ui32", "ui64", "i1" or "bf16" */
    size_t rank, shape[PL_HLO_RANK_MAX];
};

void pl_hlo_finish(struct pl_hlo *h);

/* Elements of a value; "tensor<2x3xf32>" appended to a text. */
size_t pl_hlo_count(const struct pl_hlo_value *v);
void pl_hlo_type_text(struct pl_hlo *h, struct pl_buf *text, const struct pl_hlo_value *v);

/* A value of this type and shape, whose line the caller writes by pl_hlo_line(). */
struct pl_hlo_value
pl_hlo_new(struct pl_hlo *h, const char *type, size_t rank, const size_t *shape);
void PL_PRINTF(2, 3) pl_hlo_line(struct pl_hlo *h, const char *fmt, ...);

/* `number` everywhere; of integers it must be whole. */
struct pl_hlo_value
pl_hlo_fill(struct pl_hlo *h, const char *type, size_t rank, const size_t *shape, double number);
/* f32 numbers, pl_hlo_count() of them. */
struct pl_hlo_value
pl_hlo_numbers(struct pl_hlo *h, size_t rank, const size_t *shape, const float *numbers);
struct pl_hlo_value pl_hlo_fill_like(struct pl_hlo *h, struct pl_hlo_value v, double number);

/* op: "add", "multiply", ...; operands of one type and shape. */
struct pl_hlo_value
pl_hlo_two(struct pl_hlo *h, const char *op, struct pl_hlo_value a, struct pl_hlo_value b);
/* The same with a number as the second operand. */
struct pl_hlo_value
pl_hlo_with(struct pl_hlo *h, const char *op, struct pl_hlo_value a, double number);
struct pl_hlo_value pl_hlo_one(struct pl_hlo *h, const char *op, struct pl_hlo_value a);
/* how: "LT", "GE", "EQ", ... */
struct pl_hlo_value
pl_hlo_compare(struct pl_hlo *h, const char *how, struct pl_hlo_value a, struct pl_hlo_value b);
struct pl_hlo_value pl_hlo_select(struct pl_hlo *h,
                                  struct pl_hlo_value which,
                                  struct pl_hlo_value yes,
                                  struct pl_hlo_value no);
struct pl_hlo_value pl_hlo_convert(struct pl_hlo *h, struct pl_hlo_value a, const char *type);

/* Shapes. Those that change nothing return their operand. */
struct pl_hlo_value
pl_hlo_reshape(struct pl_hlo *h, struct pl_hlo_value a, size_t rank, const size_t *shape);
struct pl_hlo_value pl_hlo_reshape2(struct pl_hlo *h, struct pl_hlo_value a, size_t m, size_t n);
struct pl_hlo_value
pl_hlo_reshape_like(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value like);
/* Dimension i of a is dimension dims[i] of the result. */
struct pl_hlo_value pl_hlo_broadcast(
    struct pl_hlo *h, struct pl_hlo_value a, const size_t *dims, size_t rank, const size_t *shape);
/* The same, to the shape of `like`, as its dimension `dim` (a is a vector). */
struct pl_hlo_value
pl_hlo_along(struct pl_hlo *h, struct pl_hlo_value a, size_t dim, struct pl_hlo_value like);
/* Repeats one element. */
struct pl_hlo_value
pl_hlo_repeat(struct pl_hlo *h, struct pl_hlo_value a, struct pl_hlo_value like);
struct pl_hlo_value pl_hlo_transpose(struct pl_hlo *h, struct pl_hlo_value a, const size_t *order);
/* `count` elements of dimension dim, from `first` on. */
struct pl_hlo_value
pl_hlo_slice(struct pl_hlo *h, struct pl_hlo_value a, size_t dim, size_t first, size_t count);
/* Of each dimension the elements first, first + step, ..., below end. */
struct pl_hlo_value pl_hlo_strided_slice(struct pl_hlo *h,
                                         struct pl_hlo_value a,
                                         const size_t *first,
                                         const size_t *end,
                                         const size_t *step);
/* Zeros before, after and between the elements of each dimension; negative numbers cut. */
struct pl_hlo_value pl_hlo_pad(struct pl_hlo *h,
                               struct pl_hlo_value a,
                               const int64_t *low,
                               const int64_t *high,
                               const int64_t *between);
struct pl_hlo_value
pl_hlo_concat(struct pl_hlo *h, const struct pl_hlo_value *list, size_t n, size_t dim);
struct pl_hlo_value
pl_hlo_iota(struct pl_hlo *h, const char *type, size_t rank, const size_t *shape, size_t dim);

/* Sums ("add") or largest elements ("maximum") over the dimensions in the mask, which go away. */
struct pl_hlo_value
pl_hlo_reduce(struct pl_hlo *h, const char *op, struct pl_hlo_value a, unsigned dims);

/* The sum over all `replicas` of the program, which each of them gets. */
struct pl_hlo_value pl_hlo_all_reduce(struct pl_hlo *h, struct pl_hlo_value a, unsigned replicas);

/* A product, in full f32 unless `low`: the batch dimensions, then the rest of a, then that of b. */
struct pl_hlo_dot {
    size_t n_batch, a_batch[2], b_batch[2], a_sum, b_sum;
};
struct pl_hlo_value pl_hlo_dot(struct pl_hlo *h,
                               struct pl_hlo_value a,
                               struct pl_hlo_value b,
                               const struct pl_hlo_dot *how);

#endif
