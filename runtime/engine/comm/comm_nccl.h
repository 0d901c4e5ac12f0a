/* SPDX-License-Identifier: MIT */
/* Collectives on the memory of CUDA devices, by NCCL through plume-cuda.so's table.
 *
 * Such a communicator belongs to a communicator of the host (comm.h) with the same members, from
 * which it is made and which carries the host's numbers. Its buffers are device memory. Its calls
 * do not wait for the device: later work of the device is ordered after the collective.
 *
 * When a rank is lost, NCCL neither stops by itself nor names the rank. Therefore the members also
 * have TCP connections that carry no data (as with MPI). A watchdog thread checks them and NCCL's
 * own errors every 20 ms. It aborts NCCL, which releases a host that waits for the device; the
 * waiting call and all later ones fail with -ECONNRESET and a text that names the rank. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_NCCL_H
#define PL_RUNTIME_ENGINE_COMM_COMM_NCCL_H

#include "runtime/engine/comm/comm.h"
#include "runtime/engine/device/nccl_table.h"

#define PL_NCCL_LIMIT_MS                                                                           \
    120000 /* for all ranks to connect; 15 times that for a collective to start */

/* Collective over host, which stays and must outlive *ret. compute: the calling thread's stream.
 * -ENOTSUP: a rank's NCCL is not the version that it was built for, or not rank 0's (the text names
 * rank and versions, on all ranks). -ETIMEDOUT. limit_ms: PL_NCCL_LIMIT_MS, or less in tests. */
int pl_comm_nccl_create(struct pl_comm *host,
                        const struct pl_nccl_table *table,
                        void *compute,
                        unsigned limit_ms,
                        struct pl_comm **ret,
                        struct pl_error *err);

/* The same in two calls, between which NCCL connects in threads of its own (about a second) while
 * the caller does something else. limit_ms counts from the second call. */
int pl_comm_nccl_begin(struct pl_comm *host,
                       const struct pl_nccl_table *table,
                       void *compute,
                       unsigned limit_ms,
                       struct pl_comm **ret,
                       struct pl_error *err);
int pl_comm_nccl_connect(struct pl_comm *comm, struct pl_error *err);

/* Makes a sub-communicator. part: pl_comm_split() of the host's communicator with the same color
 * and key; NULL with a negative color, then *ret is NULL. Collective over comm, which stays. */
int pl_comm_nccl_split(struct pl_comm *comm,
                       struct pl_comm *part,
                       int color,
                       int key,
                       struct pl_comm **ret,
                       struct pl_error *err);

/* Starts an allreduce (also of 16-bit numbers) that the compute stream does not wait for, for the
 * buckets of a backward pass. Each element is multiplied by scale before the sum. */
int pl_comm_nccl_start(struct pl_comm *comm,
                       void *buf,
                       size_t count,
                       enum pl_nccl_type type,
                       double scale,
                       struct pl_error *err);
/* The same for a reduce-scatter; offsets as pl_comm_reduce_scatter(). */
int pl_comm_nccl_start_scatter(struct pl_comm *comm,
                               void *buf,
                               const size_t *offset,
                               enum pl_nccl_type type,
                               double scale,
                               struct pl_error *err);
/* The same for a gather; offsets as pl_comm_allgather(). */
int pl_comm_nccl_start_gather(struct pl_comm *comm,
                              void *buf,
                              const size_t *offset,
                              struct pl_error *err);
/* Later work of the compute stream waits for all collectives that were started. */
int pl_comm_nccl_join(struct pl_comm *comm, struct pl_error *err);
/* Returns 0 if no rank is lost, else -ECONNRESET like all calls. Sums that the device has made
 * since the loss are invalid. */
int pl_comm_nccl_check(struct pl_comm *comm, struct pl_error *err);
/* Blocks the host until the device has completed all collectives that were started. */
int pl_comm_nccl_wait(struct pl_comm *comm, struct pl_error *err);

#endif
