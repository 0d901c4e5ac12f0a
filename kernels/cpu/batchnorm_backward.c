/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/batchnorm.h"

/* y counts if relu is true. */
PL_INLINE void add_products(struct pl_bn_pair *p,
                            const float *y,
                            const float *dy,
                            const float *x,
                            double mean,
                            size_t n,
                            const bool relu)
{
    size_t k = 0;

    for (; k + PL_BN_LANES <= n; k += PL_BN_LANES) {
        pl_bn_floats dz, of_x, of_y;
        pl_bn_doubles d;

        memcpy(&dz, dy + k, sizeof(dz));
        memcpy(&of_x, x + k, sizeof(of_x));
        if (relu) {
            memcpy(&of_y, y + k, sizeof(of_y));
            dz = (pl_bn_floats)((pl_bn_bits)dz & ~(pl_bn_bits)(of_y <= 0));
        }
        d = __builtin_convertvector(dz, pl_bn_doubles);
        p->lanes[0] += d;
        p->lanes[1] += d * (__builtin_convertvector(of_x, pl_bn_doubles) - mean);
    }
    for (; k < n; k++) {
        double d = relu && y[k] <= 0 ? 0 : dy[k];

        p->lanes[0][0] += d;
        p->lanes[1][0] += d * (x[k] - mean);
    }
}

/* dw and db of a channel whose sums are there. */
static void write_sums(const struct pl_batchnorm_args *a, size_t c)
{
    float *dw = a->dw, *db = a->db;

    if (dw)
        dw[c] = (float)((a->dw_add ? dw[c] : 0) +
                        a->back_sums[1 + a->channels + c] * ((const float *)a->inv_std)[c]);
    if (db)
        db[c] = (float)((a->db_add ? db[c] : 0) + a->back_sums[1 + c]);
}

/* y was rounded after relu: what relu has passed follows from x. */
static bool is_again(const struct pl_batchnorm_args *a)
{
    return a->relu && a->y_half && !a->relu_of_y;
}

/* The arrays that backward reads, as f32. y counts if relu is true. */
struct blocks {
    float of_x[PL_BN_BLOCK], of_y[PL_BN_BLOCK], of_dy[PL_BN_BLOCK];
    const float *x, *y, *dy;
};

PL_INLINE void read_back(struct blocks *b,
                         const struct pl_batchnorm_args *a,
                         const enum pl_half type,
                         size_t c,
                         size_t at,
                         size_t n)
{
    b->x = pl_bn_get(type, a->x_half, a->x, at, n, b->of_x);
    b->y = b->dy = pl_bn_get(type, a->y_half, a->dy, at, n, b->of_dy);
    if (type && is_again(a)) {
        pl_bn_norm(b->x, b->of_y, n, pl_bn_mean_of(a, c), pl_bn_scale_of(a, c),
                   pl_bn_shift_of(a, c), true);
        b->y = b->of_y;
    } else if (a->relu) {
        b->y = pl_bn_get(type, a->y_half, a->y, at, n, b->of_y);
    }
}

/* The same of the channels of f, which is filled if y is computed again. */
PL_INLINE void read_back_flat(struct blocks *b,
                              const struct pl_batchnorm_args *a,
                              const enum pl_half type,
                              const struct pl_bn_flat_norm *f,
                              size_t at,
                              size_t n)
{
    b->x = pl_bn_get(type, a->x_half, a->x, at, n, b->of_x);
    b->y = b->dy = pl_bn_get(type, a->y_half, a->dy, at, n, b->of_dy);
    if (type && is_again(a)) {
        pl_bn_norm_flat(b->x, b->of_y, n, f->means, f->scales, f->shifts, true);
        b->y = b->of_y;
    } else if (a->relu) {
        b->y = pl_bn_get(type, a->y_half, a->y, at, n, b->of_y);
    }
}

PL_INLINE void
back_sums_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t most = pl_bn_block_of(a, type);
    struct blocks b;

    for (size_t c = begin; c < end; c++) {
        struct pl_bn_pair p = {0};

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                some = PL_MIN(most, a->inner - k);
                read_back(&b, a, type, c, pl_bn_place(a, n, c, k), some);
                if (a->relu)
                    add_products(&p, b.y, b.dy, b.x, pl_bn_mean_of(a, c), some, true);
                else
                    add_products(&p, b.y, b.dy, b.x, pl_bn_mean_of(a, c), some, false);
            }
        pl_bn_finish(&p, &a->back_sums[1 + c], &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

PL_BN_FOR_TYPES(back_sums)

PL_INLINE void back_sums_flat_of(const struct pl_batchnorm_args *a,
                                 size_t begin,
                                 size_t end,
                                 const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    struct pl_bn_flat_norm norms;
    struct pl_bn_flat_sums f;
    struct blocks b;

    memset(&f, 0, sizeof(f));
    pl_bn_fill_flat(&norms, a, begin, end);
    for (size_t n = 0; n < a->batch; n++) {
        float d[PL_BN_FLAT];

        read_back_flat(&b, a, type, &norms, pl_bn_place(a, n, begin, 0), n_values);
        for (size_t k = 0; k < n_values; k++)
            d[k] = a->relu && b.y[k] <= 0 ? 0 : b.dy[k];
        for (size_t k = 0; k < n_values; k++) {
            f.of[0][k] += d[k];
            f.of[1][k] += d[k] * ((double)b.x[k] - norms.means[k]);
        }
    }
    for (size_t c = begin; c < end; c++) {
        pl_bn_finish_flat(&f, c - begin, a->inner, &a->back_sums[1 + c],
                          &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

PL_BN_FOR_TYPES(back_sums_flat)

void PL_CPU(batchnorm_back_sums)(const struct pl_batchnorm_args *a)
{
    if (pl_bn_is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_back_sums(a);
        return;
    }
    a->back_sums[0] = (double)(a->batch * a->inner);
    pl_bn_run(a, back_sums, back_sums_flat);
}

/* dx of a channel is (dz - of_dz - (x - mean) of_x) scale. */
struct slope {
    float of_dz, of_x, scale;
};

static struct slope slope_of(const struct pl_batchnorm_args *a, size_t c)
{
    float inv_std = ((const float *)a->inv_std)[c];
    struct slope s = {.scale = inv_std * (a->w ? ((const float *)a->w)[c] : 1)};

    if (a->training) {
        s.of_dz = (float)(a->back_sums[1 + c] / a->back_sums[0]);
        s.of_x = (float)(a->back_sums[1 + a->channels + c] / a->back_sums[0] * inv_std * inv_std);
    }
    return s;
}

PL_INLINE void slope(const float *restrict x,
                     const float *restrict y,
                     const float *restrict dy,
                     float *restrict dx,
                     size_t n,
                     float mean,
                     const struct slope *s,
                     bool relu,
                     bool add)
{
    float of_dz = s->of_dz, of_x = s->of_x, scale = s->scale;

    for (size_t k = 0; k < n; k++) {
        float d = relu && y[k] <= 0 ? 0 : dy[k];

        d = (d - of_dz - (x[k] - mean) * of_x) * scale;
        dx[k] = add ? dx[k] + d : d;
    }
}

struct flat_slope {
    float of_dz[PL_BN_FLAT], of_x[PL_BN_FLAT], scales[PL_BN_FLAT];
};

/* The same for values of several channels. */
PL_INLINE void slope_flat(const struct blocks *b,
                          float *restrict dx,
                          size_t n,
                          const float *restrict means,
                          const struct flat_slope *s,
                          bool relu,
                          bool add)
{
    const float *restrict x = b->x, *restrict y = b->y, *restrict dy = b->dy;
    const float *restrict of_dz = s->of_dz, *restrict of_x = s->of_x, *restrict scales = s->scales;

    for (size_t k = 0; k < n; k++) {
        float d = relu && y[k] <= 0 ? 0 : dy[k];

        d = (d - of_dz[k] - (x[k] - means[k]) * of_x[k]) * scales[k];
        dx[k] = add ? dx[k] + d : d;
    }
}

/* The place of n values of dx; its 16 bits are in `block`, as they are if they are added to. */
PL_INLINE float *open_dx(
    const struct pl_batchnorm_args *a, const enum pl_half type, size_t at, size_t n, float *block)
{
    if (!type || !a->x_half)
        return (float *)a->dx + at;
    if (a->dx_add)
        pl_widen_row(type, (const uint16_t *)a->dx + at, block, n);
    return block;
}

PL_INLINE void close_dx(const struct pl_batchnorm_args *a,
                        const enum pl_half type,
                        size_t at,
                        size_t n,
                        const float *block)
{
    if (type && a->x_half)
        pl_narrow_row(type, block, (uint16_t *)a->dx + at, n);
}

PL_INLINE void
backward_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t most = pl_bn_block_of(a, type);
    float dx_block[PL_BN_BLOCK];
    struct blocks b;

    for (size_t c = begin; c < end; c++) {
        struct slope s = slope_of(a, c);

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                size_t at = pl_bn_place(a, n, c, k);

                some = PL_MIN(most, a->inner - k);
                read_back(&b, a, type, c, at, some);
                slope(b.x, b.y, b.dy, open_dx(a, type, at, some, dx_block), some,
                      pl_bn_mean_of(a, c), &s, a->relu, a->dx_add);
                close_dx(a, type, at, some, dx_block);
            }
    }
}

PL_BN_FOR_TYPES(backward)

PL_INLINE void backward_flat_of(const struct pl_batchnorm_args *a,
                                size_t begin,
                                size_t end,
                                const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    float dx_block[PL_BN_FLAT];
    struct pl_bn_flat_norm norms;
    struct flat_slope f;
    struct blocks b;

    pl_bn_fill_flat(&norms, a, begin, end);
    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;
        struct slope s = slope_of(a, c);

        pl_bn_repeat(f.of_dz + at, s.of_dz, a->inner);
        pl_bn_repeat(f.of_x + at, s.of_x, a->inner);
        pl_bn_repeat(f.scales + at, s.scale, a->inner);
    }
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = pl_bn_place(a, n, begin, 0);

        read_back_flat(&b, a, type, &norms, at, n_values);
        slope_flat(&b, open_dx(a, type, at, n_values, dx_block), n_values, norms.means, &f, a->relu,
                   a->dx_add);
        close_dx(a, type, at, n_values, dx_block);
    }
}

PL_BN_FOR_TYPES(backward_flat)

void PL_CPU(batchnorm_backward)(const struct pl_batchnorm_args *a)
{
    if (pl_bn_is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_backward(a);
    else if (a->dx)
        pl_bn_run(a, backward, backward_flat);
}
