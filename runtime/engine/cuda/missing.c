/* SPDX-License-Identifier: MIT */
/* Ops without a CUDA kernel: kernels do not fail, and so a call of one is told like any other
 * failure of a device, by its next synchronisation. */
#include "runtime/engine/cuda/device.h"

#include <cuda_runtime_api.h>

static void missing(const char *op)
{
    struct CUstream_st *stream;
    struct pl_cuda_libs libs = pl_cuda_libs_current(&stream);

    if (libs.status)
        pl_cuda_fail(libs.status, op, "there is no CUDA kernel for it");
    else /* a stream of the caller's own */
        pl_cuda_stream_note(pl_cuda_stream_current(), cudaErrorNotSupported);
}

#define MISSING(function, args)                                                                    \
    static void missing_##function(const struct pl_##args##_args *a)                               \
    {                                                                                              \
        missing(#function);                                                                        \
    }
PL_KERNEL_LIST(MISSING)
#undef MISSING

void pl_cuda_fill_missing(struct pl_kernels *table)
{
#define FILL(function, args)                                                                       \
    if (!table->function)                                                                          \
        table->function = missing_##function;
    PL_KERNEL_LIST(FILL)
#undef FILL
}
