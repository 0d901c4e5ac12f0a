/* SPDX-License-Identifier: MIT */
/* The op table: the functions of a backend, and the list of backends.
 *
 * A new op is one struct of arguments and one line in the list of its family's header (args_*.h),
 * kernels/ref/<op>.c (the truth: plain loops that one can check by eye), kernels/cpu/<op>.c, a line
 * for each in meson.build, and tests/kernels/<op>.c.
 *
 * Rules for all ops: arrays that are void pointers are dense, row-major and of the table's real
 * type (statistics: pl_real_of_stats()). A gradient is added to if its *_add flag is set, else
 * written, and is not wanted if it is NULL. Outputs never overlap inputs unless the struct says so.
 * No op locks, fails, or allocates on the heap except for a scratch buffer per thread, whose lack
 * pl_kernels_lost() tells. Thread safe.
 * Ops marked "exact" give the same bits on every machine and backend; ranks rely on it. */
#ifndef PL_KERNELS_KERNELS_H
#define PL_KERNELS_KERNELS_H

#include "common/base/error.h"
#include "kernels/args_index.h"
#include "kernels/args_linear.h"
#include "kernels/args_nn.h"
#include "kernels/args_optim.h"

#include <stdbool.h>
#include <stdint.h>

/* The 16-bit types exist on devices that store them and compute in f32 (kernels/cuda/cuda.h). */
enum pl_real {
    PL_REAL_F32,
    PL_REAL_F64,
    PL_REAL_BF16,
    PL_REAL_F16,
};

/* All ops: X(function, struct of arguments) */
#define PL_KERNEL_LIST(X)                                                                          \
    PL_KERNEL_LIST_LINEAR(X)                                                                       \
    PL_KERNEL_LIST_NN(X)                                                                           \
    PL_KERNEL_LIST_INDEX(X)                                                                        \
    PL_KERNEL_LIST_OPTIM(X)

struct pl_kernels {
    const char *name; /* e.g. "cpu/v3" */
    enum pl_real real;
#define PL_KERNEL_MEMBER(function, args) void (*function)(const struct pl_##args##_args *);
    PL_KERNEL_LIST(PL_KERNEL_MEMBER)
#undef PL_KERNEL_MEMBER
};

/* True if an op of this process, on the CPU, got no memory for its scratch buffer. Its result, and
 * all that was computed from it, is useless. */
bool pl_kernels_lost(void);

/* The truth, in f32 or f64; NULL for the 16-bit types. */
const struct pl_kernels *pl_kernels_ref(enum pl_real real);

/* The vectorised loops for f32, built for several x86-64 levels; level 0 runs everywhere. NULL if
 * this machine cannot run the level, or it does not exist. */
const struct pl_kernels *pl_kernels_cpu(unsigned level);

/* The best table for this machine's CPU and type. Never NULL for f32 and f64. */
const struct pl_kernels *pl_kernels_best(enum pl_real real);

/* The type of a row's or channel's statistics, kept from forward to backward (mean, rstd, inv_std,
 * norm, lse), and of batch norm's running_mean and running_var: f32 in the 16-bit tables. */
static inline enum pl_real pl_real_of_stats(enum pl_real real)
{
    return real == PL_REAL_F64 ? PL_REAL_F64 : PL_REAL_F32;
}

/* Bytes of an element. */
static inline size_t pl_real_size(enum pl_real real)
{
    switch (real) {
    case PL_REAL_F64:
        return sizeof(double);
    case PL_REAL_BF16:
    case PL_REAL_F16:
        return sizeof(uint16_t);
    default:
        return sizeof(float);
    }
}

/* The number of threads that this process may use: the smallest of its affinity mask, its cgroup's
 * CPU quota (rounded up) and $OMP_NUM_THREADS; at least 1. */
unsigned pl_threads_available(void);

#endif
