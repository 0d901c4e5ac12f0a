/* SPDX-License-Identifier: MIT */
/* bench-gpu-kernels [SHRINK]: prints the ops' speed on GPU 0 as a table, on shapes of GPT-2 (124M,
 * 16 sequences of 1024) and of the CNN of ./dev bench engine. Columns: op, shape, type,
 * microseconds, TFLOP/s or GB/s (each array counts once per direction), and the ratio to the
 * highest rate of this run: for ops with matrix products that of the first row, the largest
 * product, else that of the second row, a copy. Each number is the best of several rounds; a round
 * has as many calls as take ROUND_MS. SHRINK divides the sizes, to test the program on slow GPUs,
 * with one round. Exits with 77 without a GPU. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "kernels/half.h"
#include "runtime/engine/device/gpu.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 5
#define ROUND_MS 20.0
#define CALLS_MAX 1000
#define ARRAYS_MAX 24

struct bench {
    struct pl_device *dev;
    const struct pl_kernels *k;
    enum pl_real real;
    size_t shrink;
    void *arrays[ARRAYS_MAX];
    size_t n_arrays;
    bool failed;
    double most_flops, most_bytes; /* per second; the highest rates of this run */
};

static const char *const names[] = {"f32", "f64", "bf16", "f16"};

/* Prints the first failure; later calls do nothing. */
static void fail(struct bench *b, const char *what, const struct pl_error *err)
{
    if (!b->failed)
        fprintf(stderr, "bench-gpu-kernels: %s: %s\n", what, pl_error_text(err));
    b->failed = true;
}

/* ---- arrays of one row ---- */

static void *bytes(struct bench *b, size_t n)
{
    struct pl_error err = {0};
    void *p = NULL;

    if (b->failed)
        return NULL;
    if (b->n_arrays == ARRAYS_MAX)
        pl_error_set(&err, -E2BIG, "too many arrays");
    else
        pl_device_alloc_zero(b->dev, n, "benchmark", &p, &err);
    if (p)
        b->arrays[b->n_arrays++] = p;
    else
        fail(b, "memory", &err);
    return p;
}

/* Makes n numbers of the table's type in [-0.5, 0.5]: zeros would use less power. The host makes
 * the first of them only, since billions would take it longer than all measurements. */
static void *numbers(struct bench *b, size_t n)
{
    size_t size = pl_real_size(b->real), made = PL_MIN(n, (size_t)1 << 20);
    char *p = bytes(b, n * size);
    void *stage = malloc(made * size + 1);

    if (!p || !stage) {
        free(stage);
        return p;
    }
    for (size_t i = 0; i < made; i++) {
        float f = (float)(i * 2654435761u % 1001) / 1001 - 0.5f;

        if (size == sizeof(f))
            ((float *)stage)[i] = f;
        else
            ((uint16_t *)stage)[i] = pl_bf16_of_f32(f);
    }
    pl_device_upload(b->dev, p, stage, made * size);
    for (size_t at = made; at < n; at *= 2)
        b->dev->ops->copy(b->dev, p + at * size, p, PL_MIN(at, n - at) * size);
    free(stage);
    return p;
}

/* Makes zeros for the values that an op saves of n rows, in its type of computation. */
static void *row_values(struct bench *b, size_t n)
{
    return bytes(b, n * PL_MAX(pl_real_size(b->real), sizeof(float)));
}

static int32_t *indices(struct bench *b, size_t n, size_t below)
{
    int32_t *host = malloc(n * sizeof(*host)), *p = bytes(b, n * sizeof(*p));

    for (size_t i = 0; host && i < n; i++)
        host[i] = (int32_t)(i * 2654435761u % below);
    if (p && host)
        pl_device_upload(b->dev, p, host, n * sizeof(*host));
    free(host);
    return p;
}

static void forget(struct bench *b)
{
    while (b->n_arrays)
        pl_device_free(b->dev, b->arrays[--b->n_arrays]);
}

/* ---- measurement ---- */

typedef void (*call_f)(const void *args);

/* Seconds from the launch of the first of n calls to the end of the last. */
static double timed(struct bench *b, call_f call, const void *args, unsigned n)
{
    struct pl_error err = {0};
    uint64_t start = pl_now_ns();

    for (unsigned i = 0; i < n && !b->failed; i++)
        call(args);
    if (pl_device_sync(b->dev, &err) < 0)
        fail(b, "a kernel", &err);
    return (double)(pl_now_ns() - start) * 1e-9;
}

/* flops, moved: of one call; the rate is that of the one that is not 0. */
static void PL_PRINTF(7, 8) measure(struct bench *b,
                                    const char *op,
                                    call_f call,
                                    const void *args,
                                    double flops,
                                    double moved,
                                    const char *shape,
                                    ...)
{
    double best = 0, rate, most;
    char text[80];
    unsigned n;
    va_list ap;

    va_start(ap, shape);
    vsnprintf(text, sizeof(text), shape, ap);
    va_end(ap);
    timed(b, call, args, 1); /* makes plans and scratch memory */
    n = (unsigned)PL_MIN(CALLS_MAX, 1 + ROUND_MS * 1e-3 / PL_MAX(timed(b, call, args, 1), 1e-9));
    for (int round = 0; round < (b->shrink > 1 ? 1 : ROUNDS); round++) {
        double s = timed(b, call, args, n) / n;

        if (round == 0 || s < best)
            best = s;
    }
    rate = (flops > 0 ? flops : moved) / best;
    if (flops > 0 && b->most_flops == 0)
        b->most_flops = rate;
    if (moved > 0 && b->most_bytes == 0)
        b->most_bytes = rate;
    most = flops > 0 ? b->most_flops : b->most_bytes;
    if (!b->failed)
        printf("%-24s %-28s %-5s %10.1f us %9.1f %s %5.0f%%\n", op, text, names[b->real],
               best * 1e6, rate * (flops > 0 ? 1e-12 : 1e-9), flops > 0 ? "TFLOP/s" : "GB/s   ",
               100 * rate / most);
    fflush(stdout);
    forget(b);
}

static const struct pl_kernels *table;

#define CALL(function, type)                                                                       \
    static void call_##function(const void *args)                                                  \
    {                                                                                              \
        table->function((const struct pl_##type##_args *)args);                                    \
    }

CALL(linear_forward, linear)
CALL(linear_backward, linear)
CALL(conv2d_forward, conv2d)
CALL(conv2d_backward, conv2d)
CALL(attention_forward, attention)
CALL(attention_backward, attention)
CALL(copy, copy)
CALL(layernorm_forward, layernorm)
CALL(layernorm_backward, layernorm)
CALL(cross_entropy_forward, cross_entropy)
CALL(cross_entropy_backward, cross_entropy)
CALL(softmax_forward, softmax)
CALL(embedding_forward, embedding)
CALL(embedding_backward, embedding)
CALL(unary_forward, unary)
CALL(unary_backward, unary)
CALL(add, add)
CALL(binary_backward, binary)
CALL(dropout, dropout)
CALL(reduce_forward, reduce)
CALL(narrow, half)
CALL(grad_stats, grad_stats)
CALL(sgd, sgd)
CALL(adam, adam)

static void call_batchnorm(const void *args)
{
    table->batchnorm_sums((const struct pl_batchnorm_args *)args);
    table->batchnorm_forward((const struct pl_batchnorm_args *)args);
}

static void call_batchnorm_backward(const void *args)
{
    table->batchnorm_back_sums((const struct pl_batchnorm_args *)args);
    table->batchnorm_backward((const struct pl_batchnorm_args *)args);
}

/* ---- rows ---- */

static size_t less(const struct bench *b, size_t n)
{
    return PL_MAX(n / b->shrink, (size_t)1);
}

static double size_of(const struct bench *b, double elements)
{
    return elements * (double)pl_real_size(b->real);
}

static void
linear(struct bench *b, size_t rows, size_t in, size_t out, enum pl_activation act, bool back)
{
    struct pl_linear_args a = {.act = act};
    double flops;

    a.rows = rows = less(b, rows);
    a.in = in = less(b, in);
    a.out = out = less(b, out);
    flops = (back ? 4.0 : 2.0) * (double)rows * (double)in * (double)out;
    a.x = numbers(b, rows * in);
    a.w = numbers(b, in * out);
    a.b = numbers(b, out);
    a.y = numbers(b, rows * out);
    a.pre = numbers(b, rows * out);
    if (back) {
        a.dy = numbers(b, rows * out);
        a.dz = numbers(b, rows * out);
        a.dx = numbers(b, rows * in);
        a.dw = numbers(b, in * out);
        a.db = numbers(b, out);
    }
    measure(b, back ? "linear backward" : "linear",
            back ? call_linear_backward : call_linear_forward, &a, flops, 0, "%zu x %zu x %zu%s",
            rows, in, out, act ? ", gelu" : "");
}

static void conv(struct bench *b, size_t n, size_t in, size_t size, size_t out, bool back)
{
    struct pl_conv2d_args a = {.kernel_h = 3,
                               .kernel_w = 3,
                               .stride_h = 1,
                               .stride_w = 1,
                               .pad_h = 1,
                               .pad_w = 1,
                               .relu = true,
                               .in = in,
                               .out = out};
    size_t pixels;

    a.batch = n = less(b, n);
    a.height = a.width = size = PL_MAX(less(b, size), (size_t)4);
    pixels = n * size * size;
    a.x = numbers(b, pixels * in);
    a.w = numbers(b, out * in * 9);
    a.b = numbers(b, out);
    a.y = numbers(b, pixels * out);
    a.dy = numbers(b, pixels * out);
    a.dx = numbers(b, pixels * in);
    a.dw = numbers(b, out * in * 9);
    a.db = numbers(b, out);
    measure(b, back ? "conv2d backward" : "conv2d",
            back ? call_conv2d_backward : call_conv2d_forward, &a,
            (back ? 36.0 : 18.0) * (double)pixels * (double)(in * out), 0,
            "%zu x %zu x %zux%zu to %zu", n, in, size, size, out);
}

/* Causal attention with q, k and v side by side in one array, as in the gpt module. */
static void
attention(struct bench *b, size_t batch, size_t heads, size_t time, size_t dim, bool back)
{
    struct pl_attention_args a = {.heads = heads, .dim = dim, .causal = true, .scale = 0.125};
    size_t width = heads * dim, n;
    char *qkv, *grads;
    size_t step;

    a.batch = batch = less(b, batch);
    a.time = a.keys = time = less(b, time);
    n = batch * time * width;
    qkv = numbers(b, 3 * n);
    grads = numbers(b, 3 * n);
    step = width * pl_real_size(b->real);
    a.q = qkv;
    a.k = qkv + step;
    a.v = qkv + 2 * step;
    a.dq = grads;
    a.dk = grads + step;
    a.dv = grads + 2 * step;
    a.y = numbers(b, n);
    a.dy = numbers(b, n);
    a.lse = row_values(b, batch * heads * time);
    a.q_at = a.k_at = a.v_at = a.dq_at = a.dk_at = a.dv_at =
        (struct pl_attention_strides){time * 3 * width, 3 * width, dim};
    a.y_at = a.dy_at = (struct pl_attention_strides){time * width, width, dim};
    if (back && !b->failed) /* needs y and lse of the forward pass */
        call_attention_forward(&a);
    measure(b, back ? "attention backward" : "attention",
            back ? call_attention_backward : call_attention_forward, &a,
            (back ? 5.0 : 2.0) * (double)n * (double)time, 0, "%zu x %zu of %zux%zu, causal", batch,
            heads, time, dim);
}

static void copy(struct bench *b, size_t n)
{
    struct pl_copy_args a = {.rank = 1, .bytes = 4};

    n = less(b, n);
    a.shape[0] = n;
    a.src_stride[0] = a.dst_stride[0] = 1;
    a.src = bytes(b, 4 * n);
    a.dst = bytes(b, 4 * n);
    measure(b, "copy", call_copy, &a, 0, 8.0 * (double)n, "%zu of 4 bytes", n);
}

static void transpose(struct bench *b, size_t rows, size_t columns)
{
    size_t size = pl_real_size(b->real);
    struct pl_copy_args a = {.rank = 2, .bytes = size};

    a.shape[0] = rows = less(b, rows);
    a.shape[1] = columns;
    a.src_stride[0] = 1;
    a.src_stride[1] = rows;
    a.dst_stride[0] = columns;
    a.dst_stride[1] = 1;
    a.src = numbers(b, rows * columns);
    a.dst = numbers(b, rows * columns);
    measure(b, "copy, transposed", call_copy, &a, 0, size_of(b, 2.0 * (double)(rows * columns)),
            "%zu x %zu", rows, columns);
}

static void layernorm(struct bench *b, size_t rows, size_t n, bool back)
{
    struct pl_layernorm_args a = {.n = n, .eps = 1e-5};

    a.rows = rows = less(b, rows);
    a.x = numbers(b, rows * n);
    a.gamma = numbers(b, n);
    a.beta = numbers(b, n);
    a.dy = numbers(b, rows * n);
    a.y = numbers(b, rows * n);
    a.mean = row_values(b, rows);
    a.rstd = row_values(b, rows);
    a.dx = numbers(b, rows * n);
    a.dgamma = numbers(b, n);
    a.dbeta = numbers(b, n);
    measure(b, back ? "layernorm backward" : "layernorm",
            back ? call_layernorm_backward : call_layernorm_forward, &a, 0,
            size_of(b, (back ? 3.0 : 2.0) * (double)(rows * n)), "%zu x %zu", rows, n);
}

/* With relu, of images whose channels are last, by one GPU alone; half: x, y and their gradients
 * are bf16, of the f32 table. Forward reads x twice, backward x and dy. */
static void batchnorm(struct bench *b, size_t rows, size_t channels, bool half, bool back)
{
    struct pl_batchnorm_args a = {.channels = channels,
                                  .inner = 1,
                                  .eps = 1e-5,
                                  .momentum = 0.1,
                                  .training = true,
                                  .relu = true,
                                  .alone = true,
                                  .x_half = half,
                                  .y_half = half,
                                  .half = PL_HALF_BF16};
    enum pl_real real = b->real;

    a.batch = rows = less(b, rows);
    a.w = numbers(b, channels);
    a.b = numbers(b, channels);
    a.dw = numbers(b, channels);
    a.db = numbers(b, channels);
    a.mean = row_values(b, channels);
    a.inv_std = row_values(b, channels);
    a.running_mean = row_values(b, channels);
    a.running_var = row_values(b, channels);
    a.factors = row_values(b, PL_BATCHNORM_FACTORS * channels);
    a.sums = bytes(b, (1 + 2 * channels) * sizeof(double));
    a.back_sums = bytes(b, (1 + 2 * channels) * sizeof(double));
    if (half)
        b->real = PL_REAL_BF16;
    a.x = numbers(b, rows * channels);
    a.y = numbers(b, rows * channels);
    a.dy = numbers(b, rows * channels);
    a.dx = numbers(b, rows * channels);
    measure(b, back ? "batch norm backward" : "batch norm",
            back ? call_batchnorm_backward : call_batchnorm, &a, 0,
            size_of(b, (back ? 5.0 : 3.0) * (double)(rows * channels)), "%zu x %zu, relu", rows,
            channels);
    b->real = real;
}

static void cross_entropy(struct bench *b, size_t rows, size_t classes, bool back)
{
    struct pl_cross_entropy_args a = {0};

    a.rows = rows = less(b, rows);
    a.classes = classes = less(b, classes);
    a.logits = numbers(b, rows * classes);
    a.labels = indices(b, rows, classes);
    a.dloss = numbers(b, 1);
    a.loss = numbers(b, 1);
    a.dlogits = numbers(b, rows * classes);
    a.max_sum = row_values(b, 2 * rows); /* keeps no probabilities */
    if (back && !b->failed)
        call_cross_entropy_forward(&a);
    measure(b, back ? "cross-entropy backward" : "cross-entropy",
            back ? call_cross_entropy_backward : call_cross_entropy_forward, &a, 0,
            size_of(b, (back ? 2.0 : 1.0) * (double)(rows * classes)), "%zu x %zu", rows, classes);
}

static void softmax(struct bench *b, size_t rows, size_t n)
{
    struct pl_softmax_args a = {.n = n};

    a.rows = rows = less(b, rows);
    a.x = numbers(b, rows * n);
    a.y = numbers(b, rows * n);
    measure(b, "softmax", call_softmax_forward, &a, 0, size_of(b, 2.0 * (double)(rows * n)),
            "%zu x %zu", rows, n);
}

static void embedding(struct bench *b, size_t rows, size_t vocab, size_t dim, bool back)
{
    struct pl_embedding_args a = {.dim = dim};

    a.rows = rows = less(b, rows);
    a.vocab = vocab = less(b, vocab);
    a.ids = indices(b, rows, vocab);
    a.table = numbers(b, vocab * dim);
    a.y = numbers(b, rows * dim);
    a.dy = numbers(b, rows * dim);
    a.dtable = numbers(b, vocab * dim);
    measure(b, back ? "embedding backward" : "embedding",
            back ? call_embedding_backward : call_embedding_forward, &a, 0,
            size_of(b, (double)dim * (double)(back ? rows + vocab : 2 * rows)), "%zu of %zu x %zu",
            rows, vocab, dim);
}

static void gelu(struct bench *b, size_t n, bool back)
{
    struct pl_unary_args a = {.act = PL_ACT_GELU_TANH};

    a.n = n = less(b, n);
    a.x = numbers(b, n);
    a.dy = numbers(b, n);
    a.y = numbers(b, n);
    a.dx = numbers(b, n);
    measure(b, back ? "gelu backward" : "gelu", back ? call_unary_backward : call_unary_forward, &a,
            0, size_of(b, (back ? 3.0 : 2.0) * (double)n), "%zu", n);
}

static void add(struct bench *b, size_t n)
{
    struct pl_add_args a = {.scale = 1};

    a.n = n = less(b, n);
    a.a = numbers(b, n);
    a.b = numbers(b, n);
    a.dst = numbers(b, n);
    measure(b, "add", call_add, &a, 0, size_of(b, 3.0 * (double)n), "%zu", n);
}

/* The gradients of both operands of a sum. */
static void residual(struct bench *b, size_t n)
{
    struct pl_binary_args a = {.op = PL_BINARY_ADD};

    a.n = a.m = n = less(b, n);
    a.dy = numbers(b, n);
    a.da = numbers(b, n);
    a.db = numbers(b, n);
    measure(b, "residual backward", call_binary_backward, &a, 0, size_of(b, 4.0 * (double)n), "%zu",
            n);
}

static void dropout(struct bench *b, size_t n)
{
    struct pl_dropout_args a = {.p = 0.1, .key = 1};

    a.n = n = less(b, n);
    a.src = numbers(b, n);
    a.dst = numbers(b, n);
    measure(b, "dropout", call_dropout, &a, 0, size_of(b, 2.0 * (double)n), "%zu", n);
}

static void sum(struct bench *b, size_t outer, size_t n)
{
    struct pl_reduce_args a = {.n = n, .inner = 1, .scale = 1};

    a.outer = outer = less(b, outer);
    a.x = numbers(b, outer * n);
    a.y = numbers(b, outer);
    measure(b, "sum", call_reduce_forward, &a, 0, size_of(b, (double)(outer * n)), "%zu x %zu",
            outer, n);
}

static void narrow(struct bench *b, size_t n)
{
    struct pl_half_args a = {.type = PL_HALF_BF16};

    a.n = n = less(b, n);
    a.half = bytes(b, 2 * n);
    a.wide = numbers(b, n);
    measure(b, "cast to bf16", call_narrow, &a, 0, 6.0 * (double)n, "%zu", n);
}

static void look(struct bench *b, size_t n)
{
    struct pl_grad_stats_args a = {.scale = 1};

    a.n = n = less(b, n);
    a.grad = numbers(b, n);
    a.ret_squares = bytes(b, sizeof(double));
    a.ret_finite = bytes(b, sizeof(bool));
    measure(b, "norm and finite check", call_grad_stats, &a, 0, size_of(b, (double)n), "%zu", n);
}

static void optimizer(struct bench *b, size_t n, bool adam)
{
    struct pl_update update = {.factor = 1, .clip = INFINITY};

    update.n = n = less(b, n);
    update.grad = numbers(b, n);
    update.param = numbers(b, n);
    if (adam) {
        struct pl_adam_args a = {.update = update,
                                 .lr = 1e-6,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .eps = 1e-8,
                                 .step = 1,
                                 .m = bytes(b, n * pl_real_size(b->real)),
                                 .v = bytes(b, n * pl_real_size(b->real))};

        measure(b, "adam", call_adam, &a, 0, size_of(b, 7.0 * (double)n), "%zu", n);
    } else {
        struct pl_sgd_args a = {
            .update = update, .lr = 1e-6, .momentum = 0.9, .velocity = numbers(b, n)};

        measure(b, "sgd, momentum", call_sgd, &a, 0, size_of(b, 5.0 * (double)n), "%zu", n);
    }
}

static void all(struct bench *b, enum pl_real real)
{
    b->real = real;
    b->most_flops = b->most_bytes = 0;
    table = b->k = b->dev->ops->kernels(b->dev, real);
    linear(b, 8192, 8192, 8192, PL_ACT_NONE, false);
    copy(b, (size_t)1 << 28);
    for (int back = 0; back < 2; back++) {
        linear(b, 16384, 768, 3072, PL_ACT_GELU_TANH, back);
        linear(b, 16384, 768, 2304, PL_ACT_NONE, back);
        linear(b, 16384, 768, 50304, PL_ACT_NONE, back);
        attention(b, 16, 12, 1024, 64, back);
        conv(b, 128, 32, 28, 64, back);
        conv(b, 128, 128, 28, 128, back);
        layernorm(b, 16384, 768, back);
        cross_entropy(b, 8192, 50304, back);
        embedding(b, 16384, 50304, 768, back);
        gelu(b, (size_t)16384 * 3072, back);
    }
    softmax(b, 16384, 1024);
    transpose(b, 16384, 768);
    add(b, (size_t)16384 * 768);
    residual(b, (size_t)16384 * 768);
    dropout(b, (size_t)16384 * 768);
    sum(b, 16384, 768);
    if (real != PL_REAL_F32)
        return;
    for (int half = 0; half < 2; half++)
        for (int back = 0; back < 2; back++)
            batchnorm(b, (size_t)128 * 56 * 56, 64, half, back);
    narrow(b, 124439808);
    look(b, 124439808);
    optimizer(b, 124439808, false);
    optimizer(b, 124439808, true);
}

int main(int argc, char **argv)
{
    struct bench b = {.shrink = 1};
    struct pl_error err = {0};
    int64_t shrink = 1;

    if (argc > 2 || (argc == 2 && pl_parse_int(argv[1], 1, 4096, &shrink, NULL) < 0)) {
        fputs("usage: bench-gpu-kernels [SHRINK]\n", stderr);
        return PL_EXIT_USAGE;
    }
    b.shrink = (size_t)shrink;
    if (pl_gpu_open(&(struct pl_gpu_choice){.n = 0}, &b.dev, &err) < 0) {
        puts(pl_error_text(&err));
        return 77;
    }
    pl_device_enter(b.dev);
    puts(b.dev->name);
    all(&b, PL_REAL_BF16);
    all(&b, PL_REAL_F32);
    b.dev->ops->close(b.dev);
    return b.failed ? PL_EXIT_FAILED : PL_EXIT_OK;
}
