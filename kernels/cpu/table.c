/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

extern const struct pl_kernels PL_CPU(table);

const struct pl_kernels PL_CPU(table) = {.name = PL_CPU_NAME,
                                         .real = PL_REAL_F32,
#define PL_CPU_ENTRY(function, args) .function = PL_CPU(function),
                                         PL_KERNEL_LIST(PL_CPU_ENTRY)
#undef PL_CPU_ENTRY
};
