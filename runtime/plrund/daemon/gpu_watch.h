/* SPDX-License-Identifier: MIT */
/* The process that watches a node's GPUs for plrund(8): `plrund --watch-gpus FD`. A process of its
 * own, since a call into the driver may never return after a GPU is lost, and is slow at best: the
 * daemon must answer meanwhile, and end.
 *
 * It writes two messages of common/proto/messages.h, one a line:
 *   {"type":"gpus","gpus":[{"gpu":0,"uuid":"GPU-..","name":"..","util":93,"mem_util":41,
 *      "power_w":312.5,"power_limit_w":400,"clock_mhz":690,"clock_max_mhz":1980,"mem_used":N,
 *      "mem_total":N,"util_mean":88,"mem_most":N,"temp_c":71,"throttle":["hw-thermal"],
 *      "throttled_s":240,"ecc_corrected":0,"ecc_uncorrected":0,
 *      "processes":[{"pid":N,"mem":N,"util":90}]}]}
 *   {"type":"gpu","gpu":0,"uuid":"GPU-..","event":"xid","xid":79,"text":"..","at_ns":N}
 *   {"type":"gpu","gpu":0,"uuid":"GPU-..","event":"ecc","text":"double bit ECC error","at_ns":N}
 * A key that the driver does not report is absent; memory in bytes, times on CLOCK_MONOTONIC. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_GPU_WATCH_H
#define PL_RUNTIME_PLRUND_DAEMON_GPU_WATCH_H

#include "common/base/error.h"

#include <stdbool.h>

/* True if the step has GPUs by its environment and the driver's control device exists (or
 * PLUME_NVML names a library, in a build with tests). Costs a few getenv() and one access(). */
bool pl_gpu_watch_wanted(void);

/* Runs until fd is closed at its other end. 0, or -errno if there is no GPU to watch. */
int pl_gpu_watch_run(int fd, struct pl_error *err);

/* Writes one message node_gpus about all GPUs of the node, for `plrund --sample-gpus`. A GPU whose
 * processes the driver does not tell has "processes_unread": true. 0, -ENOENT (no library of the
 * driver's), -ENODEV (no driver is loaded, or it shows no GPU), -ENOSYS, -EIO. */
int pl_gpu_watch_sample(int fd, struct pl_error *err);

#endif
