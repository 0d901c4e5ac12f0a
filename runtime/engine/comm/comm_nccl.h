/* SPDX-License-Identifier: MIT */
/* Collectives on the memory of CUDA devices, by NCCL through plume-cuda.so's table.
 *
 * A communicator of this kind stands beside one of the host's (comm.h) with the same members, from
 * which it is made: numbers of the host go through that. Its buffers are device memory, and its
 * calls do not wait for the device: what the device is asked afterwards follows the collective.
 *
 * NCCL neither ends by itself when a rank is lost nor says which one. So a TCP connection between
 * the members carries nothing but that news (as with MPI), and a thread, the watchdog, looks at it
 * and at NCCL's own errors every 20 ms. It aborts NCCL, which frees a host that waits for the
 * device; the call that waits, and all later ones, fail with -ECONNRESET and a text that names the
 * rank. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_NCCL_H
#define PL_RUNTIME_ENGINE_COMM_COMM_NCCL_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/device/nccl_table.h"

#define PL_NCCL_LIMIT_MS                                                                           \
    120000 /* for all ranks to come up; 15 times that for a collective's start */

/* Collective over host, which stays and must outlive nothing of it. compute: the calling thread's
 * stream. -ENOTSUP where a rank's NCCL is not the one that it was built for, or not rank 0's (the
 * text names rank and versions, on all ranks); -ETIMEDOUT. limit_ms: PL_NCCL_LIMIT_MS, or less in
 * tests. */
int pl_comm_nccl_create(struct pl_comm *host,
                        const struct pl_nccl_table *table,
                        void *compute,
                        unsigned limit_ms,
                        struct pl_comm **ret,
                        struct pl_error *err);

/* A part of it. part: of pl_comm_split() of the host's communicator by the same color and key; NULL
 * with a negative color, where *ret becomes NULL. Collective over comm, which stays. */
int pl_comm_nccl_split(struct pl_comm *comm,
                       struct pl_comm *part,
                       int color,
                       int key,
                       struct pl_comm **ret,
                       struct pl_error *err);

/* Starts an allreduce (also of 16-bit numbers) without making the compute stream wait for it, as
 * the buckets of a backward pass want it; each element is multiplied by scale before the sum. */
int pl_comm_nccl_start(struct pl_comm *comm,
                       void *buf,
                       size_t count,
                       enum pl_nccl_type type,
                       double scale,
                       struct pl_error *err);
/* What the compute stream is asked from now on follows all that was started. */
int pl_comm_nccl_join(struct pl_comm *comm, struct pl_error *err);
/* Whether all is well still: -ECONNRESET, as of any call, where a rank is lost. Numbers that the
 * device has summed since then are not to be believed. */
int pl_comm_nccl_check(struct pl_comm *comm, struct pl_error *err);
/* The host waits until the device has finished all that was started. */
int pl_comm_nccl_wait(struct pl_comm *comm, struct pl_error *err);

#endif
