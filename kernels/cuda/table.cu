/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

template <class T> static struct pl_kernels table_of(const char *name, enum pl_real real)
{
    struct pl_kernels table = {};

    table.name = name;
    table.real = real;
#define ENTRY(function, args) table.function = function<T>;
    PL_KERNEL_LIST(ENTRY)
#undef ENTRY
    return table;
}

} // namespace pl_cuda

#ifdef PL_CUDA_EMULATED
#define NAME "emulated-cuda/"
#else
#define NAME "cuda/"
#endif

const struct pl_kernels *pl_kernels_cuda(enum pl_real real)
{
    static const struct pl_kernels f32 = pl_cuda::table_of<float>(NAME "f32", PL_REAL_F32),
                                   f64 = pl_cuda::table_of<double>(NAME "f64", PL_REAL_F64),
                                   bf16 =
                                       pl_cuda::table_of<pl_cuda::bf16>(NAME "bf16", PL_REAL_BF16),
                                   f16 = pl_cuda::table_of<pl_cuda::f16>(NAME "f16", PL_REAL_F16);

    return real == PL_REAL_F64    ? &f64
           : real == PL_REAL_BF16 ? &bf16
           : real == PL_REAL_F16  ? &f16
                                  : &f32;
}
