/* SPDX-License-Identifier: MIT */
#include "kernels/kernels.h"

extern const struct pl_kernels pl_ref_f32_table, pl_ref_f64_table;

const struct pl_kernels *pl_kernels_ref(enum pl_real real)
{
    switch (real) {
    case PL_REAL_F32:
        return &pl_ref_f32_table;
    case PL_REAL_F64:
        return &pl_ref_f64_table;
    default:
        return NULL;
    }
}
