/* SPDX-License-Identifier: MIT */
/* NCCL between emulated GPUs (device.c) of different processes of one machine: pl_nccl_table, as
 * plume-cuda.so has it. PLUME_EMULATED_NCCL: the version that the library says it has (22000);
 * PLUME_EMULATED_NCCL_FAILS=N: it fails by itself in rank 0's Nth sum, where no rank is lost.
 *
 * It is as late as NCCL may be: from the start of a collective until the compute stream has waited
 * for it (join), its buffer holds NaNs, and what was started is done only once the next thing after
 * that is asked of the device, or the host waits. */
#ifndef PL_TESTS_CUDA_NCCL_H
#define PL_TESTS_CUDA_NCCL_H

#include "runtime/engine/device/device.h"

/* To be called before anything is done on the device: waits for the collectives that its compute
 * stream waits for. */
void pl_emu_nccl_settle(const struct pl_device *dev);

#endif
