/* SPDX-License-Identifier: MIT */
/* Each file of this folder is compiled twice, for float and for double (PL_REF_F64 = 0 or 1). */
#ifndef PL_KERNELS_REF_REAL_H
#define PL_KERNELS_REF_REAL_H

#include "kernels/kernels.h"

#include <math.h>

#ifndef PL_REF_F64
#define PL_REF_F64 0
#endif
#if PL_REF_F64
typedef double real;
#define PL_REF(name) pl_ref_f64_##name
#else
typedef float real;
#define PL_REF(name) pl_ref_f32_##name
#endif

#define PL_REF_DECLARE(function, args) void PL_REF(function)(const struct pl_##args##_args *a);
PL_KERNEL_LIST(PL_REF_DECLARE)
#undef PL_REF_DECLARE

#endif
