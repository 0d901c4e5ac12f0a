/* SPDX-License-Identifier: MIT */
#include "kernels/kernels.h"

extern const struct pl_kernels pl_ref_f32_table, pl_ref_f64_table;

const struct pl_kernels *pl_kernels_ref(enum pl_real real)
{
    return real == PL_REAL_F64 ? &pl_ref_f64_table : &pl_ref_f32_table;
}
