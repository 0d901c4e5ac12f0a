/* SPDX-License-Identifier: MIT */
#include "kernels/kernels.h"

extern const struct pl_kernels pl_cpu_v0_table;

const struct pl_kernels *pl_kernels_cpu(unsigned level)
{
    return level == 0 ? &pl_cpu_v0_table : NULL;
}
