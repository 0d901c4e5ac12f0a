/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"
#include "runtime/engine/ops/op_private.h"

#include <math.h>
#include <stdarg.h>

int pl_op_refuse(const struct pl_op_request *req, const char *what, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf list = {0};
    char text[96];

    for (size_t i = 0; i < req->n_in && i < 6; i++)
        pl_buf_addf(&list, "%s%s", i ? ", " : "", pl_tensor_text(req->in[i], text, sizeof(text)));
    if (req->n_in > 6)
        pl_buf_adds(&list, ", ...");
    return pl_error_set(err, -EINVAL, "%s: %s: %s", req->name, what, pl_buf_str(&list));
}

int pl_op_refuse_as(const struct pl_op_request *req, struct pl_error *err, const char *fmt, ...)
{
    char what[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof(what), fmt, ap);
    va_end(ap);
    return pl_op_refuse(req, what, err);
}

int pl_op_check_positive(const struct pl_op_request *req,
                         const char *name,
                         double value,
                         struct pl_error *err)
{
    return value >= 0 && isfinite(value)
               ? 0
               : pl_error_set(err, -EINVAL, "%s: %s is %g: must be above 0, or 0 for the default",
                              req->name, name, value);
}

bool pl_op_all_real(const struct pl_op_request *req)
{
    for (size_t i = 0; i < req->n_in; i++)
        if (!pl_dtype_is_real(req->in[i]->dtype))
            return false;
    return true;
}

/* The sizes of the first `rank` dimensions but those of 1; returns their number. */
static size_t sizes_of(const plume_tensor *t, size_t rank, size_t ret[PLUME_RANK_MAX])
{
    size_t n = 0;

    for (size_t d = 0; d < rank; d++)
        if (t->shape[d] != 1)
            ret[n++] = t->shape[d];
    return n;
}

bool pl_op_pairs(const plume_tensor *a, size_t rank_a, const plume_tensor *b)
{
    size_t sa[PLUME_RANK_MAX], sb[PLUME_RANK_MAX], n = sizes_of(a, rank_a, sa);

    if (n != sizes_of(b, b->rank, sb))
        return true;
    for (size_t d = 0; d < n; d++)
        if (sa[d] != sb[d])
            return false;
    return true;
}

enum plume_dtype pl_op_real_of(const struct pl_tape *tape)
{
    if (tape->amp_dtype && tape->amp_o3)
        return tape->amp_dtype;
    return tape->kernels->real == PL_REAL_F64 ? PLUME_F64 : PLUME_F32;
}

int pl_op_given_shape(const struct pl_op_request *req,
                      size_t at,
                      struct pl_apply *what,
                      struct pl_error *err)
{
    int64_t rank = req->args.i[at];

    if (rank < 1 || rank > PLUME_RANK_MAX)
        return pl_error_set(err, -EINVAL, "%s: %lld is not a number of dimensions", req->name,
                            (long long)rank);
    what->rank = (size_t)rank;
    for (size_t d = 0; d < what->rank; d++) {
        int64_t size = req->args.i[at + 1 + d];

        if (size < 1)
            return pl_error_set(err, -EINVAL, "%s: size %lld of dimension %zu is not positive",
                                req->name, (long long)size, d);
        what->shape[d] = (size_t)size;
    }
    return 0;
}
