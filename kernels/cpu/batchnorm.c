/* SPDX-License-Identifier: MIT */
/* One thread handles a channel and sums in a fixed order. If a channel of an image is shorter than
 * a vector, a thread handles neighbouring channels together ("flat"): their values are contiguous,
 * and each value of an image has sums of its own. Arrays of 16 bits are converted by blocks, so
 * that the numbers are those of f32 arrays. */
#include "kernels/cpu/halves.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <string.h>

#define LANES 8   /* parallel sums */
#define FLAT 256  /* the most values of an image that are handled together */
#define BLOCK 512 /* values of a channel that are converted together: whole groups of LANES */

static bool is_flat(const struct pl_batchnorm_args *a)
{
    return a->inner < LANES;
}

/* Calls body for each channel, or for the channels of FLAT values. */
static void run(const struct pl_batchnorm_args *a,
                void (*each)(void *ctx, size_t begin, size_t end),
                void (*flat)(void *ctx, size_t begin, size_t end))
{
    if (is_flat(a))
        pl_pool_parallel(a->channels, FLAT / PL_MAX(a->inner, (size_t)1), flat, (void *)a);
    else
        pl_pool_parallel(a->channels, 1, each, (void *)a);
}

typedef float floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t bits __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef double doubles __attribute__((vector_size(LANES * sizeof(double))));

struct pair {
    doubles lanes[2];
};

static void finish(const struct pair *p, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t l = 0; l < LANES; l++) {
        *ret_a += p->lanes[0][l];
        *ret_b += p->lanes[1][l];
    }
}

/* n values from `at` on: in place, or converted into `block`. type is that of x_half and y_half. */
PL_INLINE const float *
get(const enum pl_half type, bool half, const void *p, size_t at, size_t n, float *block)
{
    if (type == PL_HALF_NONE || !half)
        return (const float *)p + at;
    pl_widen_row(type, (const uint16_t *)p + at, block, n);
    return block;
}

/* Values of a channel in an image that are handled at once. */
PL_INLINE size_t block_of(const struct pl_batchnorm_args *a, const enum pl_half type)
{
    return type == PL_HALF_NONE ? a->inner : PL_MIN(a->inner, (size_t)BLOCK);
}

/* Defines each(), with a constant type for each of the three. */
#define FOR_TYPES(each)                                                                            \
    static void each(void *ctx, size_t begin, size_t end)                                          \
    {                                                                                              \
        const struct pl_batchnorm_args *a = ctx;                                                   \
                                                                                                   \
        if (!a->x_half && !a->y_half)                                                              \
            each##_of(a, begin, end, PL_HALF_NONE);                                                \
        else if (a->half == PL_HALF_F16)                                                           \
            each##_of(a, begin, end, PL_HALF_F16);                                                 \
        else                                                                                       \
            each##_of(a, begin, end, PL_HALF_BF16);                                                \
    }

/* The n values of `channel` in image `image`, from its value `from` on. */
PL_INLINE size_t place(const struct pl_batchnorm_args *a, size_t image, size_t channel, size_t from)
{
    return (image * a->channels + channel) * a->inner + from;
}

PL_INLINE void add_squares(struct pair *p, const float *x, size_t n)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        floats narrow;
        doubles v;

        memcpy(&narrow, x + k, sizeof(narrow));
        v = __builtin_convertvector(narrow, doubles);
        p->lanes[0] += v;
        p->lanes[1] += v * v;
    }
    for (; k < n; k++) {
        p->lanes[0][0] += x[k];
        p->lanes[1][0] += (double)x[k] * x[k];
    }
}

PL_INLINE void
sums_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t most = block_of(a, type);
    float block[BLOCK];

    for (size_t c = begin; c < end; c++) {
        struct pair p = {0};

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                some = PL_MIN(most, a->inner - k);
                add_squares(&p, get(type, a->x_half, a->x, place(a, n, c, k), some, block), some);
            }
        finish(&p, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
    }
}

FOR_TYPES(sums)

struct flat_sums {
    double of[2][FLAT];
};

/* Channel c of the block that begins with channel `begin`. */
static void
finish_flat(const struct flat_sums *f, size_t c, size_t inner, double *ret_a, double *ret_b)
{
    *ret_a = *ret_b = 0;
    for (size_t k = c * inner; k < (c + 1) * inner; k++) {
        *ret_a += f->of[0][k];
        *ret_b += f->of[1][k];
    }
}

PL_INLINE void
sums_flat_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    struct flat_sums f;
    float block[FLAT];

    memset(&f, 0, sizeof(f));
    for (size_t n = 0; n < a->batch; n++) {
        const float *x = get(type, a->x_half, a->x, place(a, n, begin, 0), n_values, block);

        for (size_t k = 0; k < n_values; k++) {
            double v = x[k];

            f.of[0][k] += v;
            f.of[1][k] += v * v;
        }
    }
    for (size_t c = begin; c < end; c++)
        finish_flat(&f, c - begin, a->inner, &a->sums[1 + c], &a->sums[1 + a->channels + c]);
}

FOR_TYPES(sums_flat)

/* No tape asks for a sum here. */
static bool is_for_ref(const struct pl_batchnorm_args *a)
{
    return a->r || a->dr;
}

void PL_CPU(batchnorm_sums)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_sums(a);
        return;
    }
    a->sums[0] = (double)(a->batch * a->inner);
    run(a, sums, sums_flat);
}

static void statistics(const struct pl_batchnorm_args *a, size_t c)
{
    float *mean = a->mean, *inv_std = a->inv_std;
    float *running_mean = a->running_mean, *running_var = a->running_var;
    double n, m, var, keep = 1 - a->momentum;

    if (!a->training) {
        mean[c] = running_mean[c];
        inv_std[c] = (float)(1 / sqrt(running_var[c] + a->eps));
        return;
    }
    n = a->sums[0];
    m = a->sums[1 + c] / n;
    var = a->sums[1 + a->channels + c] / n - m * m;
    var = var < 0 ? 0 : var; /* by rounding; NaN stays */
    mean[c] = (float)m;
    inv_std[c] = (float)(1 / sqrt(var + a->eps));
    if (running_mean) {
        running_mean[c] = (float)(keep * running_mean[c] + a->momentum * m);
        running_var[c] =
            (float)(keep * running_var[c] + a->momentum * var * n / PL_MAX(n - 1, 1.0));
    }
}

/* Backward, which may compute y again, has the same bits. */
PL_INLINE void norm(const float *restrict x,
                    float *restrict y,
                    size_t n,
                    float mean,
                    float scale,
                    float shift,
                    bool relu)
{
    if (relu)
        for (size_t k = 0; k < n; k++) {
            float v = (x[k] - mean) * scale + shift;

            y[k] = v <= 0 ? 0 : v;
        }
    else
        for (size_t k = 0; k < n; k++)
            y[k] = (x[k] - mean) * scale + shift;
}

/* The same for values of several channels. */
PL_INLINE void norm_flat(const float *restrict x,
                         float *restrict y,
                         size_t n,
                         const float *restrict means,
                         const float *restrict scales,
                         const float *restrict shifts,
                         bool relu)
{
    if (relu)
        for (size_t k = 0; k < n; k++) {
            float v = (x[k] - means[k]) * scales[k] + shifts[k];

            y[k] = v <= 0 ? 0 : v;
        }
    else
        for (size_t k = 0; k < n; k++)
            y[k] = (x[k] - means[k]) * scales[k] + shifts[k];
}

static float mean_of(const struct pl_batchnorm_args *a, size_t c)
{
    return ((const float *)a->mean)[c];
}

static float scale_of(const struct pl_batchnorm_args *a, size_t c)
{
    return ((const float *)a->inv_std)[c] * (a->w ? ((const float *)a->w)[c] : 1);
}

static float shift_of(const struct pl_batchnorm_args *a, size_t c)
{
    return a->b ? ((const float *)a->b)[c] : 0;
}

PL_INLINE void
forward_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    float x_block[BLOCK], y_block[BLOCK];
    size_t most = block_of(a, type);

    for (size_t c = begin; c < end; c++) {
        statistics(a, c);
        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                size_t at = place(a, n, c, k);

                some = PL_MIN(most, a->inner - k);
                norm(get(type, a->x_half, a->x, at, some, x_block),
                     type && a->y_half ? y_block : (float *)a->y + at, some, mean_of(a, c),
                     scale_of(a, c), shift_of(a, c), a->relu);
                if (type && a->y_half)
                    pl_narrow_row(type, y_block, (uint16_t *)a->y + at, some);
            }
    }
}

FOR_TYPES(forward)

/* Writes a channel's value for each of its values in an image. */
static void repeat(float *to, float value, size_t n)
{
    for (size_t k = 0; k < n; k++)
        to[k] = value;
}

struct flat_norm {
    float means[FLAT], scales[FLAT], shifts[FLAT];
};

static void
fill_flat(struct flat_norm *f, const struct pl_batchnorm_args *a, size_t begin, size_t end)
{
    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;

        repeat(f->means + at, mean_of(a, c), a->inner);
        repeat(f->scales + at, scale_of(a, c), a->inner);
        repeat(f->shifts + at, shift_of(a, c), a->inner);
    }
}

PL_INLINE void forward_flat_of(const struct pl_batchnorm_args *a,
                               size_t begin,
                               size_t end,
                               const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    float x_block[FLAT], y_block[FLAT];
    struct flat_norm f;

    for (size_t c = begin; c < end; c++)
        statistics(a, c);
    fill_flat(&f, a, begin, end);
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = place(a, n, begin, 0);

        norm_flat(get(type, a->x_half, a->x, at, n_values, x_block),
                  type && a->y_half ? y_block : (float *)a->y + at, n_values, f.means, f.scales,
                  f.shifts, a->relu);
        if (type && a->y_half)
            pl_narrow_row(type, y_block, (uint16_t *)a->y + at, n_values);
    }
}

FOR_TYPES(forward_flat)

void PL_CPU(batchnorm_forward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_forward(a);
    else
        run(a, forward, forward_flat);
}

/* y counts if relu is true. */
PL_INLINE void add_products(struct pair *p,
                            const float *y,
                            const float *dy,
                            const float *x,
                            double mean,
                            size_t n,
                            const bool relu)
{
    size_t k = 0;

    for (; k + LANES <= n; k += LANES) {
        floats dz, of_x, of_y;
        doubles d;

        memcpy(&dz, dy + k, sizeof(dz));
        memcpy(&of_x, x + k, sizeof(of_x));
        if (relu) {
            memcpy(&of_y, y + k, sizeof(of_y));
            dz = (floats)((bits)dz & ~(bits)(of_y <= 0));
        }
        d = __builtin_convertvector(dz, doubles);
        p->lanes[0] += d;
        p->lanes[1] += d * (__builtin_convertvector(of_x, doubles) - mean);
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
    float of_x[BLOCK], of_y[BLOCK], of_dy[BLOCK];
    const float *x, *y, *dy;
};

PL_INLINE void read_back(struct blocks *b,
                         const struct pl_batchnorm_args *a,
                         const enum pl_half type,
                         size_t c,
                         size_t at,
                         size_t n)
{
    b->x = get(type, a->x_half, a->x, at, n, b->of_x);
    b->y = b->dy = get(type, a->y_half, a->dy, at, n, b->of_dy);
    if (type && is_again(a)) {
        norm(b->x, b->of_y, n, mean_of(a, c), scale_of(a, c), shift_of(a, c), true);
        b->y = b->of_y;
    } else if (a->relu) {
        b->y = get(type, a->y_half, a->y, at, n, b->of_y);
    }
}

/* The same of the channels of f, which is filled if y is computed again. */
PL_INLINE void read_back_flat(struct blocks *b,
                              const struct pl_batchnorm_args *a,
                              const enum pl_half type,
                              const struct flat_norm *f,
                              size_t at,
                              size_t n)
{
    b->x = get(type, a->x_half, a->x, at, n, b->of_x);
    b->y = b->dy = get(type, a->y_half, a->dy, at, n, b->of_dy);
    if (type && is_again(a)) {
        norm_flat(b->x, b->of_y, n, f->means, f->scales, f->shifts, true);
        b->y = b->of_y;
    } else if (a->relu) {
        b->y = get(type, a->y_half, a->y, at, n, b->of_y);
    }
}

PL_INLINE void
back_sums_of(const struct pl_batchnorm_args *a, size_t begin, size_t end, const enum pl_half type)
{
    size_t most = block_of(a, type);
    struct blocks b;

    for (size_t c = begin; c < end; c++) {
        struct pair p = {0};

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                some = PL_MIN(most, a->inner - k);
                read_back(&b, a, type, c, place(a, n, c, k), some);
                if (a->relu)
                    add_products(&p, b.y, b.dy, b.x, mean_of(a, c), some, true);
                else
                    add_products(&p, b.y, b.dy, b.x, mean_of(a, c), some, false);
            }
        finish(&p, &a->back_sums[1 + c], &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

FOR_TYPES(back_sums)

PL_INLINE void back_sums_flat_of(const struct pl_batchnorm_args *a,
                                 size_t begin,
                                 size_t end,
                                 const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    struct flat_norm norms;
    struct flat_sums f;
    struct blocks b;

    memset(&f, 0, sizeof(f));
    fill_flat(&norms, a, begin, end);
    for (size_t n = 0; n < a->batch; n++) {
        float d[FLAT];

        read_back_flat(&b, a, type, &norms, place(a, n, begin, 0), n_values);
        for (size_t k = 0; k < n_values; k++)
            d[k] = a->relu && b.y[k] <= 0 ? 0 : b.dy[k];
        for (size_t k = 0; k < n_values; k++) {
            f.of[0][k] += d[k];
            f.of[1][k] += d[k] * ((double)b.x[k] - norms.means[k]);
        }
    }
    for (size_t c = begin; c < end; c++) {
        finish_flat(&f, c - begin, a->inner, &a->back_sums[1 + c],
                    &a->back_sums[1 + a->channels + c]);
        write_sums(a, c);
    }
}

FOR_TYPES(back_sums_flat)

void PL_CPU(batchnorm_back_sums)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a)) {
        pl_kernels_ref(PL_REAL_F32)->batchnorm_back_sums(a);
        return;
    }
    a->back_sums[0] = (double)(a->batch * a->inner);
    run(a, back_sums, back_sums_flat);
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
    float of_dz[FLAT], of_x[FLAT], scales[FLAT];
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
    size_t most = block_of(a, type);
    float dx_block[BLOCK];
    struct blocks b;

    for (size_t c = begin; c < end; c++) {
        struct slope s = slope_of(a, c);

        for (size_t n = 0; n < a->batch; n++)
            for (size_t k = 0, some; k < a->inner; k += some) {
                size_t at = place(a, n, c, k);

                some = PL_MIN(most, a->inner - k);
                read_back(&b, a, type, c, at, some);
                slope(b.x, b.y, b.dy, open_dx(a, type, at, some, dx_block), some, mean_of(a, c), &s,
                      a->relu, a->dx_add);
                close_dx(a, type, at, some, dx_block);
            }
    }
}

FOR_TYPES(backward)

PL_INLINE void backward_flat_of(const struct pl_batchnorm_args *a,
                                size_t begin,
                                size_t end,
                                const enum pl_half type)
{
    size_t n_values = (end - begin) * a->inner;
    float dx_block[FLAT];
    struct flat_norm norms;
    struct flat_slope f;
    struct blocks b;

    fill_flat(&norms, a, begin, end);
    for (size_t c = begin; c < end; c++) {
        size_t at = (c - begin) * a->inner;
        struct slope s = slope_of(a, c);

        repeat(f.of_dz + at, s.of_dz, a->inner);
        repeat(f.of_x + at, s.of_x, a->inner);
        repeat(f.scales + at, s.scale, a->inner);
    }
    for (size_t n = 0; n < a->batch; n++) {
        size_t at = place(a, n, begin, 0);

        read_back_flat(&b, a, type, &norms, at, n_values);
        slope_flat(&b, open_dx(a, type, at, n_values, dx_block), n_values, norms.means, &f, a->relu,
                   a->dx_add);
        close_dx(a, type, at, n_values, dx_block);
    }
}

FOR_TYPES(backward_flat)

void PL_CPU(batchnorm_backward)(const struct pl_batchnorm_args *a)
{
    if (is_for_ref(a))
        pl_kernels_ref(PL_REAL_F32)->batchnorm_backward(a);
    else if (a->dx)
        run(a, backward, backward_flat);
}
