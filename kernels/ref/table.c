/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

extern const struct pl_kernels PL_REF(table);

const struct pl_kernels PL_REF(table) = {.name = PL_REF_F64 ? "ref/f64" : "ref/f32",
                                         .real = PL_REF_F64 ? PL_REAL_F64 : PL_REAL_F32,
#define PL_REF_ENTRY(function, args) .function = PL_REF(function),
                                         PL_KERNEL_LIST(PL_REF_ENTRY)
#undef PL_REF_ENTRY
};
