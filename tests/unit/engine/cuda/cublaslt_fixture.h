/* SPDX-License-Identifier: MIT */
/* A pl_cublaslt over a fake that does what the descriptors say, and arrays for two sides: ref's and
 * ours. All numbers are small integers, so that every order of summing gives the same bits. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_CUBLASLT_FIXTURE_H
#define PL_TESTS_UNIT_ENGINE_CUDA_CUBLASLT_FIXTURE_H

#include "common/base/macros.h"
#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/util/libs.h"
#include "tests/fakes/fake_cublaslt.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MOST 4096 /* elements of an array */
#define ARRAYS 11

static struct pl_cuda_stream stream;
static struct pl_cuda_calls calls;
static struct pl_cuda_libs libs;
static struct pl_cuda_status status;
static struct pl_kernels table[2]; /* by enum pl_real: f32 and f64 over ref */
static _Alignas(256) char workspace[256];
static _Alignas(256) double memory[2][ARRAYS][MOST + 32]; /* ref's and ours */
static uint64_t seed;

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    return &stream;
}

void *pl_cuda_stream_scratch(struct pl_cuda_stream *s, size_t bytes)
{
    static _Alignas(256) char scratch[1024];

    assert_ptr_equal(s, &stream);
    assert_in_range(bytes, 1, sizeof(scratch));
    return scratch;
}

static uint32_t draw(uint32_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % limit;
}

static void *array(int side, int which, enum pl_real real, const uint8_t *shift)
{
    return (char *)memory[side][which] + shift[which] * pl_real_size(real);
}

/* The same contents on both sides, between zeros. */
static void fill(enum pl_real real)
{
    for (size_t i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST + 32; j++) {
            double x = (double)draw(5) - 2;

            if (real == PL_REAL_F64)
                memory[0][i][j] = x;
            else
                ((float *)memory[0][i])[j] = (float)x;
        }
    }
    memcpy(memory[1], memory[0], sizeof(memory[0]));
}

static double value(int side, int which, enum pl_real real, size_t i)
{
    return real == PL_REAL_F64 ? memory[side][which][i] : ((float *)memory[side][which])[i];
}

static void compare(enum pl_real real, double tolerance, const char *what)
{
    for (int i = 0; i < ARRAYS; i++) {
        for (size_t j = 0; j < MOST + 32; j++) {
            double want = value(0, i, real, j), got = value(1, i, real, j);

            if (fabs(got - want) > tolerance)
                fail_msg("seed %llu: %s: array %d [%zu] is %g, not %g", (unsigned long long)seed,
                         what, i, j, got, want);
        }
    }
}

static uint64_t fake_now(void)
{
    return fake_lt.now;
}

/* what: NULL, or the kind of card on which answers are timed. */
static void start_timed(bool tf32, const char *what)
{
    const struct pl_timing timing = {.what = what, .now_ns = fake_now};
    struct pl_cublaslt *lt = NULL;

    memset(&fake_lt, 0, sizeof(fake_lt));
    memset(&status, 0, sizeof(status));
    for (enum pl_real real = PL_REAL_F32; real <= PL_REAL_F64; real++) {
        table[real] = *pl_kernels_ref(real);
        pl_cublaslt_install(&table[real]);
    }
    assert_int_equal(pl_cublaslt_create(workspace, sizeof(workspace), tf32, what ? &timing : NULL,
                                        &status, &lt, NULL),
                     0);
    calls = (struct pl_cuda_calls){0};
    libs = (struct pl_cuda_libs){.stream = &stream, .lt = lt, .calls = &calls};
    pl_cuda_libs_set(&libs);
}

static inline void start(bool tf32)
{
    start_timed(tf32, NULL);
}

static void end(void)
{
    pl_cublaslt_destroy(libs.lt);
    libs.lt = NULL;
    assert_int_equal(fake_lt.handles, 0);
}

#endif
