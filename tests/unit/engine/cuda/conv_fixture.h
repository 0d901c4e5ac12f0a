/* SPDX-License-Identifier: MIT */
/* A pl_cudnn over a fake that runs the graphs, and arrays for two sides: ref's and ours. All
 * numbers are small integers, so that every order of summing gives the same bits. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_CONV_FIXTURE_H
#define PL_TESTS_UNIT_ENGINE_CUDA_CONV_FIXTURE_H

#include "tests/unit/engine/cuda/cudnn_fixture.h"

#define MOST 8192 /* elements of an array */
#define ARRAYS 8

static struct pl_kernels table[2];                   /* by enum pl_real: f32 and f64 over ref */
static _Alignas(256) double memory[2][ARRAYS][MOST]; /* ref's and ours */

static uint64_t fake_now(void)
{
    return fake_dnn.now;
}

/* what: NULL, or the kind of card on which engines are timed. */
static void start_timed(bool tf32, const char *what)
{
    const struct pl_timing timing = {.what = what, .now_ns = fake_now};

    start_dnn(&(struct pl_device_options){.tf32 = tf32}, what ? &timing : NULL);
    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F64; real++) {
        table[real] = *pl_kernels_ref(real);
        pl_cudnn_install(&table[real]);
    }
}

static inline void start(bool tf32)
{
    start_timed(tf32, NULL);
}

static void *array(int side, int which, enum pl_real real, size_t shift)
{
    return (char *)memory[side][which] + shift * pl_real_size(real);
}

static void fill(enum pl_real real)
{
    for (size_t i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST; j++) {
            double x = (double)draw(5) - 2;

            if (real == PL_REAL_F64)
                memory[0][i][j] = x;
            else
                ((float *)memory[0][i])[j] = (float)x;
        }
    }
    memcpy(memory[1], memory[0], sizeof(memory[0]));
}

static const struct pl_conv2d_args plain = {.batch = 2,
                                            .in = 2,
                                            .height = 4,
                                            .width = 4,
                                            .out = 3,
                                            .kernel_h = 3,
                                            .kernel_w = 3,
                                            .stride_h = 1,
                                            .stride_w = 1};

/* The plain one, forward, with our arrays. */
static inline struct pl_conv2d_args with_arrays(void)
{
    struct pl_conv2d_args a = plain;

    a.x = array(1, 0, PL_REAL_F32, 0);
    a.w = array(1, 1, PL_REAL_F32, 0);
    a.y = array(1, 3, PL_REAL_F32, 0);
    return a;
}

#endif
