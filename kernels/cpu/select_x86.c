/* SPDX-License-Identifier: MIT */
#include "kernels/kernels.h"

extern const struct pl_kernels pl_cpu_v0_table, pl_cpu_v3_table, pl_cpu_v4_table;

const struct pl_kernels *pl_kernels_cpu(unsigned level)
{
    __builtin_cpu_init();
#ifndef PL_CPU_WITHOUT_0
    if (level == 0)
        return &pl_cpu_v0_table;
#endif
    if (level == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
        return &pl_cpu_v3_table;
#ifndef PL_CPU_WITHOUT_4
    if (level == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return &pl_cpu_v4_table;
#endif
    return NULL;
}
