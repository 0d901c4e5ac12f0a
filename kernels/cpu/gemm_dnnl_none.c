/* SPDX-License-Identifier: MIT */
/* In the place of gemm_dnnl.c in a build without oneDNN. */
#include "kernels/cpu/level.h"

bool pl_gemm_dnnl(const struct pl_gemm *g)
{
    return false;
}
