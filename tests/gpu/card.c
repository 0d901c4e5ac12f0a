/* SPDX-License-Identifier: MIT */
/* Runs the op tests (tests/kernels/) on a GPU: linked in, each call's arrays are copied there and
 * back, guards included. */
#include "kernels/cuda/stream.h"
#include "tests/cuda/emulator.h"
#include "tests/kernels/check.h"
#include "tests/kernels/typed.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(cudaError_t r, const char *what)
{
    if (r == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(r));
    exit(1);
}

/* The arrays of a call lie side by side, here and in a copy on the GPU, so that they come back at
 * once: a call waits for the GPU once, and between tests that run beside each other the card
 * switches at each wait. With memory of its own for each array five of the tests took over 40 s on
 * an H100, 8 at a time; so they take 10 to 19. */
static struct {
    char *here, *there;
    size_t bytes, used, out; /* arrays that were not taken back yet */
    bool back;               /* `here` has what the op wrote */
} both;

#define BOTH                                                                                       \
    ((size_t)256 << 20) /* bytes; an array for which there is no room has memory of its own */

/* For compute-sanitizer, which sees the ends of allocations. */
static bool apart(void)
{
    return getenv("CHECK_SANITIZER") != NULL;
}

static void *put(const void *from, size_t bytes)
{
    size_t at = (both.used + 255) / 256 * 256;
    void *copy = NULL;

    if (apart() || at + bytes > both.bytes) {
        must(cudaMalloc(&copy, bytes), "memory on the GPU");
        must(cudaMemcpy(copy, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
        return copy;
    }
    memcpy(both.here + at, from, bytes);
    must(cudaMemcpyAsync(both.there + at, both.here + at, bytes, cudaMemcpyHostToDevice, 0),
         "copying to the GPU");
    both.used = at + bytes;
    both.out++;
    both.back = false;
    return both.there + at;
}

static void wait_for_op(void)
{
    must((cudaError_t)pl_cuda_stream_current()->error, "the op");
    must(cudaDeviceSynchronize(), "the op");
}

static void take(void *to, void *copy, size_t bytes)
{
    if ((char *)copy < both.there || (char *)copy >= both.there + both.bytes) {
        wait_for_op();
        must(cudaMemcpy(to, copy, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
        must(cudaFree(copy), "freeing memory on the GPU");
        return;
    }
    if (!both.back) {
        wait_for_op();
        must(cudaMemcpy(both.here, both.there, both.used, cudaMemcpyDeviceToHost),
             "copying from the GPU");
        both.back = true;
    }
    memcpy(to, both.here + ((char *)copy - both.there), bytes);
    if (--both.out == 0)
        both.used = 0;
}

bool check_card(void)
{
    static const struct typed_memory memory = {.put = put, .take = take};
    struct cudaDeviceProp card;
    int n = 0;
    cudaError_t r = cudaGetDeviceCount(&n);

    if (r != cudaSuccess || n == 0) {
        printf("no NVIDIA GPU: %s\n", r != cudaSuccess ? cudaGetErrorString(r) : "CUDA has none");
        exit(77);
    }
    must(cudaGetDeviceProperties(&card, 0), "what the GPU is");
    printf("%s, compute capability %d.%d\n", card.name, card.major, card.minor);
    if (!apart()) {
        must(cudaMallocHost((void **)&both.here, BOTH), "memory for copies");
        must(cudaMalloc((void **)&both.there, BOTH), "memory on the GPU");
        both.bytes = BOTH;
    }
    typed_elsewhere(&memory);
    return true;
}

/* Blocks run in the order that the GPU likes. */
void pl_emu_seed(uint64_t seed) {}
