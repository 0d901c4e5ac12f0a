/* SPDX-License-Identifier: MIT */
/* NVIDIA's libraries for the ops: those of the calling thread's stream. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_LIBS_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_LIBS_H

#include <stdatomic.h>
#include <stdbool.h>

struct CUstream_st;
struct pl_cuda_stream;
struct pl_cublaslt;
struct pl_cudnn;

/* Numbers of ops that a library can do, by who did them. Written by the thread that has entered the
 * device. */
struct pl_cuda_calls {
    atomic_ullong library, own;
};

/* NULL if the library cannot be used. */
struct pl_cuda_libs {
    const struct pl_cuda_stream *stream; /* the stream that they are for */
    struct pl_cublaslt *lt;
    struct pl_cudnn *dnn;
    struct pl_cuda_calls *calls; /* NULL: nobody counts */
};

static inline void pl_cuda_libs_count(const struct pl_cuda_libs *libs, bool library, unsigned n)
{
    if (libs->calls)
        atomic_fetch_add_explicit(library ? &libs->calls->library : &libs->calls->own, n,
                                  memory_order_relaxed);
}

/* Sets the calling thread's libraries; borrowed. NULL: none. */
void pl_cuda_libs_set(const struct pl_cuda_libs *libs);

/* The libraries of the calling thread's current stream, or empty ones; *ret_stream is that
 * stream's. */
struct pl_cuda_libs pl_cuda_libs_current(struct CUstream_st **ret_stream);

#endif
