/* SPDX-License-Identifier: MIT */
/* bench-kernels [THREADS]: prints the kernels' speed on shapes of the models of ./dev bench engine,
 * one line each: op, shape, milliseconds, GFLOP/s of those with matrix products (else 0), GB/s of
 * those that only move memory (else 0). Each number is the best of many rounds. The rounds of all
 * rows alternate, so that a busy moment of the machine affects all rows alike. The first row is the
 * gemm peak, to which the others are compared. */
#include "kernels/kernels.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "kernels/pool/pool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 12

struct row {
    const char *op, *shape;
    double flops, bytes, best_ms; /* bytes: of each array, once per direction */
    int kind;                     /* index into `kinds` below */
    union {
        struct pl_linear_args linear;
        struct pl_matmul_args matmul;
        struct pl_conv2d_args conv;
        struct pl_attention_args attention;
        struct pl_layernorm_args layernorm;
        struct pl_cross_entropy_args cross_entropy;
        struct pl_softmax_args softmax;
        struct pl_embedding_args embedding;
        struct pl_sgd_args sgd;
        struct pl_adam_args adam;
    } args;
};

static void linear_forward(const struct pl_kernels *k, const struct row *r)
{
    k->linear_forward(&r->args.linear);
}

static void linear_backward(const struct pl_kernels *k, const struct row *r)
{
    k->linear_backward(&r->args.linear);
}

static void matmul(const struct pl_kernels *k, const struct row *r)
{
    k->matmul(&r->args.matmul);
}

static void conv_forward(const struct pl_kernels *k, const struct row *r)
{
    k->conv2d_forward(&r->args.conv);
}

static void conv_backward(const struct pl_kernels *k, const struct row *r)
{
    k->conv2d_backward(&r->args.conv);
}

#define DEFINE(function, member)                                                                   \
    static void function(const struct pl_kernels *k, const struct row *r)                          \
    {                                                                                              \
        k->function(&r->args.member);                                                              \
    }

DEFINE(attention_forward, attention)
DEFINE(attention_backward, attention)
DEFINE(layernorm_forward, layernorm)
DEFINE(layernorm_backward, layernorm)
DEFINE(cross_entropy_forward, cross_entropy)
DEFINE(cross_entropy_backward, cross_entropy)
DEFINE(softmax_forward, softmax)
DEFINE(embedding_forward, embedding)
DEFINE(sgd, sgd)
DEFINE(adam, adam)

enum {
    ATTENTION = 5,
    LAYERNORM = 7,
    CROSS_ENTROPY = 9,
    SOFTMAX = 11,
    EMBEDDING,
    SGD,
    ADAM,
};

static void (*const kinds[])(const struct pl_kernels *k,
                             const struct row *r) = {linear_forward,
                                                     linear_backward,
                                                     matmul,
                                                     conv_forward,
                                                     conv_backward,
                                                     attention_forward,
                                                     attention_backward,
                                                     layernorm_forward,
                                                     layernorm_backward,
                                                     cross_entropy_forward,
                                                     cross_entropy_backward,
                                                     softmax_forward,
                                                     embedding_forward,
                                                     sgd,
                                                     adam};

static float *numbers(size_t n)
{
    float *p = aligned_alloc(64, (n * sizeof(*p) + 63) / 64 * 64);

    if (!p) {
        fputs("bench-kernels: out of memory\n", stderr);
        return NULL; /* the first access ends the program */
    }
    for (size_t i = 0; i < n; i++)
        p[i] = (float)(i * 2654435761u % 1001) / 1001 - 0.5f;
    return p;
}

static struct row
linear(const char *shape, size_t rows, size_t in, size_t out, enum pl_activation act, bool back)
{
    struct row r = {back ? "linear backward" : "linear forward", shape,
                    .flops = (back ? 4.0 : 2.0) * (double)(rows * in * out), .kind = back};

    r.args.linear = (struct pl_linear_args){.rows = rows,
                                            .in = in,
                                            .out = out,
                                            .act = act,
                                            .x = numbers(rows * in),
                                            .w = numbers(out * in),
                                            .b = numbers(out),
                                            .y = numbers(rows * out),
                                            .pre = numbers(rows * out)};
    if (back) {
        r.args.linear.dy = r.args.linear.dz = numbers(rows * out);
        r.args.linear.dx = numbers(rows * in);
        r.args.linear.dw = numbers(out * in);
        r.args.linear.db = numbers(out);
    }
    return r;
}

static struct row
batch(const char *shape, size_t count, size_t m, size_t n, size_t k, bool b_transposed)
{
    struct row r = {"matmul", shape, .flops = 2.0 * (double)(count * m * n * k), .kind = 2};

    r.args.matmul = (struct pl_matmul_args){.batch = count,
                                            .m = m,
                                            .n = n,
                                            .k = k,
                                            .b_transposed = b_transposed,
                                            .a_row = k,
                                            .b_row = b_transposed ? k : n,
                                            .c_row = n,
                                            .a_batch = m * k,
                                            .b_batch = n * k,
                                            .c_batch = m * n,
                                            .scale = 1,
                                            .a = numbers(count * m * k),
                                            .b = numbers(count * n * k),
                                            .c = numbers(count * m * n)};
    return r;
}

static struct row
conv(const char *shape, size_t n, size_t in, size_t size, size_t out, size_t stride, int kind)
{
    size_t o = pl_conv_size(size, 3, stride, 1);
    struct row r = {kind == 3 ? "conv2d forward" : "conv2d backward", shape,
                    .flops = (kind == 3 ? 2.0 : 4.0) * 9 * (double)(n * out * o * o * in),
                    .kind = kind};

    r.args.conv = (struct pl_conv2d_args){.batch = n,
                                          .in = in,
                                          .height = size,
                                          .width = size,
                                          .out = out,
                                          .kernel_h = 3,
                                          .kernel_w = 3,
                                          .stride_h = stride,
                                          .stride_w = stride,
                                          .pad_h = 1,
                                          .pad_w = 1,
                                          .relu = true,
                                          .x = numbers(n * in * size * size),
                                          .w = numbers(out * in * 9),
                                          .b = numbers(out),
                                          .dy = numbers(n * out * o * o),
                                          .y = numbers(n * out * o * o),
                                          .dx = numbers(n * in * size * size),
                                          .dw = numbers(out * in * 9),
                                          .db = numbers(out)};
    return r;
}

/* Heads in separate arrays, or side by side in [batch, time, 3, heads, dim] with strides, as in a
 * module that splits one linear layer into q, k and v. */
static struct row attention(
    const char *shape, size_t batch, size_t heads, size_t time, size_t dim, bool split, int back)
{
    size_t n = batch * heads * time * dim, width = heads * dim;
    struct pl_attention_strides own = {heads * time * dim, dim, time * dim};
    struct pl_attention_strides of_three = {time * 3 * width, 3 * width, dim};
    struct pl_attention_strides of_one = {time * width, width, dim};
    struct pl_attention_strides at = split ? of_three : own, y_at = split ? of_one : own;
    float *qkv = numbers(3 * n), *grads = numbers(3 * n);
    size_t step = split ? width : n;
    struct row r = {back ? "attention backward" : "attention forward", shape,
                    .flops = (back ? 5.0 : 2.0) * (double)(batch * heads * time * time * dim),
                    .kind = ATTENTION + back};

    r.args.attention = (struct pl_attention_args){.batch = batch,
                                                  .heads = heads,
                                                  .time = time,
                                                  .keys = time,
                                                  .dim = dim,
                                                  .causal = true,
                                                  .scale = 0.2,
                                                  .q = qkv,
                                                  .k = qkv + step,
                                                  .v = qkv + 2 * step,
                                                  .dy = numbers(n),
                                                  .y = numbers(n),
                                                  .lse = numbers(batch * heads * time),
                                                  .dq = grads,
                                                  .dk = grads + step,
                                                  .dv = grads + 2 * step,
                                                  .q_at = at,
                                                  .k_at = at,
                                                  .v_at = at,
                                                  .y_at = y_at,
                                                  .dy_at = y_at,
                                                  .dq_at = at,
                                                  .dk_at = at,
                                                  .dv_at = at};
    return r;
}

static struct row layernorm(const char *shape, size_t rows, size_t n, int back)
{
    struct row r = {back ? "layernorm backward" : "layernorm forward", shape,
                    .bytes = (back ? 3.0 : 2.0) * (double)(rows * n) * sizeof(float),
                    .kind = LAYERNORM + back};

    r.args.layernorm = (struct pl_layernorm_args){.rows = rows,
                                                  .n = n,
                                                  .eps = 1e-5,
                                                  .x = numbers(rows * n),
                                                  .gamma = numbers(n),
                                                  .beta = numbers(n),
                                                  .dy = numbers(rows * n),
                                                  .y = numbers(rows * n),
                                                  .mean = numbers(rows),
                                                  .rstd = numbers(rows),
                                                  .dx = numbers(rows * n),
                                                  .dgamma = numbers(n),
                                                  .dbeta = numbers(n)};
    return r;
}

static struct row cross_entropy(const char *shape, size_t rows, size_t classes, int back)
{
    struct row r = {back ? "cross-entropy backward" : "cross-entropy forward", shape,
                    .bytes = 2.0 * (double)(rows * classes) * sizeof(float),
                    .kind = CROSS_ENTROPY + back};

    r.args.cross_entropy = (struct pl_cross_entropy_args){.rows = rows,
                                                          .classes = classes,
                                                          .logits = numbers(rows * classes),
                                                          .dloss = numbers(1),
                                                          .labels = calloc(rows, sizeof(int32_t)),
                                                          .probs = numbers(rows * classes),
                                                          .loss = numbers(1),
                                                          .dlogits = numbers(rows * classes)};
    return r;
}

static struct row softmax(const char *shape, size_t rows, size_t n)
{
    struct row r = {"softmax forward", shape, .bytes = 2.0 * (double)(rows * n) * sizeof(float),
                    .kind = SOFTMAX};

    r.args.softmax = (struct pl_softmax_args){
        .rows = rows, .n = n, .x = numbers(rows * n), .y = numbers(rows * n)};
    return r;
}

static struct row embedding(const char *shape, size_t rows, size_t vocab, size_t dim)
{
    struct row r = {"embedding forward", shape, .bytes = 2.0 * (double)(rows * dim) * sizeof(float),
                    .kind = EMBEDDING};
    int32_t *ids = calloc(rows, sizeof(*ids));

    for (size_t i = 0; ids && i < rows; i++)
        ids[i] = (int32_t)(i * 2654435761u % vocab);
    r.args.embedding = (struct pl_embedding_args){.rows = rows,
                                                  .vocab = vocab,
                                                  .dim = dim,
                                                  .ids = ids,
                                                  .table = numbers(vocab * dim),
                                                  .y = numbers(rows * dim)};
    return r;
}

static struct row optimizer(const char *op, const char *shape, size_t n, int kind)
{
    struct row r = {op, shape, .bytes = (kind == SGD ? 5.0 : 7.0) * (double)n * sizeof(float),
                    .kind = kind};
    struct pl_update update = {
        .n = n, .factor = 1, .clip = INFINITY, .grad = numbers(n), .param = numbers(n)};
    float *moment = numbers(n);

    if (kind == SGD) {
        r.args.sgd =
            (struct pl_sgd_args){.update = update, .lr = 1e-6, .momentum = 0.9, .velocity = moment};
        return r;
    }
    r.args.adam = (struct pl_adam_args){.update = update,
                                        .lr = 1e-6,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .step = 1,
                                        .m = moment,
                                        .v = memset(numbers(n), 0, n * sizeof(*moment))};
    return r;
}

int main(int argc, char **argv)
{
    const struct pl_kernels *k = pl_kernels_best(PL_REAL_F32);
    struct row rows[] = {
        linear("1024x1024x1024", 1024, 1024, 1024, PL_ACT_NONE, false),
        linear("512x784x1024 relu", 512, 784, 1024, PL_ACT_RELU, false),
        linear("512x784x1024 relu", 512, 784, 1024, PL_ACT_RELU, true),
        linear("512x1024x10", 512, 1024, 10, PL_ACT_NONE, false),
        linear("512x1024x10", 512, 1024, 10, PL_ACT_NONE, true),
        linear("2048x384x1536 gelu", 2048, 384, 1536, PL_ACT_GELU, false),
        linear("2048x384x1536 gelu", 2048, 384, 1536, PL_ACT_GELU, true),
        batch("64 of 128x128x32 transposed", 64, 128, 128, 32, true),
        batch("64 of 128x32x128", 64, 128, 32, 128, false),
        conv("128x1x28x28 to 32", 128, 1, 28, 32, 1, 3),
        conv("128x1x28x28 to 32", 128, 1, 28, 32, 1, 4),
        conv("128x32x28x28 to 64", 128, 32, 28, 64, 1, 3),
        conv("128x32x28x28 to 64", 128, 32, 28, 64, 1, 4),
        conv("32x64x28x28 to 128 stride 2", 32, 64, 28, 128, 2, 3),
        conv("32x64x28x28 to 128 stride 2", 32, 64, 28, 128, 2, 4),
        attention("16x4 of 128x32, own arrays", 16, 4, 128, 32, false, 0),
        attention("16x4 of 128x32, in one", 16, 4, 128, 32, true, 0),
        attention("16x4 of 128x32, own arrays", 16, 4, 128, 32, false, 1),
        attention("16x4 of 128x32, in one", 16, 4, 128, 32, true, 1),
        attention("8x6 of 256x64, own arrays", 8, 6, 256, 64, false, 0),
        attention("8x6 of 256x64, in one", 8, 6, 256, 64, true, 0),
        attention("8x6 of 256x64, own arrays", 8, 6, 256, 64, false, 1),
        attention("8x6 of 256x64, in one", 8, 6, 256, 64, true, 1),
        layernorm("2048x384", 2048, 384, 0),
        layernorm("2048x384", 2048, 384, 1),
        cross_entropy("2048x65", 2048, 65, 0),
        cross_entropy("2048x65", 2048, 65, 1),
        cross_entropy("256x32000", 256, 32000, 0),
        cross_entropy("256x32000", 256, 32000, 1),
        softmax("2048x384", 2048, 384),
        embedding("2048 of 65x384", 2048, 65, 384),
        optimizer("sgd, momentum", "4194304", 4194304, SGD),
        optimizer("adam", "4194304", 4194304, ADAM),
    };
    int64_t threads = 1;

    if (argc > 2 || (argc == 2 && pl_parse_int(argv[1], 1, PL_POOL_MAX, &threads, NULL) < 0)) {
        fputs("usage: bench-kernels [THREADS]\n", stderr);
        return PL_EXIT_USAGE;
    }
    pl_pool_resize((unsigned)threads);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < PL_COUNT(rows); i++) {
            uint64_t start = pl_now_ns();
            double ms;

            kinds[rows[i].kind](k, &rows[i]);
            ms = (double)(pl_now_ns() - start) / 1e6;
            if (round == 0 || ms < rows[i].best_ms)
                rows[i].best_ms = ms;
        }
    }
    for (size_t i = 0; i < PL_COUNT(rows); i++)
        printf("%s\t%s\t%.3f\t%.1f\t%.1f\n", rows[i].op, rows[i].shape, rows[i].best_ms,
               rows[i].flops / rows[i].best_ms / 1e6, rows[i].bytes / rows[i].best_ms / 1e6);
    return 0;
}
