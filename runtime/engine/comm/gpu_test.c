/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/gpu_test.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "kernels/half.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/util/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define NCCL_LIMIT_MS 10000
#define ARRAYS_MAX 16

/* The host has f32 values in each case: the input as rounded to the type, or the result as the
 * reference has it. */
struct array {
    const char *name;
    size_t n;
    enum pl_real real; /* on the device */
    float *host;
    void *device;
};

/* One op in one type. Once an error is set nothing more is done. */
struct test {
    struct pl_device *dev;
    const struct pl_kernels *gpu, *ref; /* ref: f32 */
    enum pl_real real;
    const char *op;
    struct pl_rng rng;
    struct array arrays[ARRAYS_MAX];
    unsigned n;
    int code;
    struct pl_error *err;
};

static const char *const real_names[] = {
    [PL_REAL_F32] = "f32", [PL_REAL_F64] = "f64", [PL_REAL_BF16] = "bf16", [PL_REAL_F16] = "f16"};

static bool is_half(enum pl_real real)
{
    return real == PL_REAL_BF16 || real == PL_REAL_F16;
}

static enum pl_half half_of(enum pl_real real)
{
    return real == PL_REAL_F16 ? PL_HALF_F16 : PL_HALF_BF16;
}

/* Copies between f32 values and the bytes of a device's type. */
static void pack(enum pl_real real, size_t n, const float *from, void *to)
{
    for (size_t i = 0; is_half(real) && i < n; i++)
        ((uint16_t *)to)[i] = pl_half_of_f32(half_of(real), from[i]);
    if (!is_half(real))
        memcpy(to, from, n * sizeof(float));
}

static void unpack(enum pl_real real, size_t n, const void *from, float *to)
{
    for (size_t i = 0; is_half(real) && i < n; i++)
        to[i] = pl_f32_of_half(half_of(real), ((const uint16_t *)from)[i]);
    if (!is_half(real))
        memcpy(to, from, n * sizeof(float));
}

/* ---- arrays ---- */

/* Fills host and device: with random numbers in [-1, 1), or NaNs where a kernel forgets some. */
static void fill(struct test *t, struct array *a, bool random)
{
    _cleanup_free_ void *bytes = calloc(a->n, sizeof(float));

    if (!bytes) {
        t->code = pl_error_nomem(t->err);
        return;
    }
    for (size_t i = 0; i < a->n; i++)
        a->host[i] = random ? (float)(2 * pl_rng_uniform(&t->rng) - 1) : NAN;
    pack(a->real, a->n, a->host, bytes);
    unpack(a->real, a->n, bytes, a->host);
    pl_device_upload(t->dev, a->device, bytes, a->n * pl_real_size(a->real));
}

/* A new array; its memory is NULL once something has failed. */
static struct array
array(struct test *t, const char *name, size_t n, enum pl_real real, bool random)
{
    struct array a = {.name = name, .n = n, .real = real};

    if (t->code < 0)
        return a;
    a.host = calloc(n, sizeof(float));
    if (!a.host)
        t->code = pl_error_nomem(t->err);
    else
        t->code =
            pl_device_alloc(t->dev, n * pl_real_size(real), "the GPU's test", &a.device, t->err);
    t->arrays[t->n++] = a;
    if (t->code == 0)
        fill(t, &a, random);
    return a;
}

static struct array input(struct test *t, const char *name, size_t n)
{
    return array(t, name, n, t->real, true);
}

static struct array output(struct test *t, const char *name, size_t n)
{
    return array(t, name, n, t->real, false);
}

static struct array statistic(struct test *t, const char *name, size_t n)
{
    return array(t, name, n, pl_real_of_stats(t->real), false);
}

static void drop_arrays(struct test *t)
{
    while (t->n > 0) {
        struct array *a = &t->arrays[--t->n];

        pl_device_free(t->dev, a->device);
        free(a->host);
    }
}

/* The error that a result may have, as a share of the largest value: some roundings of the type,
 * since libraries round in between (probabilities, the slope of gelu), and sums of up to 128
 * numbers in another order. A wrong kernel is off by the values themselves. */
static double tolerance(enum pl_real real)
{
    return real == PL_REAL_BF16 ? 0x1p-5 : real == PL_REAL_F16 ? 0x1p-8 : 1e-4;
}

/* Compares the device's result with the reference's, which the host has. */
static void compare(struct test *t, const struct array *a)
{
    size_t bytes = a->n * pl_real_size(a->real);
    _cleanup_free_ void *raw = t->code < 0 ? NULL : malloc(a->n * sizeof(float));
    _cleanup_free_ float *got = t->code < 0 ? NULL : malloc(a->n * sizeof(float));
    double most = 0;

    if (t->code == 0 && (!raw || !got))
        t->code = pl_error_nomem(t->err);
    if (t->code == 0)
        t->code = pl_device_download(t->dev, raw, a->device, bytes, t->err);
    if (t->code < 0)
        return;
    unpack(a->real, a->n, raw, got);
    for (size_t i = 0; i < a->n; i++)
        most = fmax(most, fabs((double)a->host[i]));
    for (size_t i = 0; i < a->n && t->code == 0; i++)
        if (!(fabs((double)got[i] - (double)a->host[i]) <= tolerance(t->real) * most))
            t->code = pl_error_set(
                t->err, -EDOM, "%s in %s is wrong: %s[%zu] is %g, by the reference %g", t->op,
                real_names[t->real], a->name, i, (double)got[i], (double)a->host[i]);
}

/* ---- ops ---- */

static void product(struct test *t)
{
    const size_t batch = 2, m = 72, n = 88, k = 96;
    struct array a = input(t, "a", batch * m * k), b = input(t, "b", batch * n * k),
                 c = output(t, "c", batch * m * n);
    struct pl_matmul_args args = {
        .batch = batch,
        .m = m,
        .n = n,
        .k = k,
        .b_transposed = true,
        .a_row = k,
        .b_row = k,
        .c_row = n,
        .a_batch = m * k,
        .b_batch = n * k,
        .c_batch = m * n,
        .scale = 0.5,
        .a = a.device,
        .b = b.device,
        .c = c.device,
    };

    if (t->code < 0)
        return;
    t->gpu->matmul(&args);
    args.a = a.host;
    args.b = b.host;
    args.c = c.host;
    t->ref->matmul(&args);
    compare(t, &c);
}

/* Forward, and from the reference's own result, backward. */
static void linear(struct test *t)
{
    const size_t rows = 96, in = 64, out = 80;
    struct array x = input(t, "x", rows * in), w = input(t, "w", out * in), b = input(t, "b", out),
                 dy = input(t, "dy", rows * out), y = output(t, "y", rows * out),
                 pre = output(t, "pre", rows * out), dz = output(t, "dz", rows * out),
                 dx = output(t, "dx", rows * in), dw = output(t, "dw", out * in),
                 db = output(t, "db", out);
    struct pl_linear_args args = {.rows = rows, .in = in, .out = out, .act = PL_ACT_GELU_TANH};
    struct pl_linear_args host = args;

    args.x = x.device, args.w = w.device, args.b = b.device, args.dy = dy.device;
    args.y = y.device, args.pre = pre.device, args.dz = dz.device;
    args.dx = dx.device, args.dw = dw.device, args.db = db.device;
    host.x = x.host, host.w = w.host, host.b = b.host, host.dy = dy.host;
    host.y = y.host, host.pre = pre.host, host.dz = dz.host;
    host.dx = dx.host, host.dw = dw.host, host.db = db.host;
    if (t->code < 0)
        return;
    t->gpu->linear_forward(&args);
    t->gpu->linear_backward(&args);
    t->ref->linear_forward(&host);
    t->ref->linear_backward(&host);
    compare(t, &y);
    compare(t, &dx);
    compare(t, &dw);
    compare(t, &db);
}

static void attention(struct test *t)
{
    const size_t batch = 2, heads = 2, time = 128, dim = 64, n = batch * heads * time * dim;
    const struct pl_attention_strides dense = {time * heads * dim, heads * dim, dim};
    struct array q = input(t, "q", n), k = input(t, "k", n), v = input(t, "v", n),
                 dy = input(t, "dy", n), y = output(t, "y", n), dq = output(t, "dq", n),
                 dk = output(t, "dk", n), dv = output(t, "dv", n),
                 lse = statistic(t, "lse", batch * heads * time);
    struct pl_attention_args args = {
        .batch = batch,
        .heads = heads,
        .time = time,
        .keys = time,
        .dim = dim,
        .causal = true,
        .scale = 0.125,
        .q_at = dense,
        .k_at = dense,
        .v_at = dense,
        .y_at = dense,
        .dy_at = dense,
        .dq_at = dense,
        .dk_at = dense,
        .dv_at = dense,
    };
    struct pl_attention_args host = args;

    args.q = q.device, args.k = k.device, args.v = v.device, args.dy = dy.device;
    args.y = y.device, args.lse = lse.device;
    args.dq = dq.device, args.dk = dk.device, args.dv = dv.device;
    host.q = q.host, host.k = k.host, host.v = v.host, host.dy = dy.host;
    host.y = y.host, host.lse = lse.host;
    host.dq = dq.host, host.dk = dk.host, host.dv = dv.host;
    if (t->code < 0)
        return;
    t->gpu->attention_forward(&args);
    t->gpu->attention_backward(&args);
    t->ref->attention_forward(&host);
    t->ref->attention_backward(&host);
    compare(t, &y);
    compare(t, &dq);
    compare(t, &dk);
    compare(t, &dv);
}

/* ---- all of it ---- */

static const struct op {
    const char *name;
    void (*run)(struct test *t);
} ops_list[] = {
    {"a matrix product", product},
    {"a linear layer", linear},
    {"attention", attention},
};

static void count_calls(struct pl_device *dev, struct pl_device_calls *ret)
{
    *ret = (struct pl_device_calls){0};
    if (dev->ops->calls)
        dev->ops->calls(dev, ret);
}

/* Our own kernels take many times as long for 16 bits: nobody wants a GPU where they do an op, or a
 * part of it, such as its gradient. */
static int
run_op(struct pl_device *dev, enum pl_real real, const struct op *op, struct pl_error *err)
{
    struct test t = {.dev = dev,
                     .gpu = dev->ops->kernels(dev, real),
                     .ref = pl_kernels_ref(PL_REAL_F32),
                     .real = real,
                     .op = op->name,
                     .err = err};
    struct pl_device_calls before, after;

    count_calls(dev, &before);
    pl_rng_init(&t.rng, 1, real);
    op->run(&t);
    count_calls(dev, &after);
    drop_arrays(&t);
    if (t.code == 0 && is_half(real) && after.own > before.own)
        return pl_error_set(err, -ENOTSUP,
                            "%s in %s is%s done by Plume's own kernels, not by NVIDIA's libraries, "
                            "and so many times slower",
                            op->name, real_names[real],
                            after.library > before.library ? " in part" : "");
    return t.code;
}

/* The all-reduce, of this rank alone: that NCCL is there and runs on this GPU. */
struct reduction {
    struct pl_comm *host, *comm;
};

/* NCCL takes about a second to connect: it does that while the ops run. */
static int begin_reduce(struct pl_device *dev,
                        const struct pl_nccl_table *nccl,
                        struct reduction *ret,
                        struct pl_error *err)
{
    int r = pl_comm_self_create(0, &ret->host, err);

    return r < 0 ? r
                 : pl_comm_nccl_begin(ret->host, nccl, dev->ops->stream(dev), NCCL_LIMIT_MS,
                                      &ret->comm, err);
}

static int reduce(struct pl_device *dev, struct pl_comm *comm, struct pl_error *err)
{
    struct test t = {.dev = dev, .real = PL_REAL_F32, .op = "an all-reduce by NCCL", .err = err};
    struct array sum;

    pl_rng_init(&t.rng, 1, 0);
    sum = input(&t, "sum", 1000);
    if (t.code == 0)
        t.code = pl_comm_nccl_connect(comm, err);
    if (t.code == 0)
        t.code = pl_comm_nccl_start(comm, sum.device, sum.n, PL_NCCL_F32, 0.5, err);
    if (t.code == 0)
        t.code = pl_comm_nccl_join(comm, err);
    for (size_t i = 0; t.code == 0 && i < sum.n; i++)
        sum.host[i] *= 0.5f;
    compare(&t, &sum);
    drop_arrays(&t);
    return t.code;
}

static void end_reduce(struct reduction *r, bool failed)
{
    if (r->comm && failed)
        r->comm->ops->abort(r->comm, "the test has failed");
    pl_comm_destroy(r->comm);
    pl_comm_destroy(r->host);
}

static void tell_time(const char *what, uint64_t *since)
{
    uint64_t now = pl_now_ns();

    pl_log_debug("train", "the GPU's test %s: %.0f ms", what, (double)(now - *since) * 1e-6);
    *since = now;
}

int pl_gpu_test_run(const struct pl_device_ops *ops,
                    unsigned index,
                    const struct pl_nccl_table *nccl,
                    struct pl_error *err)
{
    static const enum pl_real reals[] = {PL_REAL_F32, PL_REAL_BF16, PL_REAL_F16};
    /* To time some algorithms for each product would take longer than all the rest. */
    static const struct pl_device_options options = {.untimed = true};
    struct reduction reduction = {0};
    struct pl_device *dev = NULL;
    uint64_t since = pl_now_ns();
    int r = ops->open(index, &options, &dev, err);

    tell_time("opened it", &since);
    if (r < 0)
        return r;
    pl_device_enter(dev);
    if (nccl)
        r = begin_reduce(dev, nccl, &reduction, err);
    tell_time("began to connect NCCL", &since);
    for (size_t i = 0; i < PL_COUNT(reals); i++)
        for (size_t k = 0; k < PL_COUNT(ops_list) && r == 0; k++) {
            char what[64];

            r = run_op(dev, reals[i], &ops_list[k], err);
            snprintf(what, sizeof(what), "did %s in %s", ops_list[k].name, real_names[reals[i]]);
            tell_time(what, &since);
        }
    if (r == 0 && nccl)
        r = reduce(dev, reduction.comm, err);
    tell_time("did an all-reduce", &since);
    end_reduce(&reduction, r < 0);
    dev->ops->close(dev);
    tell_time("closed it", &since);
    return r;
}
