/* SPDX-License-Identifier: MIT */
/* bench-kernels [THREADS]: GFLOP/s of the kernels with products in them, on shapes of the models
 * that ./dev bench engine trains, one line each: op, shape, milliseconds, GFLOP/s. Each is the best
 * of many, the rounds of all rows in turns, so that a busy moment of the machine harms all alike.
 * The first row is the peak of gemm that the others are compared with. */
#include "kernels/kernels.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "kernels/pool.h"

#include <stdlib.h>

#define ROUNDS 12

struct row {
    const char *op, *shape;
    double flops, best_ms;
    int kind; /* index into `kinds` below */
    union {
        struct pl_linear_args linear;
        struct pl_matmul_args matmul;
        struct pl_conv2d_args conv;
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

static void (*const kinds[])(const struct pl_kernels *k, const struct row *r) = {
    linear_forward, linear_backward, matmul, conv_forward, conv_backward};

static float *numbers(size_t n)
{
    float *p = aligned_alloc(64, (n * sizeof(*p) + 63) / 64 * 64);

    if (!p) {
        fputs("bench-kernels: out of memory\n", stderr);
        return NULL; /* the first access ends it */
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
        printf("%s\t%s\t%.3f\t%.1f\n", rows[i].op, rows[i].shape, rows[i].best_ms,
               rows[i].flops / rows[i].best_ms / 1e6);
    return 0;
}
