/* SPDX-License-Identifier: MIT */
/* A CUDA runtime for tests of its callers. Devices are host memory of a given size; streams are
 * queues whose work is done as late as the calls allow (at a synchronisation), or when the test
 * asks. It checks what the real one needs: every pointer's owner, the lifetimes of events and
 * streams, and the calls that are not allowed while a stream is captured. Calls that are missing
 * here do not link. */
#ifndef PL_TESTS_FAKES_FAKE_CUDART_H
#define PL_TESTS_FAKES_FAKE_CUDART_H

#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;

struct fake_cuda {
    size_t total_bytes;       /* of each device */
    int devices;              /* -1: there is no driver */
    int driver, runtime;      /* versions; 0: the headers' */
    const char *card;         /* name of each device; NULL: "Fake N" */
    int capability;           /* 0: 90 */
    size_t used_bytes;        /* by cudaMalloc */
    unsigned allocs, pinned;  /* alive */
    unsigned streams, events; /* alive */
    unsigned graphs;          /* alive, with what was made of them */
    unsigned long mallocs, frees, queued, launches;
    unsigned long peer_copies;
    bool no_peers;     /* devices cannot read one another's memory */
    bool no_pinned;    /* cudaHostAlloc finds no memory */
    const char *fails; /* the name of a call that fails from now on ... */
    int code;          /* ... with this */
    unsigned after;    /* after this number of successes */
};
extern struct fake_cuda fake_cuda;

/* Resets to one device of `total_bytes`. Fails the test if something is still alive. */
void fake_cuda_reset(size_t total_bytes);

/* Runs the next `n` operations that can run, of all streams in turn. */
void fake_cuda_advance(unsigned n);

/* Queues a call: a kernel. */
void fake_cuda_queue(struct CUstream_st *stream, void (*run)(void *ctx), void *ctx);

/* True if [at, at + bytes) is inside one block of cudaMalloc. */
bool fake_cuda_owns(const void *at, size_t bytes);

#endif
