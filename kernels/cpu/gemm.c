/* SPDX-License-Identifier: MIT */
/* Register-blocked product after Goto and van de Geijn (ACM TOMS 34(3), 2008): a panel of B is
 * packed, tiles of MR x NR of C stay in registers. */
#include "kernels/cpu/level.h"

#include <string.h>

typedef float vec __attribute__((vector_size(PL_LANES * sizeof(float))));

#define NV 2 /* vectors of a tile's row */
#define NR (NV * PL_LANES)
#if PL_CPU_LEVEL == 4
#define MR 12 /* 24 of 32 registers hold the tile */
#elif PL_CPU_LEVEL == 3
#define MR 6 /* 12 of 16 */
#else
#define MR 4 /* 8 of 16 */
#endif
#define KC 256 /* rows of the packed panel: KC * NR floats lie on the stack, and in L1 */

static inline vec load(const float *p)
{
    vec v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* One tile of mr rows (a constant at each call, so that the accumulators are registers). */
static inline __attribute__((always_inline)) void tile(const size_t mr,
                                                       size_t k_count,
                                                       const float *a,
                                                       size_t a_row,
                                                       size_t a_col,
                                                       const float *panel,
                                                       float *c,
                                                       size_t ldc,
                                                       bool add)
{
    vec acc[MR][NV] = {{{0}}};

    for (size_t k = 0; k < k_count; k++) {
        vec b[NV];

#pragma GCC unroll 4
        for (size_t v = 0; v < NV; v++)
            b[v] = load(panel + k * NR + v * PL_LANES);
#pragma GCC unroll 12
        for (size_t i = 0; i < mr; i++) {
            float x = a[i * a_row + k * a_col];

#pragma GCC unroll 4
            for (size_t v = 0; v < NV; v++)
                acc[i][v] += x * b[v];
        }
    }
#pragma GCC unroll 12
    for (size_t i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (size_t v = 0; v < NV; v++) {
            float *to = c + i * ldc + v * PL_LANES;
            vec sum = add ? load(to) + acc[i][v] : acc[i][v];

            memcpy(to, &sum, sizeof(sum));
        }
    }
}

static void rows(size_t mr,
                 size_t k_count,
                 const float *a,
                 size_t a_row,
                 size_t a_col,
                 const float *panel,
                 float *c,
                 size_t ldc,
                 bool add)
{
    for (; mr >= MR; mr -= MR, a += MR * a_row, c += MR * ldc)
        tile(MR, k_count, a, a_row, a_col, panel, c, ldc, add);
    for (; mr >= 4; mr -= 4, a += 4 * a_row, c += 4 * ldc)
        tile(4, k_count, a, a_row, a_col, panel, c, ldc, add);
    for (; mr; mr--, a += a_row, c += ldc)
        tile(1, k_count, a, a_row, a_col, panel, c, ldc, add);
}

static void pack(const struct pl_gemm *g, size_t k0, size_t k_count, size_t j0, float *panel)
{
    size_t width = PL_MIN(g->n - j0, (size_t)NR);
    const float *b = g->b + k0 * g->b_row + j0 * g->b_col;

    if (width < NR)
        memset(panel, 0, k_count * NR * sizeof(*panel));
    if (g->b_col == 1) {
        for (size_t k = 0; k < k_count; k++)
            memcpy(panel + k * NR, b + k * g->b_row, width * sizeof(*panel));
        return;
    }
    for (size_t j = 0; j < width; j++)
        for (size_t k = 0; k < k_count; k++)
            panel[k * NR + j] = b[k * g->b_row + j * g->b_col];
}

void PL_CPU(gemm)(const struct pl_gemm *g)
{
    float panel[KC * NR] __attribute__((aligned(64)));
    float edge[MR * NR] __attribute__((aligned(64)));

    for (size_t k0 = 0; k0 < PL_MAX(g->k, (size_t)1); k0 += KC) {
        size_t k_count = PL_MIN(g->k - k0, (size_t)KC);
        const float *a = g->a + k0 * g->a_col;
        bool add = g->add || k0 > 0;

        for (size_t j0 = 0; j0 < g->n; j0 += NR) {
            size_t width = PL_MIN(g->n - j0, (size_t)NR);

            pack(g, k0, k_count, j0, panel);
            if (width == NR) {
                rows(g->m, k_count, a, g->a_row, g->a_col, panel, g->c + j0, g->ldc, add);
                continue;
            }
            /* The last panel is narrower than a tile: through a buffer, or it would write past
             * the row. */
            for (size_t i0 = 0; i0 < g->m; i0 += MR) {
                size_t height = PL_MIN(g->m - i0, (size_t)MR);

                rows(height, k_count, a + i0 * g->a_row, g->a_row, g->a_col, panel, edge, NR,
                     false);
                for (size_t i = 0; i < height; i++) {
                    float *c = g->c + (i0 + i) * g->ldc + j0;

                    for (size_t j = 0; j < width; j++)
                        c[j] = add ? c[j] + edge[i * NR + j] : edge[i * NR + j];
                }
            }
        }
    }
}
