/* SPDX-License-Identifier: MIT */
#include "runtime/engine/ops/partial.h"
#include "common/base/macros.h"

#define MULTIPROCESSORS 132 /* the kernels' numbers of blocks suit an H100 */

static size_t ceil_div(size_t n, size_t per)
{
    return (n + per - 1) / per;
}

/* sums.cuh: `numbers` sums at each place of [outer, n, inner] over n. */
static double
sums_bytes(size_t outer, size_t n, size_t inner, size_t ahead, size_t resident, size_t numbers)
{
    size_t wide = 1, tiles, blocks = MULTIPROCESSORS * resident, least, pieces = 1;

    if (outer == 0 || n == 0 || inner == 0)
        return 0;
    while (wide < 32 && wide < inner)
        wide *= 2;
    tiles = outer * ceil_div(inner, wide);
    least = (inner == 1 ? 4 : 1) * ahead * (256 / wide);
    if (tiles < blocks && n > least)
        pieces = PL_MIN(ceil_div(blocks, tiles), ceil_div(n, least));
    return pieces > 1 ? 2.0 * (double)(outer * pieces * inner * numbers * sizeof(double)) : 0;
}

double pl_partial_of_bias(size_t rows, size_t out, enum pl_real real)
{
    size_t per = 16 / pl_real_size(real), pieces;

    if (rows == 0 || out == 0)
        return 0;
    if (out % per)
        return sums_bytes(1, rows, out, 4, 4, 1);
    pieces = PL_MIN(ceil_div(4 * MULTIPROCESSORS, ceil_div(out, 32 * per)), ceil_div(rows, 32));
    return 2.0 * (double)(pieces * out * sizeof(double));
}

double pl_partial_of_batchnorm(const struct pl_partial_batchnorm *norm)
{
    size_t v = norm->real == PL_REAL_F64 ? 2 : 4, ahead, resident;

    if (norm->inner == 1 && norm->halves && norm->real == PL_REAL_F32 && norm->channels % 8 == 0 &&
        (!norm->backward || norm->again))
        v = 8;
    if ((norm->inner == 1 ? norm->channels : norm->inner) % v)
        v = 1;
    ahead = (norm->backward ? 4 : 8) / (v == 8 ? 2 : 1);
    if (norm->backward)
        resident = norm->again && v < 8 ? 3 : 2;
    else
        resident = v == 8 ? 3 : 4;
    if (norm->inner == 1)
        return sums_bytes(1, norm->batch, norm->channels / v, ahead, resident, 2 * v);
    return sums_bytes(norm->channels, norm->batch * (norm->inner / v), 1, ahead, resident, 2);
}

/* The rows of a block, as in layernorm.cuh. */
struct layout {
    size_t teams, held, pieces; /* held: elements of a row in registers; pieces: at most */
    bool sums;                  /* also those of dx's columns */
};

static struct layout layout_of(const struct pl_partial_norm *norm)
{
    size_t n = norm->n;

    if (norm->real == PL_REAL_F64)
        return (struct layout){4, 256, 264, false};
    if (n % 8)
        return (struct layout){4, 1024, 264, false};
    if (n <= 768)
        return (struct layout){4, 768, 396, norm->y_half};
    if (n <= 1024)
        return (struct layout){4, 1024, 264, norm->y_half};
    return (struct layout){1, n <= 2048 ? 2048 : 8192, 264, false};
}

bool pl_layernorm_again_for_params(const struct pl_partial_norm *norm)
{
    return norm->params && norm->n > layout_of(norm).held;
}

bool pl_layernorm_again_for_sums(const struct pl_partial_norm *norm)
{
    return norm->dx_sums && !layout_of(norm).sums;
}

double pl_partial_of_layernorm(const struct pl_partial_norm *norm)
{
    struct layout l = layout_of(norm);
    bool sums = norm->dx_sums && l.sums;
    size_t pieces = PL_MIN(ceil_div(norm->rows, 4 * l.teams), l.pieces);
    double of_sums =
        pl_layernorm_again_for_sums(norm) ? sums_bytes(1, norm->rows, norm->n, 4, 4, 1) : 0;

    if (!norm->params && !sums)
        return of_sums;
    if (pl_layernorm_again_for_params(norm))
        pieces = PL_MIN(ceil_div(1024, ceil_div(norm->n, 32)), ceil_div(norm->rows, 128));
    return of_sums + 2.0 * (double)(PL_MAX(pieces, (size_t)1) * (sums ? 3 : 2) * norm->n) *
                         (double)(norm->real == PL_REAL_F64 ? sizeof(double) : sizeof(float));
}
