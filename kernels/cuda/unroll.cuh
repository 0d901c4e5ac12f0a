/* SPDX-License-Identifier: MIT */
/* PL_UNROLL: in front of a loop of a constant length whose arrays are to be in registers. */
#ifndef PL_KERNELS_CUDA_UNROLL_CUH
#define PL_KERNELS_CUDA_UNROLL_CUH

#ifdef __CUDACC__
#define PL_UNROLL _Pragma("unroll")
#else
#define PL_UNROLL
#endif

#endif
