/* SPDX-License-Identifier: MIT */
/* PL_ANYWHERE marks inline functions that CUDA kernels use, too. */
#ifndef PL_KERNELS_ANYWHERE_H
#define PL_KERNELS_ANYWHERE_H

#ifdef __CUDACC__
#define PL_ANYWHERE __host__ __device__
#else
#define PL_ANYWHERE
#endif

#endif
