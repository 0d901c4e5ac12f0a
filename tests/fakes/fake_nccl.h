/* SPDX-License-Identifier: MIT */
/* libnccl for tests of runtime/engine/cuda/nccl, with the few CUDA calls around it, between
 * processes of one machine: "device" memory is the host's, and collectives use memory that the
 * processes share. A collective starts at once; queries of its stream progress it. It waits for all
 * members, for ever if one does not come, like the real one. tests/cuda/nccl.c emulates one level
 * higher, for the whole engine: pl_nccl_table, without NVIDIA's headers. */
#ifndef PL_TESTS_FAKES_FAKE_NCCL_H
#define PL_TESTS_FAKES_FAKE_NCCL_H

#include <stddef.h>

/* The faults of this process; all zero: none. */
extern struct fake_nccl {
    int library_version;     /* 0: the header's */
    _Atomic int async_error; /* a ncclResult_t that the next question brings; of any thread */
    int hang_init;           /* init stays under way */
    int hang_start;          /* collectives are never started */
    const char *init_error;  /* init fails at once */
    /* what was seen */
    int hang_end; /* a communicator never finishes */
    int missing;  /* there is no library */
    int aborted, finalized, destroyed, registered, freed;
} fake_nccl;

/* Call before ranks are started: makes the shared memory. */
void fake_nccl_share(void);

#endif
