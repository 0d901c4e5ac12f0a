/* SPDX-License-Identifier: MIT */
/* What plume-cuda.so offers of NCCL (2.19 and later, NCCL's user guide: "Communicators", "Fault
 * tolerance", "User buffer registration"). Includes nothing of ours, so that the engine needs no
 * NVIDIA header.
 *
 * Nothing here waits, so that the caller can look after its peers in between: communicators are
 * non-blocking, and what is started is asked for with state(). Functions return 0, or fill `text`
 * (PL_NCCL_TEXT bytes) and return -1. Collectives run on a stream of the communicator's own, behind
 * what the compute stream was asked before; join() makes the compute stream wait for them.
 * Threads: one at a time, but for state() and abort(), which may interrupt a wait for the device.
 */
#ifndef PL_RUNTIME_ENGINE_DEVICE_NCCL_TABLE_H
#define PL_RUNTIME_ENGINE_DEVICE_NCCL_TABLE_H

#include <stddef.h>

#define PL_NCCL_TABLE_VERSION 1
#define PL_NCCL_TABLE_SYMBOL "pl_nccl_table"
#define PL_NCCL_TEXT 160
#define PL_NCCL_ID_BYTES 128
#define PL_NCCL_REMOTE (-2)

enum pl_nccl_type { PL_NCCL_F32, PL_NCCL_F64, PL_NCCL_BF16, PL_NCCL_F16 };

struct pl_nccl_table {
    unsigned version;

    /* Versions as NCCL numbers them (2.28.9 = 22809): of the header it was built with, and of the
     * library that was loaded. */
    int (*versions)(int *ret_header, int *ret_library, char *text);
    int (*unique_id)(void *ret_id, char *text);

    /* Starts a communicator for the calling thread's CUDA device; device: of *ret, later.
     * compute: the cudaStream_t whose work collectives follow. */
    int (*init)(
        const void *id, unsigned size, unsigned rank, void *compute, void **ret, char *text);
    /* Starts a part of it: the members of a color by key; a negative color: *ret is NULL. */
    int (*split)(void *comm, int color, int key, void **ret, char *text);

    /* *ret_done: 1 where nothing that was started on the host is under way any more (kernels may
     * run still). An error that came by itself: -1, or PL_NCCL_REMOTE where another rank is lost,
     * which it cannot name. */
    int (*state)(void *comm, int *ret_done, char *text);
    /* *ret_done: 1 where the device has finished all collectives so far. */
    int (*finished)(void *comm, int *ret_done, char *text);
    /* Once state() is done after a collective: notes where it ends on the stream. */
    int (*mark)(void *comm, char *text);
    int (*join)(void *comm, char *text);

    /* In place. Each element is multiplied by scale before it is summed, in its own type. */
    int (*allreduce)(
        void *comm, void *buf, size_t count, enum pl_nccl_type type, double scale, char *text);
    int (*broadcast)(void *comm, void *buf, size_t bytes, char *text); /* rank 0's */
    int (*allgather)(void *comm, void *buf, const size_t *offset, char *text);

    /* Zeroed memory of ncclMemAlloc, registered with comm; freed with it. */
    int (*alloc)(void *comm, size_t bytes, void **ret, char *text);

    void (*abort)(void *comm); /* what is under way ends; only destroy() may follow */
    void (*destroy)(void *comm);
};

#endif
