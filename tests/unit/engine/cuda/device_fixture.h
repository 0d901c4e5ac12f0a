/* SPDX-License-Identifier: MIT */
/* GPUs as devices, on fakes of the CUDA runtime and of cublasLt: everything except kernels. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_DEVICE_FIXTURE_H
#define PL_TESTS_UNIT_ENGINE_CUDA_DEVICE_FIXTURE_H

#include "common/base/macros.h"
#include "kernels/cuda/cuda.h"
#include "runtime/engine/cuda/device/cuda_device.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/fakes/fake_cudart.h"

#include <cuda_runtime_api.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((size_t)1 << 20)

static _Thread_local struct pl_cuda_stream *stream;

struct pl_cuda_stream *pl_cuda_stream_current(void)
{
    static _Thread_local struct pl_cuda_stream none;

    return stream ? stream : &none;
}

/* No product of these tests needs it. */
void *pl_cuda_stream_scratch(struct pl_cuda_stream *of, size_t bytes)
{
    return NULL;
}

void pl_cuda_stream_set(struct pl_cuda_stream *to)
{
    stream = to;
}

void pl_cuda_stream_finish(struct pl_cuda_stream *of)
{
    assert_null(of->scratch);
}

void pl_cuda_stream_note(struct pl_cuda_stream *of, int error)
{
    of->error = of->error ? of->error : error;
}

void pl_cuda_stream_refuse(struct pl_cuda_stream *of, const char *why)
{
    if (!of->error) {
        of->error = cudaErrorInvalidConfiguration;
        of->why = why;
    }
}

/* There is none for 16 bits. */
const struct pl_kernels *pl_kernels_cuda(enum pl_real real)
{
    return pl_kernels_ref(real);
}

static const struct pl_device_ops *ops;

static struct pl_device *open_one(unsigned index)
{
    struct pl_error err = {0};
    struct pl_device *dev = NULL;

    if (ops->open(index, NULL, &dev, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return dev;
}

static void *get(struct pl_device *dev, size_t bytes)
{
    struct pl_error err = {0};
    void *p = NULL;

    if (ops->alloc(dev, bytes, "a test", &p, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    assert_int_equal((uintptr_t)p % PL_DEVICE_ALIGN, 0);
    return p;
}

static void end(void)
{
    fake_cuda_reset(0);
    assert_int_equal(fake_lt.handles, 0);
    ops = plume_cuda_device();
}

#endif
