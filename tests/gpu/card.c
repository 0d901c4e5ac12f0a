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

static void must(cudaError_t r, const char *what)
{
    if (r == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(r));
    exit(1);
}

static void *put(const void *from, size_t bytes)
{
    void *copy = NULL;

    must(cudaMallocAsync(&copy, bytes, 0), "memory on the GPU");
    must(cudaMemcpy(copy, from, bytes, cudaMemcpyHostToDevice), "copying to the GPU");
    return copy;
}

static void take(void *to, void *copy, size_t bytes)
{
    must((cudaError_t)pl_cuda_stream_current()->error, "the op");
    must(cudaDeviceSynchronize(), "the op");
    must(cudaMemcpy(to, copy, bytes, cudaMemcpyDeviceToHost), "copying from the GPU");
    must(cudaFreeAsync(copy, 0), "freeing memory on the GPU");
}

/* Each array of each call has memory of its own, so that compute-sanitizer sees its ends.
 * cudaMalloc would take most of the tests' time. */
static void keep_memory(void)
{
    uint64_t all = UINT64_MAX;
    cudaMemPool_t pool;

    must(cudaDeviceGetDefaultMemPool(&pool, 0), "the GPU's memory pool");
    must(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
         "the GPU's memory pool");
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
    keep_memory();
    typed_elsewhere(&memory);
    return true;
}

/* Blocks run in the order that the GPU likes. */
void pl_emu_seed(uint64_t seed) {}
