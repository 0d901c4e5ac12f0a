/* SPDX-License-Identifier: MIT */
/* --accelerator auto: the GPUs, if a benchmark has a row for them and a short test of them passed;
 * else the CPU. --test-gpus: that test. */
#ifndef PL_RUNTIME_PLTRAIN_AUTO_GPU_H
#define PL_RUNTIME_PLTRAIN_AUTO_GPU_H

#include "runtime/engine/comm/comm.h"
#include "runtime/pltrain/pltrain_options.h"

/* Tests each kind of GPU that this process sees (gpu_test.h) and prints a line for each. What
 * passed is kept in ~/.plume/gpu-tests, by GPU, driver and libraries. Returns the exit code. */
int pl_auto_gpu_test(FILE *out);

/* Tests the first GPU, in this process. *ret_there: there is one. -ENODEV, -ENOTSUP: there is none,
 * or it cannot be used; -EDOM and others as pl_gpu_test_run(). */
int pl_auto_gpu_check(bool *ret_there, struct pl_error *err);

/* Decides for all ranks of comm. Local rank 0 of each node looks, and tests what no earlier run has
 * tested: in a process of its own, and with a limit. *ret: all ranks take GPUs. If not, world rank
 * 0 logs the reason: as a warning if the machine has GPUs. Collective. */
int pl_auto_gpu(const struct pl_pltrain *p, struct pl_comm *comm, bool *ret, struct pl_error *err);

#endif
