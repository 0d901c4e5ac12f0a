/* SPDX-License-Identifier: MIT */
/* NCCL between emulated GPUs (device.c) of different processes of one machine: pl_nccl_table, as
 * exported by plume-cuda.so. PLUME_EMULATED_NCCL: the library's version (22000);
 * PLUME_EMULATED_NCCL_FAILS=N: NCCL itself fails in rank 0's Nth sum, without a lost rank.
 *
 * It is as late as NCCL may be: from the start of a collective until the compute stream has waited
 * for it (join), its buffer holds NaNs; the collective completes only at the device's next
 * operation after that, or when the host waits. */
#ifndef PL_TESTS_CUDA_NCCL_H
#define PL_TESTS_CUDA_NCCL_H

#include "runtime/engine/device/device.h"

/* Call before any operation of the device: waits for the collectives that its compute stream waits
 * for. */
void pl_emu_nccl_settle(const struct pl_device *dev);

#endif
