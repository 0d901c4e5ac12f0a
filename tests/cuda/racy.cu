/* SPDX-License-Identifier: MIT */
/* Kernels with and without what the emulator's trace (trace.h) must find. `racy CASE` runs one;
 * racy.bats knows what each must end with. */
#include "kernels/cuda/launch.cuh"

#include <stdio.h>

#define THREADS 64

struct alignas(16) numbers {
    float at[256];
};

/* Each thread reads its neighbour's number from shared memory. */
static __global__ void neighbour(float *to, bool barrier, bool in_warp)
{
    PL_SHARED(float, of, [THREADS]);
    unsigned t = threadIdx.x, from = in_warp ? t / 32 * 32 + (t + 1) % 32 : (t + 1) % THREADS;

    of[t] = (float)t;
    if (barrier)
        __syncthreads();
    else if (in_warp)
        __syncwarp();
    to[blockIdx.x * THREADS + t] = of[from];
}

/* As above, with a shuffle between: it waits for all lanes, but does not order memory. */
static __global__ void shuffled(float *to)
{
    PL_SHARED(float, of, [THREADS]);
    unsigned t = threadIdx.x;

    of[t] = (float)t;
    to[t] = __shfl_sync(0xffffffff, 1.0f, 0);
    to[t] += of[t / 32 * 32 + (t + 1) % 32];
}

/* A second round writes what slower threads still read of the first. */
static __global__ void rounds(float *to, bool barrier)
{
    PL_SHARED(float, of, [THREADS]);
    unsigned t = threadIdx.x;

    for (int round = 0; round < 2; round++) {
        of[t] = (float)round;
        __syncthreads();
        to[t] = of[(t + 1) % THREADS];
        if (barrier)
            __syncthreads();
    }
}

static __global__ void all_write(float *to, bool own)
{
    to[own ? blockIdx.x : 0] = 1;
}

static __global__ void other_blocks_read(float *to)
{
    to[blockIdx.x + 8] = to[7 - blockIdx.x];
    if (blockIdx.x == 0 && threadIdx.x == 0)
        to[3] = 1;
}

static __global__ void count(unsigned *to, bool atomic)
{
    if (atomic)
        atomicAdd(to, 1u);
    else
        *to += 1;
}

static __global__ void quads(float4 *to, unsigned shift)
{
    float4 *at = (float4 *)((char *)to + shift);

    at[threadIdx.x + 8] = at[threadIdx.x];
}

/* Calls of a library, not loads and stores. */
static __global__ void copied(float *to, size_t bytes, bool own)
{
    memcpy(to + (own ? 16 * threadIdx.x : 0), to + 128, bytes);
}

static __global__ void filled(float *to, bool own)
{
    memset(to + (own ? 16 * threadIdx.x : 0), 0, 64);
}

/* Every thread reads one number of a line of `pitch` numbers. */
static __global__ void columns(float *to, unsigned pitch)
{
    PL_SHARED(float, of, [32 * 33]);
    unsigned t = threadIdx.x;

    for (unsigned i = t; i < 32 * 33; i += 32)
        of[i] = (float)i;
    __syncthreads();
    to[t] = of[t * pitch];
}

int main(int argc, char **argv)
{
    static numbers memory;
    float *to = memory.at;
    const char *name = argc == 2 ? argv[1] : "";

    pl_emu_seed(argc);
#define CASE(what) else if (strcmp(name, what) == 0)
    if (!*name)
        return 2;
    CASE("barrier")
    PL_LAUNCH(neighbour, 2, THREADS, 0, to, true, false);
    CASE("no-barrier")
    PL_LAUNCH(neighbour, 2, THREADS, 0, to, false, false);
    CASE("syncwarp")
    PL_LAUNCH(neighbour, 2, THREADS, 0, to, false, true);
    CASE("shuffle")
    PL_LAUNCH(shuffled, 1, THREADS, 0, to);
    CASE("rounds")
    PL_LAUNCH(rounds, 1, THREADS, 0, to, true);
    CASE("no-second-barrier")
    PL_LAUNCH(rounds, 1, THREADS, 0, to, false);
    CASE("own-place")
    PL_LAUNCH(all_write, 8, 1, 0, to, true);
    CASE("one-place")
    PL_LAUNCH(all_write, 8, 1, 0, to, false);
    CASE("threads-at-one-place")
    PL_LAUNCH(all_write, 1, 2, 0, to, true);
    CASE("two-launches")
    {
        PL_LAUNCH(all_write, 1, 1, 0, to, false);
        PL_LAUNCH(all_write, 1, 1, 0, to, false);
    }
    CASE("other-blocks-read")
    PL_LAUNCH(other_blocks_read, 8, 1, 0, to);
    CASE("atomic")
    PL_LAUNCH(count, 4, 32, 0, (unsigned *)to, true);
    CASE("no-atomic")
    PL_LAUNCH(count, 1, 32, 0, (unsigned *)to, false);
    CASE("aligned")
    PL_LAUNCH(quads, 1, 8, 0, (float4 *)to, 0u);
    CASE("misaligned")
    PL_LAUNCH(quads, 1, 8, 0, (float4 *)to, 4u);
    CASE("copied")
    PL_LAUNCH(copied, 1, 4, 0, to, (size_t)64, true);
    CASE("copied-to-one-place")
    PL_LAUNCH(copied, 1, 4, 0, to, (size_t)64, false);
    CASE("filled")
    PL_LAUNCH(filled, 1, 4, 0, to, true);
    CASE("one-place-filled")
    PL_LAUNCH(filled, 1, 4, 0, to, false);
    CASE("banks-33")
    PL_LAUNCH(columns, 1, 32, 0, to, 33u);
    CASE("banks-32")
    PL_LAUNCH(columns, 1, 32, 0, to, 32u);
    CASE("banks-2")
    PL_LAUNCH(columns, 1, 32, 0, to, 2u);
    else return 2;
    return 0;
}
