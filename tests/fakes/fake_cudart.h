/* SPDX-License-Identifier: MIT */
/* A CUDA runtime for tests of the code that calls it: devices are the host's memory, with a size;
 * streams are queues whose work is done as late as the calls allow (at a synchronisation), or as
 * far as a test says. It checks what the real one would break at: every pointer's owner, events'
 * and streams' lives, and what may not be called while a stream is captured. What is not here is
 * not linked. */
#ifndef PL_TESTS_FAKES_FAKE_CUDART_H
#define PL_TESTS_FAKES_FAKE_CUDART_H

#include <stdbool.h>
#include <stddef.h>

struct CUstream_st;

struct fake_cuda {
    size_t total_bytes;       /* of each device */
    int devices;              /* -1: there is no driver */
    int driver, runtime;      /* versions; 0: the headers' */
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
    unsigned after;    /* once it has worked so many times */
};
extern struct fake_cuda fake_cuda;

/* Forgets everything; a device of `total_bytes`. Fails the test where something is alive. */
void fake_cuda_reset(size_t total_bytes);

/* Does the next `n` things that can be done, of all streams in turn. */
void fake_cuda_advance(unsigned n);

/* Queues a call: a kernel. */
void fake_cuda_queue(struct CUstream_st *stream, void (*run)(void *ctx), void *ctx);

/* Whether [at, at + bytes) is inside what one cudaMalloc gave. */
bool fake_cuda_owns(const void *at, size_t bytes);

#endif
