/* SPDX-License-Identifier: MIT */
/* The part of NCCL that plume-cuda.so exports (NCCL 2.19 and later; NCCL's user guide:
 * "Communicators", "Fault tolerance", "User buffer registration"). This header includes no other,
 * so that the engine needs no NVIDIA header.
 *
 * No function here but destroy() waits, so that the caller can check its peers in between:
 * communicators are non-blocking, and state() reports if a call has completed. Functions return 0,
 * or fill `text` (PL_NCCL_TEXT bytes) and return -1. Collectives run on the communicator's own
 * stream, after the compute stream's earlier work; join() makes the compute stream wait for them.
 * Threads: one at a time, except state() and abort(), which may interrupt a wait for the device. */
#ifndef PL_RUNTIME_ENGINE_DEVICE_NCCL_TABLE_H
#define PL_RUNTIME_ENGINE_DEVICE_NCCL_TABLE_H

#include <stddef.h>

#define PL_NCCL_TABLE_VERSION 2
#define PL_NCCL_TABLE_SYMBOL "pl_nccl_table"
#define PL_NCCL_TEXT 160
#define PL_NCCL_ID_BYTES 128
#define PL_NCCL_REMOTE (-2)

enum pl_nccl_type { PL_NCCL_F32, PL_NCCL_F64, PL_NCCL_BF16, PL_NCCL_F16 };

struct pl_nccl_table {
    unsigned version;

    /* Loads NCCL, at the first call. -1: it is not there; `text` says where it was looked for. */
    int (*there)(char *text, size_t size);

    /* Versions in NCCL's numbering (2.28.9 = 22809): of the header at build time, and of the loaded
     * library. */
    int (*versions)(int *ret_header, int *ret_library, char *text);
    int (*unique_id)(void *ret_id, char *text);

    /* Starts a communicator for the calling thread's CUDA device. Collectives follow the work of
     * compute, a cudaStream_t. */
    int (*init)(
        const void *id, unsigned size, unsigned rank, void *compute, void **ret, char *text);
    /* Starts a sub-communicator: the members of one color, ordered by key. With a negative color
     * *ret is NULL. */
    int (*split)(void *comm, int color, int key, void **ret, char *text);

    /* *ret_done: 1 if no call is in progress on the host (kernels may still run). Asynchronous
     * errors: -1, or PL_NCCL_REMOTE if another rank is lost, which NCCL cannot name. */
    int (*state)(void *comm, int *ret_done, char *text);
    /* *ret_done: 1 if the device has completed all collectives so far. */
    int (*finished)(void *comm, int *ret_done, char *text);
    /* Call after a collective when state() is done: records its end on the stream. */
    int (*mark)(void *comm, char *text);
    int (*join)(void *comm, char *text);

    /* In place. Each element is multiplied by scale, in its own type, before the sum. */
    int (*allreduce)(
        void *comm, void *buf, size_t count, enum pl_nccl_type type, double scale, char *text);
    /* The same, but only this rank's part is set: elements offset[rank] to offset[rank + 1]. The
     * rest of buf is undefined afterwards. */
    int (*reduce_scatter)(void *comm,
                          void *buf,
                          const size_t *offset,
                          enum pl_nccl_type type,
                          double scale,
                          char *text);
    int (*broadcast)(void *comm, void *buf, size_t bytes, char *text); /* rank 0's */
    int (*allgather)(void *comm, void *buf, const size_t *offset, char *text);

    /* Zeroed memory from ncclMemAlloc, registered with comm and freed with it. */
    int (*alloc)(void *comm, size_t bytes, void **ret, char *text);

    void (*abort)(void *comm);   /* ends what is in progress; only destroy() may follow */
    void (*destroy)(void *comm); /* waits some seconds at most for what is in progress */
};

#endif
