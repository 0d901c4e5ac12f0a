/* SPDX-License-Identifier: MIT */
/* PL_UNROLL: before a loop of constant length whose arrays must be in registers. PL_UNROLL_BY(n):
 * before one whose loads are to be n ahead. */
#ifndef PL_KERNELS_CUDA_UNROLL_CUH
#define PL_KERNELS_CUDA_UNROLL_CUH

#ifdef __CUDACC__
#define PL_UNROLL _Pragma("unroll")
#define PL_PRAGMA(text) _Pragma(#text)
#define PL_UNROLL_BY(n) PL_PRAGMA(unroll n)
#else
#define PL_UNROLL
#define PL_UNROLL_BY(n)
#endif

#endif
