/* SPDX-License-Identifier: MIT */
/* A pl_cudnn over fakes of CUDA's runtime and of cuDNN, for tests of what is asked of cuDNN. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_CUDNN_FIXTURE_H
#define PL_TESTS_UNIT_ENGINE_CUDA_CUDNN_FIXTURE_H

#include "kernels/cuda/stream.h"
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/util/libs.h"
#include "tests/fakes/fake_cudart.h"
#include "tests/fakes/fake_cudnn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static struct pl_cuda_stream stream;
static struct pl_cuda_libs libs;
static struct pl_cuda_status status;
static struct pl_cuda_calls calls;
static struct pl_cuda_alloc *alloc;
static uint64_t seed;

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    return &stream;
}

static size_t draw(uint32_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % limit;
}

/* Resets the fakes, with one engine that can do everything; the calling thread's libs have the
 * pl_cudnn. timing: NULL if nothing is timed. */
static void start_dnn(const struct pl_device_options *options, const struct pl_timing *timing)
{
    struct pl_cudnn *dnn = NULL;

    fake_cuda_reset(700 * MIB);
    memset(&fake_dnn, 0, sizeof(fake_dnn));
    memset(&status, 0, sizeof(status));
    memset(&calls, 0, sizeof(calls));
    fake_dnn.version = 91900;
    fake_dnn.engines = 1;
    for (size_t i = 0; i < FAKE_DNN_ENGINES; i++)
        fake_dnn.note[i] = -1;
    assert_int_equal(pl_cuda_alloc_create("cuda:0", 0, &alloc, NULL), 0);
    assert_int_equal(pl_cudnn_create(NULL, alloc, options, timing, &status, &dnn, NULL), 0);
    assert_int_equal(fake_dnn.streams, 1); /* else its work is in no order with the kernels' */
    libs = (struct pl_cuda_libs){.stream = &stream, .dnn = dnn, .calls = &calls};
    pl_cuda_libs_set(&libs);
}

/* Nothing may be left. */
static void end_dnn(void)
{
    pl_cudnn_destroy(libs.dnn);
    libs.dnn = NULL;
    pl_cuda_alloc_destroy(alloc);
    fake_cuda_reset(0);
    assert_int_equal(fake_dnn.handles, 0);
    assert_int_equal(fake_dnn.descriptors, 0);
}

#endif
