/* SPDX-License-Identifier: MIT */
/* The op tables on NVIDIA GPUs. */
#ifndef PL_KERNELS_CUDA_CUDA_H
#define PL_KERNELS_CUDA_CUDA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops of kernels.h on arrays in device memory, all pointers of the arguments included; the
 * structs themselves are the host's and are read before the call returns. A call puts its kernels
 * on the calling thread's current stream and does not wait for them. Calls do not fail: a CUDA
 * error stays with the stream and is told by the next wait for it. Never NULL.
 *
 * The 16-bit tables (PL_REAL_BF16, PL_REAL_F16) calculate in f32; there what an op keeps of a row
 * for its backward (mean, inv_std, rstd, norm, lse, max_sum) and running_mean, running_var are f32.
 */
const struct pl_kernels *pl_kernels_cuda(enum pl_real real);

#ifdef __cplusplus
}
#endif

#endif
