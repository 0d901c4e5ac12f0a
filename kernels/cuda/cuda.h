/* SPDX-License-Identifier: MIT */
/* The op tables for NVIDIA GPUs. */
#ifndef PL_KERNELS_CUDA_CUDA_H
#define PL_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops of kernels.h on arrays in device memory: all pointers in the arguments are to device
 * memory; the structs themselves are the host's and are read before the call returns. A call queues
 * its kernels on the calling thread's current stream and does not wait for them. Calls do not fail:
 * a CUDA error stays with the stream, and the next wait for it returns it. Never NULL.
 *
 * The 16-bit tables (PL_REAL_BF16, PL_REAL_F16) compute in f32; their statistics (mean, inv_std,
 * rstd, norm, lse, max_sum) and running_mean, running_var are f32. */
const struct pl_kernels *pl_kernels_cuda(enum pl_real real);

#ifdef __cplusplus
}
#endif

#endif
