/* SPDX-License-Identifier: MIT */
/* torch.einsum(), made of the ops of plume/ops.h: include it after plume/module.h. */
#ifndef PL_OPS_EINSUM_H
#define PL_OPS_EINSUM_H

#include "plume/ops.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PLUME_EINSUM_SIZES 128

/* A tensor whose dimensions have letters, in order. A tensor of [1] may have none. */
struct plume_lettered {
    plume_tensor *t;
    char letters[PLUME_RANK_MAX + 1];
};

/* The functions pl_einsum_*() are parts of plume_einsum(), below.
 *
 * Fails the hook. Returns NULL. */
static inline plume_tensor *
pl_einsum_refuse(struct plume_context *pl, const char *form, const char *why, char letter)
{
    char text[192], which[16] = "";

    if (letter)
        snprintf(which, sizeof(which), " '%c'", letter);
    snprintf(text, sizeof(text), "einsum '%.60s': %.90s%s", form, why, which);
    pl->api->fail(pl, -EINVAL, text);
    return NULL;
}

/* The letters from `at` to one of `ends`, without those of "...". */
static inline size_t pl_einsum_named(const char *at, const char *ends)
{
    size_t n = 0;

    for (; !strchr(ends, *at); at++)
        n += *at != ' ' && *at != '.';
    return n;
}

/* Reads letters up to one of `ends`; returns where that is, or NULL, having failed the hook. The
 * first "..." stands for `wide` dimensions, whose letters are digits, 0 for the last. */
static inline const char *pl_einsum_letters(struct plume_context *pl,
                                            const char *form,
                                            const char *at,
                                            const char *ends,
                                            size_t wide,
                                            char *ret)
{
    size_t n = 0;
    int dots = 0;

    ret[0] = 0;
    for (; !strchr(ends, *at); at++) {
        size_t count = 1;
        char first = *at;

        if (*at == ' ')
            continue;
        if (!dots && strncmp(at, "...", 3) == 0) {
            dots = 1;
            at += 2;
            count = wide;
            first = (char)('0' + wide - 1);
        } else if (!((*at >= 'a' && *at <= 'z') || (*at >= 'A' && *at <= 'Z'))) {
            pl_einsum_refuse(pl, form, "takes letters, ',', '->' and one '...' a tensor, not", *at);
            return NULL;
        } else if (strchr(ret, *at)) {
            pl_einsum_refuse(pl, form, "takes no diagonals: twice in one tensor is", *at);
            return NULL;
        }
        if (n + count > PLUME_RANK_MAX) {
            pl_einsum_refuse(pl, form, "has more dimensions than a tensor", 0);
            return NULL;
        }
        for (size_t k = 0; k < count; k++)
            ret[n++] = (char)(first - (char)k);
        ret[n] = 0;
    }
    return at;
}

/* Keeps the sizes of v's letters; 0, or -EINVAL, having failed the hook. A size of 1 is repeated.
 */
static inline int pl_einsum_sizes(struct plume_context *pl,
                                  const char *form,
                                  const struct plume_lettered *v,
                                  size_t sizes[PLUME_EINSUM_SIZES])
{
    size_t shape[PLUME_RANK_MAX] = {0}, rank = pl->api->shape(v->t, shape), n = strlen(v->letters);

    if (rank != n && !(n == 0 && rank == 1 && shape[0] == 1)) {
        pl_einsum_refuse(pl, form, "does not have as many letters as a tensor has dimensions", 0);
        return -EINVAL;
    }
    for (size_t d = 0; d < n; d++) {
        size_t *size = &sizes[(unsigned char)v->letters[d]];

        if (shape[d] == 0) {
            if (v->letters[d] < 'A')
                pl_einsum_refuse(pl, form,
                                 "takes no empty tensors: of size 0 is a dimension of '...'", 0);
            else
                pl_einsum_refuse(pl, form, "takes no empty tensors: of size 0 is", v->letters[d]);
            return -EINVAL;
        }
        if (*size > 1 && shape[d] > 1 && *size != shape[d]) {
            if (v->letters[d] < 'A')
                pl_einsum_refuse(pl, form, "two sizes has a dimension of '...'", 0);
            else
                pl_einsum_refuse(pl, form, "two sizes has", v->letters[d]);
            return -EINVAL;
        }
        if (*size < shape[d])
            *size = shape[d];
    }
    return 0;
}

/* Removes v's dimensions of 1 whose letters have larger sizes: the product repeats them. */
static inline void
pl_einsum_narrow(struct plume_context *pl, struct plume_lettered *v, const size_t *sizes)
{
    size_t shape[PLUME_RANK_MAX] = {0}, n = 0;
    char letters[PLUME_RANK_MAX + 1];

    pl->api->shape(v->t, shape);
    memcpy(letters, v->letters, sizeof(letters));
    for (size_t d = 0; letters[d]; d++)
        if (shape[d] == sizes[(unsigned char)letters[d]]) {
            v->letters[n] = letters[d];
            shape[n++] = shape[d];
        }
    if (letters[n]) {
        v->letters[n] = 0;
        shape[n] = 1;
        v->t = plume_reshape(pl, v->t, n ? n : 1, shape);
    }
}

/* Sums over the letters that are in neither of the two others. */
static inline void pl_einsum_sum(struct plume_context *pl,
                                 struct plume_lettered *v,
                                 const char *other,
                                 const char *out)
{
    for (size_t d = 0; v->letters[d];) {
        if (strchr(other, v->letters[d]) || strchr(out, v->letters[d])) {
            d++;
            continue;
        }
        v->t = plume_sum(pl, v->t, d, d + 1);
        memmove(v->letters + d, v->letters + d + 1, strlen(v->letters + d));
    }
}

/* Brings the dimensions into the order of `letters`, which are v's in another order. */
static inline void
pl_einsum_order(struct plume_context *pl, struct plume_lettered *v, const char *letters)
{
    size_t order[PLUME_RANK_MAX] = {0};

    if (strcmp(v->letters, letters) == 0)
        return;
    for (size_t d = 0; letters[d]; d++)
        order[d] = (size_t)(strchr(v->letters, letters[d]) - v->letters);
    v->t = plume_permute(pl, v->t, order);
    memcpy(v->letters, letters, strlen(v->letters));
}

/* Appends to `to` those of `from` that are in `in` (NULL: any) and not in `out` (NULL: any). */
static inline void
pl_einsum_pick(char *to, const char *from, const char *in, const char *out, const char *in_too)
{
    size_t n = strlen(to);

    for (; *from; from++)
        if ((!in || strchr(in, *from)) && (!out || !strchr(out, *from)) &&
            (!in_too || strchr(in_too, *from)))
            to[n++] = *from;
    to[n] = 0;
}

/* The letters of the three, one after another. */
static inline void pl_einsum_join(char *to, const char *a, const char *b, const char *c)
{
    *to = 0;
    pl_einsum_pick(to, a, NULL, NULL, NULL);
    pl_einsum_pick(to, b, NULL, NULL, NULL);
    pl_einsum_pick(to, c, NULL, NULL, NULL);
}

static inline size_t pl_einsum_count(const char *letters, const size_t *sizes)
{
    size_t n = 1;

    for (; *letters; letters++)
        n *= sizes[(unsigned char)*letters];
    return n;
}

/* v as [sizes of `letters`], 1 for those that it does not have; [1] if there are none. */
static inline plume_tensor *pl_einsum_wide(struct plume_context *pl,
                                           const struct plume_lettered *v,
                                           const char *letters,
                                           const size_t *sizes)
{
    size_t shape[PLUME_RANK_MAX] = {1}, n = strlen(letters);

    for (size_t d = 0; d < n; d++)
        shape[d] = strchr(v->letters, letters[d]) ? sizes[(unsigned char)letters[d]] : 1;
    return plume_reshape(pl, v->t, n ? n : 1, shape);
}

/* The product of two, summed over the letters that `out` does not have. */
static inline plume_tensor *pl_einsum_product(struct plume_context *pl,
                                              struct plume_lettered *a,
                                              struct plume_lettered *b,
                                              const char *out,
                                              const size_t *sizes)
{
    char both[4 * PLUME_RANK_MAX + 4] = "", rows[PLUME_RANK_MAX + 1] = "",
                                   sum[PLUME_RANK_MAX + 1] = "";
    char columns[PLUME_RANK_MAX + 1] = "", order[4 * PLUME_RANK_MAX + 4] = "";
    size_t shape[3], n_out = strlen(out), to[PLUME_RANK_MAX] = {1};
    struct plume_lettered y = {NULL, ""};
    int a_turned, b_turned;

    pl_einsum_pick(both, out, a->letters, NULL, b->letters);
    pl_einsum_pick(rows, out, a->letters, b->letters, NULL);
    pl_einsum_pick(columns, out, b->letters, a->letters, NULL);
    pl_einsum_pick(sum, a->letters, b->letters, out, NULL);
    if ((!*rows && !*columns) || (!*sum && (!*rows || !*columns))) {
        /* Elementwise: one is repeated where it lacks letters. */
        pl_einsum_join(order, both, rows, columns);
        pl_einsum_pick(order, sum, NULL, NULL, NULL);
        for (int k = 0; k < 2; k++) {
            struct plume_lettered *v = k ? b : a;
            char own[4 * PLUME_RANK_MAX + 4] = "";

            pl_einsum_pick(own, order, v->letters, NULL, NULL);
            pl_einsum_order(pl, v, own);
        }
        y.t =
            plume_mul(pl, pl_einsum_wide(pl, a, order, sizes), pl_einsum_wide(pl, b, order, sizes));
        if (*sum)
            y.t = plume_sum(pl, y.t, strlen(both), strlen(order));
    } else { /* [both, rows, sum] by [both, sum, columns]; transposed, if they are stored so */
        a_turned = *rows && a->letters[strlen(a->letters) - 1] == rows[strlen(rows) - 1];
        b_turned =
            !(*columns && b->letters[strlen(b->letters) - 1] == columns[strlen(columns) - 1]);
        pl_einsum_join(order, both, a_turned ? sum : rows, a_turned ? rows : sum);
        pl_einsum_order(pl, a, order);
        pl_einsum_join(order, both, b_turned ? columns : sum, b_turned ? sum : columns);
        pl_einsum_order(pl, b, order);
        shape[0] = pl_einsum_count(both, sizes);
        shape[1] = pl_einsum_count(a_turned ? sum : rows, sizes);
        shape[2] = pl_einsum_count(a_turned ? rows : sum, sizes);
        a->t = plume_reshape(pl, a->t, 3, shape);
        shape[1] = pl_einsum_count(b_turned ? columns : sum, sizes);
        shape[2] = pl_einsum_count(b_turned ? sum : columns, sizes);
        b->t = plume_reshape(pl, b->t, 3, shape);
        y.t = plume_matmul(pl, a->t, b->t, a_turned, b_turned);
    }
    pl_einsum_join(order, both, rows, columns);
    for (size_t d = 0; d < n_out; d++)
        to[d] = sizes[(unsigned char)order[d]];
    y.t = plume_reshape(pl, y.t, n_out ? n_out : 1, to);
    memcpy(y.letters, order, n_out + 1);
    pl_einsum_order(pl, &y, out);
    return y.t;
}

/* Reads the form: the letters of each of n tensors, those of the result, and all sizes. 0, or
 * -EINVAL, having failed the hook. */
static inline int pl_einsum_read(struct plume_context *pl,
                                 const char *form,
                                 size_t n,
                                 struct plume_lettered *list,
                                 char *out,
                                 size_t *sizes)
{
    const char *at = form;
    size_t widest = 0;

    for (size_t k = 0; k < n; k++) {
        const char *ends = k + 1 < n ? ",-" : "-";
        size_t rank = pl->api->shape(list[k].t, NULL), named = pl_einsum_named(at, ends);
        size_t wide = rank > named ? rank - named : 0;

        at = pl_einsum_letters(pl, form, at, ends, wide, list[k].letters);
        if (!at)
            return -EINVAL;
        if (strchr(list[k].letters, '0') && widest < wide)
            widest = wide;
        if (k + 1 < n ? *at != ',' : at[0] != '-' || at[1] != '>') {
            pl_einsum_refuse(pl, form, "needs '->', and as many tensors as it is given", 0);
            return -EINVAL;
        }
        at += k + 1 < n;
    }
    if (!pl_einsum_letters(pl, form, at + 2, "", widest, out))
        return -EINVAL;
    for (size_t k = 0; k < n; k++)
        if (pl_einsum_sizes(pl, form, &list[k], sizes) < 0)
            return -EINVAL;
    for (size_t d = 0; out[d]; d++)
        if (!sizes[(unsigned char)out[d]]) {
            pl_einsum_refuse(pl, form, "no tensor has", out[d]);
            return -EINVAL;
        }
    return 0;
}

/* The sum of products that the form tells, such as "bij,bjk->bik": each letter is a dimension,
 * those that are not after "->" are summed over. "..." stands for the dimensions of a tensor that
 * have no letters; those of several tensors belong together from the last one on. A size of 1 is
 * repeated where another tensor has more. A result without letters is [1]. plume_matmul() makes the
 * products; tensors without matrices are multiplied element by element. There may be up to 16
 * tensors (n). They are multiplied from left to right. The result of two of them has at most 5
 * dimensions. A letter cannot be twice in one tensor (a diagonal). "->" cannot be left out. */
static inline plume_tensor *
plume_einsum_all(struct plume_context *pl, const char *form, size_t n, plume_tensor *const *tensors)
{
    struct plume_lettered list[16], *all = &list[0];
    size_t sizes[PLUME_EINSUM_SIZES] = {0};
    char out[PLUME_RANK_MAX + 1], kept[17 * PLUME_RANK_MAX + 1], next[2 * PLUME_RANK_MAX + 1];

    if (!form)
        return plume_refuse_null(pl, "einsum: the form is NULL");
    if (n == 0 || n > 16)
        return pl_einsum_refuse(pl, form, "takes 1 to 16 tensors", 0);
    if (!tensors)
        return plume_refuse_null(pl, "einsum: the list of tensors is NULL");
    for (size_t k = 0; k < n; k++) {
        list[k] = (struct plume_lettered){tensors[k], ""};
        if (!tensors[k])
            return plume_refuse_null(pl, "einsum: a tensor is NULL");
    }
    if (pl_einsum_read(pl, form, n, list, out, sizes) < 0)
        return NULL;
    for (size_t k = 0; k < n; k++)
        pl_einsum_narrow(pl, &list[k], sizes);
    for (size_t k = 1; k < n; k++) {
        pl_einsum_join(kept, out, "", "");
        for (size_t i = k + 1; i < n; i++)
            pl_einsum_pick(kept, list[i].letters, NULL, NULL, NULL);
        pl_einsum_sum(pl, all, list[k].letters, kept);
        pl_einsum_sum(pl, &list[k], all->letters, kept);
        pl_einsum_join(next, k + 1 == n ? out : "", "", "");
        if (k + 1 < n) {
            pl_einsum_pick(next, all->letters, kept, NULL, NULL);
            pl_einsum_pick(next, list[k].letters, kept, all->letters, NULL);
        }
        if (strlen(next) > PLUME_RANK_MAX)
            return pl_einsum_refuse(
                pl, form, "a product of the first tensors has too many dimensions: reorder them",
                0);
        all->t = pl_einsum_product(pl, all, &list[k], next, sizes);
        memcpy(all->letters, next, strlen(next) + 1);
    }
    pl_einsum_sum(pl, all, "", out);
    pl_einsum_order(pl, all, out);
    return all->t;
}

/* The same of one tensor, or of two; b is NULL for a form of one, such as "ij->ji". */
static inline plume_tensor *
plume_einsum(struct plume_context *pl, const char *form, plume_tensor *a, plume_tensor *b)
{
    plume_tensor *const both[] = {a, b};

    if (form && a && !b && strchr(form, ','))
        return pl_einsum_refuse(pl, form, "the second tensor is NULL", 0);
    return plume_einsum_all(pl, form, b ? 2 : 1, both);
}

#endif
