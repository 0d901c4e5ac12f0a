/* SPDX-License-Identifier: MIT */
/* The ops that cublasLt implements. Arguments do not name their type, so there is one function per
 * type (PL_CUBLASLT_OPS). */
#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/util/libs.h"

#include <limits.h>

static struct pl_kernels own[PL_REAL_F16 + 1];

/* The context of an op; libs.lt is NULL if the stream has none. */
struct place {
    struct pl_cuda_libs libs;
    struct CUstream_st *stream;
    enum pl_real real;
    bool wide; /* products write f32 */
};

static struct place current(enum pl_real real)
{
    struct place at = {.real = real};

    at.libs = pl_cuda_libs_current(&at.stream);
    return at;
}

/* Tells, if so, that the library's interface does not have a size. */
static bool is_huge(struct place at, const struct pl_matmul_args *a)
{
    bool huge = a->batch && a->m && a->n && a->k &&
                (a->batch > INT_MAX || a->m > INT_MAX || a->n > INT_MAX || a->k > INT_MAX ||
                 a->batch * a->m > INT_MAX);

    if (huge)
        pl_cublaslt_unasked(at.libs.lt, at.real, "product", a->batch * a->m, a->n, a->k,
                            "a size is above 2147483647");
    return huge;
}

/* Returns false if nothing was queued. */
static bool product(struct place at,
                    struct pl_matmul_args args,
                    enum pl_cublaslt_epilogue epilogue,
                    const void *bias,
                    void *aux)
{
    struct pl_cublaslt_key key;
    struct pl_cublaslt_data data;

    if (!at.libs.lt)
        return false;
    if (!pl_cublaslt_of_matmul(&args, at.real, at.wide, pl_cublaslt_tf32(at.libs.lt), &key,
                               &data)) {
        (void)is_huge(at, &args);
        return false;
    }
    if ((epilogue != PL_CUBLASLT_PLAIN &&
         !pl_cublaslt_add_epilogue(&key, &data, epilogue, (void *)(uintptr_t)bias, aux)) ||
        !pl_cublaslt_run(at.libs.lt, &key, &data, at.stream))
        return false;
    pl_cuda_libs_count(&at.libs, true, 1);
    return true;
}

/* True if the op is better done with this epilogue; see pl_cublaslt_fuses(). */
static bool fuses(struct place at,
                  struct pl_matmul_args args,
                  enum pl_cublaslt_epilogue epilogue,
                  const void *bias,
                  const void *aux,
                  bool (*run)(const void *ctx, bool fused),
                  const void *ctx)
{
    struct pl_cublaslt_key key;
    struct pl_cublaslt_data data;

    return !at.libs.lt ||
           !pl_cublaslt_of_matmul(&args, at.real, at.wide, pl_cublaslt_tf32(at.libs.lt), &key,
                                  &data) ||
           !pl_cublaslt_add_epilogue(&key, &data, epilogue, (void *)(uintptr_t)bias,
                                     (void *)(uintptr_t)aux) ||
           pl_cublaslt_fuses(at.libs.lt, &key, at.stream, run, ctx);
}

static void matmul(enum pl_real real, const struct pl_matmul_args *a)
{
    struct place at = current(real);

    if (product(at, *a, PL_CUBLASLT_PLAIN, NULL, NULL))
        return;
    own[real].matmul(a);
    pl_cuda_libs_count(&at.libs, false, 1);
}

/* cublasLt's gelu and its slope are right to some 5e-6 only (cublasLt 13.1 on an H100): less than
 * f32 promises, and than these types have. */
static bool may_fuse_gelu(struct place at)
{
    return at.real == PL_REAL_BF16 || at.real == PL_REAL_F16 ||
           (at.real == PL_REAL_F32 && at.libs.lt && pl_cublaslt_tf32(at.libs.lt));
}

/* y or pre, with the activation in the same pass. */
static bool forward_fused(struct place at, const struct pl_linear_args *a)
{
    struct pl_matmul_args y = pl_cublaslt_linear_y(a, a->y);

    switch (a->act) {
    case PL_ACT_NONE:
        return product(at, y, a->b ? PL_CUBLASLT_BIAS : PL_CUBLASLT_PLAIN, a->b, NULL);
    case PL_ACT_RELU:
        return product(at, y, a->b ? PL_CUBLASLT_RELU_BIAS : PL_CUBLASLT_RELU, a->b, NULL);
    case PL_ACT_GELU_TANH:
        return product(at, y, a->b ? PL_CUBLASLT_GELU_AUX_BIAS : PL_CUBLASLT_GELU_AUX, a->b,
                       a->pre);
    default:
        return false;
    }
}

/* A layer and what of it is asked for. */
struct part {
    struct place at;
    const struct pl_linear_args *a;
    const void *dz;
};

/* For tries: they are no ops of the step. */
static struct part uncounted(struct place at, const struct pl_linear_args *a, const void *dz)
{
    at.libs.calls = NULL;
    return (struct part){at, a, dz};
}

/* The activation in a pass of its own. */
static bool forward_apart(struct place at, const struct pl_linear_args *a)
{
    struct pl_unary_args act = {.n = a->rows * a->out, .act = a->act, .x = a->pre, .y = a->y};

    if (!product(at, pl_cublaslt_linear_y(a, a->pre), a->b ? PL_CUBLASLT_BIAS : PL_CUBLASLT_PLAIN,
                 a->b, NULL))
        return false;
    own[at.real].unary_forward(&act);
    return true;
}

/* Bias and activation in passes of their own: in f64 the library has no epilogues. A sum of 16 bits
 * would be rounded before the bias is added. */
static bool forward_in_passes(struct place at, const struct pl_linear_args *a)
{
    void *z = pl_activation_needs_pre(a->act) ? a->pre : a->y;
    struct pl_binary_args bias = {
        .n = a->rows * a->out, .m = a->out, .op = PL_BINARY_ADD, .a = z, .b = a->b, .y = z};
    struct pl_unary_args act = {.n = a->rows * a->out, .act = a->act, .x = z, .y = a->y};
    struct pl_matmul_args y = pl_cublaslt_linear_y(a, z);

    if (a->b && pl_real_size(at.real) == 2) {
        if (at.libs.lt && a->rows && a->in && a->out && !is_huge(at, &y))
            pl_cublaslt_unasked(at.libs.lt, at.real, "layer", a->rows, a->out, a->in,
                                "it does not add the bias, or that does not begin at a multiple of "
                                "16 bytes");
        return false;
    }
    if (!product(at, y, PL_CUBLASLT_PLAIN, NULL, NULL))
        return false;
    if (a->b)
        own[at.real].binary_forward(&bias);
    if (a->act != PL_ACT_NONE)
        own[at.real].unary_forward(&act);
    return true;
}

static bool try_gelu(const void *ctx, bool fused)
{
    const struct part *p = ctx;

    return fused ? forward_fused(p->at, p->a) : forward_apart(p->at, p->a);
}

static void linear_forward(enum pl_real real, const struct pl_linear_args *a)
{
    struct place at = current(real);
    struct part part = uncounted(at, a, NULL);
    bool apart =
        a->act == PL_ACT_GELU_TANH &&
        (!may_fuse_gelu(at) || !fuses(at, pl_cublaslt_linear_y(a, a->y),
                                      a->b ? PL_CUBLASLT_GELU_AUX_BIAS : PL_CUBLASLT_GELU_AUX, a->b,
                                      a->pre, try_gelu, &part));

    if (!apart && forward_fused(at, a))
        return;
    if (pl_activation_needs_pre(a->act) && forward_apart(at, a))
        return;
    if (forward_in_passes(at, a))
        return;
    own[real].linear_forward(a);
    pl_cuda_libs_count(&at.libs, false, 1);
}

static bool dx_fused(struct place at, const struct pl_linear_args *a, const void *dz)
{
    return product(at, pl_cublaslt_linear_dx(a, dz), PL_CUBLASLT_DGELU, NULL,
                   (void *)(uintptr_t)a->x_pre);
}

static bool dx_apart(struct place at, const struct pl_linear_args *a, const void *dz)
{
    struct pl_unary_args slope = {
        .n = a->rows * a->in, .act = a->x_act, .x = a->x_pre, .dy = a->dx, .dx = a->dx};

    if (!product(at, pl_cublaslt_linear_dx(a, dz), PL_CUBLASLT_PLAIN, NULL, NULL))
        return false;
    if (a->x_pre)
        own[at.real].unary_backward(&slope);
    return true;
}

static bool try_slope(const void *ctx, bool fused)
{
    const struct part *p = ctx;

    return (fused ? dx_fused : dx_apart)(p->at, p->a, p->dz);
}

static bool has_gelus_slope(struct place at, const struct pl_linear_args *a)
{
    return a->x_pre && a->x_act == PL_ACT_GELU_TANH && may_fuse_gelu(at);
}

/* dx, with the slope of the activation before it in the same pass or in one of its own. */
static bool dx_alone(struct place at, const struct pl_linear_args *a, const void *dz)
{
    struct part part = uncounted(at, a, dz);

    if (has_gelus_slope(at, a) &&
        fuses(at, pl_cublaslt_linear_dx(a, dz), PL_CUBLASLT_DGELU, NULL, a->x_pre, try_slope,
              &part) &&
        dx_fused(at, a, dz))
        return true;
    return dx_apart(at, a, dz);
}

/* Of 16-bit numbers. */
static struct pl_half_args halves(struct place at, size_t n, void *half, void *wide, bool add)
{
    return (struct pl_half_args){.n = n,
                                 .type = at.real == PL_REAL_F16 ? PL_HALF_F16 : PL_HALF_BF16,
                                 .add = add,
                                 .half = half,
                                 .wide = wide};
}

/* The memory that the library writes dx_sums to. The library writes them in dx's type. */
static void *room_for_sums(struct place at, const struct pl_linear_args *a)
{
    return pl_cuda_stream_scratch(pl_cuda_stream_current(), a->in * pl_real_size(at.real));
}

/* dx with the slope and its columns' sums in the same pass. */
static bool dx_with_sums(struct place at, const struct pl_linear_args *a, const void *dz)
{
    struct pl_half_args sums = halves(at, a->in, room_for_sums(at, a), a->dx_sums, a->dx_sums_add);

    if (!sums.half || !product(at, pl_cublaslt_linear_dx(a, dz), PL_CUBLASLT_DGELU_BGRAD, sums.half,
                               (void *)(uintptr_t)a->x_pre))
        return false;
    own[PL_REAL_F32].widen(&sums);
    return true;
}

static void sum_dx(struct place at, const struct pl_linear_args *a)
{
    own[at.real].linear_backward(&(struct pl_linear_args){.rows = a->rows,
                                                          .out = a->in,
                                                          .db_add = a->dx_sums_add,
                                                          .db_wide = true,
                                                          .dy = a->dx,
                                                          .dz = a->dx,
                                                          .db = a->dx_sums});
}

static bool try_sums(const void *ctx, bool fused)
{
    const struct part *p = ctx;

    if (fused)
        return dx_with_sums(p->at, p->a, p->dz);
    if (!dx_alone(p->at, p->a, p->dz))
        return false;
    sum_dx(p->at, p->a);
    return true;
}

/* dx, with its columns' sums if they are wanted. */
static bool dx_product(struct place at, const struct pl_linear_args *a, const void *dz)
{
    struct part part = uncounted(at, a, dz);
    struct pl_matmul_args dx = pl_cublaslt_linear_dx(a, dz);
    void *room;

    if (!a->dx_sums)
        return dx_alone(at, a, dz);
    dx.add |= a->dx_sums_add; /* for the question alone: each try would add to them */
    room = has_gelus_slope(at, a) && pl_real_size(at.real) == 2 ? room_for_sums(at, a) : NULL;
    if (room && fuses(at, dx, PL_CUBLASLT_DGELU_BGRAD, room, a->x_pre, try_sums, &part) &&
        dx_with_sums(at, a, dz))
        return true;
    if (!dx_alone(at, a, dz))
        return false;
    sum_dx(at, a);
    return true;
}

/* Of dw. */
static struct place to_dw(struct place at, const struct pl_linear_args *a)
{
    at.wide = a->dw_wide;
    return at;
}

/* db (+)= x, n numbers that are f32 or, with `low`, of 16 bits. */
static void put_db(struct place at, const struct pl_linear_args *a, void *x, bool low)
{
    struct pl_half_args half = halves(at, a->out, low ? x : a->db, low ? a->db : x, a->db_add);

    if (!a->db_wide)
        own[PL_REAL_F32].narrow(&half);
    else if (low)
        own[PL_REAL_F32].widen(&half);
    else
        own[PL_REAL_F32].add(
            &(struct pl_add_args){.n = a->out, .scale = 1, .a = a->db, .b = x, .dst = a->db});
}

/* dw in f32, with db in the same pass. It is f32 as well, and goes by way of other memory if it is
 * wanted otherwise. */
static bool dw_wide_fused(struct place at, const struct pl_linear_args *a)
{
    void *db = a->db;
    bool direct = a->db_wide && !a->db_add;

    if (!direct)
        db = pl_cuda_stream_scratch(pl_cuda_stream_current(), a->out * sizeof(float));
    if (!db || !product(to_dw(at, a), pl_cublaslt_linear_dw(a, a->dz), PL_CUBLASLT_BGRAD, db, NULL))
        return false;
    if (!direct)
        put_db(at, a, db, false);
    return true;
}

/* If the library does not write both in f32: in 16 bits into other memory, and from there. */
static bool dw_by_halves(struct place at, const struct pl_linear_args *a)
{
    size_t n = a->out * a->in, room = (n * sizeof(uint16_t) + 255) / 256 * 256;
    char *other =
        pl_cuda_stream_scratch(pl_cuda_stream_current(), room + a->out * sizeof(uint16_t));
    struct pl_linear_args low = *a;
    struct pl_half_args half;

    if (!other || (a->db_add && !a->db_wide))
        return false;
    low.dw = other;
    low.dw_add = false;
    if (a->db_wide)
        low.db = other + room;
    if (!product(at, pl_cublaslt_linear_dw(&low, low.dz), PL_CUBLASLT_BGRAD, low.db, NULL))
        return false;
    half = halves(at, n, other, a->dw, a->dw_add);
    own[PL_REAL_F32].widen(&half);
    if (a->db_wide)
        put_db(at, a, low.db, true);
    return true;
}

/* dw with db in the same pass. */
static bool dw_fused(struct place at, const struct pl_linear_args *a)
{
    if (a->dw_wide)
        return dw_wide_fused(at, a) || dw_by_halves(at, a);
    return !a->db_add && !a->db_wide &&
           product(at, pl_cublaslt_linear_dw(a, a->dz), PL_CUBLASLT_BGRAD, a->db, NULL);
}

static bool dw_apart(struct place at, const struct pl_linear_args *a)
{
    return product(to_dw(at, a), pl_cublaslt_linear_dw(a, a->dz), PL_CUBLASLT_PLAIN, NULL, NULL);
}

/* dw by the library, db by a kernel of its own. */
static bool try_bias(const void *ctx, bool fused)
{
    const struct part *p = ctx;
    struct pl_linear_args rest = *p->a;

    if (fused)
        return dw_fused(p->at, p->a);
    rest.dx = rest.dw = rest.dx_sums = NULL;
    if (!dw_apart(p->at, p->a))
        return false;
    own[p->at.real].linear_backward(&rest);
    return true;
}

/* Removes what cublasLt computes from the rest: dw, with db in the same pass if db is written (not
 * added to) or may be f32, and dx. */
static void linear_backward(enum pl_real real, const struct pl_linear_args *a)
{
    struct place at = current(real);
    struct pl_linear_args left = *a;
    struct pl_matmul_args dw;
    struct part part;

    if (a->act != PL_ACT_NONE) {
        left.dx = left.dw = left.db = left.dx_sums = NULL;
        own[real].linear_backward(&left); /* dz only */
        left = *a;
        left.act = PL_ACT_NONE;
        left.dy = left.dz;
    } else {
        left.dz = (void *)(uintptr_t)left.dy;
    }
    part = uncounted(at, &left, left.dz);
    dw = pl_cublaslt_linear_dw(&left, left.dz);
    dw.add |= left.db_add; /* for the question alone: each try would add to db */
    if (left.dw && left.db && (!left.db_add || left.dw_wide) &&
        fuses(to_dw(at, a), dw, PL_CUBLASLT_BGRAD, left.db, NULL, try_bias, &part) &&
        dw_fused(at, &left))
        left.dw = left.db = NULL;
    if (left.dw && dw_apart(at, &left))
        left.dw = NULL;
    if (left.dx && dx_product(at, &left, left.dz))
        left.dx = left.dx_sums = NULL;
    if (left.dx || left.dw || left.db)
        own[real].linear_backward(&left);
    pl_cuda_libs_count(&at.libs, false, (left.dx != NULL) + (left.dw != NULL)); /* products only */
}

#define PL_CUBLASLT_OPS(name, real)                                                                \
    static void matmul_##name(const struct pl_matmul_args *a)                                      \
    {                                                                                              \
        matmul(real, a);                                                                           \
    }                                                                                              \
    static void linear_forward_##name(const struct pl_linear_args *a)                              \
    {                                                                                              \
        linear_forward(real, a);                                                                   \
    }                                                                                              \
    static void linear_backward_##name(const struct pl_linear_args *a)                             \
    {                                                                                              \
        linear_backward(real, a);                                                                  \
    }
PL_CUBLASLT_OPS(f32, PL_REAL_F32)
PL_CUBLASLT_OPS(f64, PL_REAL_F64)
PL_CUBLASLT_OPS(bf16, PL_REAL_BF16)
PL_CUBLASLT_OPS(f16, PL_REAL_F16)

#define PL_CUBLASLT_SET(name, value)                                                               \
    case value:                                                                                    \
        table->matmul = matmul_##name;                                                             \
        table->linear_forward = linear_forward_##name;                                             \
        table->linear_backward = linear_backward_##name;                                           \
        break

void pl_cublaslt_install(struct pl_kernels *table)
{
    own[table->real] = *table;
    switch (table->real) {
        PL_CUBLASLT_SET(f32, PL_REAL_F32);
        PL_CUBLASLT_SET(f64, PL_REAL_F64);
        PL_CUBLASLT_SET(bf16, PL_REAL_BF16);
        PL_CUBLASLT_SET(f16, PL_REAL_F16);
    default:
        break;
    }
}
