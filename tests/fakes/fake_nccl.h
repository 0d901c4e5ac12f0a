/* SPDX-License-Identifier: MIT */
/* NCCL and the few CUDA calls around it, between processes of one machine, for tests: "device"
 * memory is the host's, and collectives go through memory that the processes share. A collective is
 * started at once and finished by progress that its stream makes when it is asked; it waits for all
 * members, as the real one does, for ever where one does not come. */
#ifndef PL_TESTS_FAKES_FAKE_NCCL_H
#define PL_TESTS_FAKES_FAKE_NCCL_H

#include <stddef.h>

/* What this process shall do wrong; all zero: nothing. */
extern struct fake_nccl {
    int library_version;     /* 0: the header's */
    _Atomic int async_error; /* a ncclResult_t that the next question brings; of any thread */
    int hang_init;           /* init stays under way */
    int hang_start;          /* collectives are never started */
    const char *init_error;  /* init fails at once */
    /* what was seen */
    int aborted, destroyed, registered, freed;
} fake_nccl;

/* Before ranks are started: where communicators meet. */
void fake_nccl_share(void);

#endif
