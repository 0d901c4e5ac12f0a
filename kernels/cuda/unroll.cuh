/* SPDX-License-Identifier: MIT */
/* PL_UNROLL: before a loop of constant length whose arrays must be in registers. */
#ifndef PL_KERNELS_CUDA_UNROLL_CUH
#define PL_KERNELS_CUDA_UNROLL_CUH

#ifdef __CUDACC__
#define PL_UNROLL _Pragma("unroll")
#else
#define PL_UNROLL
#endif

#endif
