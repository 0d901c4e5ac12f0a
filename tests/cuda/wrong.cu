/* SPDX-License-Identifier: MIT */
/* Kernels with the mistakes that the emulator finds in any build; those of the trace are in
 * racy.cu. `wrong CASE` runs one; wrong.bats knows what each must end with. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch.cuh"

#include <stdio.h>

using pl_cuda::grid_of;

#define THREADS 64

static __global__ void nothing_wrong(float *to)
{
    PL_SHARED(float, of, [THREADS]);
    unsigned t = threadIdx.x;

    of[t] = (float)t;
    __syncthreads();
    to[t] = of[THREADS - 1 - t] + __shfl_sync(0xffffffff, (float)t, 0);
}

static __global__ void some_return(float *to)
{
    if (threadIdx.x % 2)
        return;
    __syncthreads();
    to[threadIdx.x] = 1;
}

static __global__ void two_barriers(float *to)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    to[threadIdx.x] = 1;
}

static __global__ void two_shuffles(float *to)
{
    if (threadIdx.x % 2)
        to[threadIdx.x] = __shfl_sync(0xffffffff, 1.0f, 0);
    else
        to[threadIdx.x] = __shfl_sync(0xffffffff, 2.0f, 1);
}

static __global__ void half_of_a_warp(float *to)
{
    to[threadIdx.x] = __shfl_sync(0x0000ffff, 1.0f, 0);
}

/* Half of a warp at a barrier of the block, the other half at one of the warp. */
static __global__ void each_waits(float *to)
{
    if (threadIdx.x % 2)
        __syncthreads();
    else
        __syncwarp();
    to[threadIdx.x] = 1;
}

static __global__ void one_too_far(float *to)
{
    PL_SHARED(float, of, [THREADS]);

    of[threadIdx.x + 1] = 1;
    to[threadIdx.x] = of[threadIdx.x];
}

static __global__ void not_written(float *to)
{
    PL_SHARED(float, of, [THREADS]);

    if (threadIdx.x)
        of[threadIdx.x] = 1;
    __syncthreads();
    to[threadIdx.x] = of[threadIdx.x];
}

/* Reads memory that an earlier block has left. */
static __global__ void of_the_block_before(float *to)
{
    PL_SHARED(float, of, [THREADS]);

    to[threadIdx.x] = of[threadIdx.x];
    of[threadIdx.x] = 1;
}

static __global__ void much_shared(float *to)
{
    PL_SHARED_DYNAMIC(float, of);

    of[threadIdx.x] = 1;
    to[threadIdx.x] = of[threadIdx.x];
}

/* The number of blocks before this one; right by luck where they run in order. */
static __global__ void in_order(float *to)
{
    if (threadIdx.x == 0)
        to[blockIdx.x] = to[THREADS]++;
}

/* Of an op that has no arrays: the op must be refused before anything is read. */
static void many_rows(const char *op)
{
    const struct pl_kernels *k = pl_kernels_cuda(PL_REAL_F32);
    const size_t rows = ((size_t)1 << 34) + 4; /* 1 block of 4 rows, if it is cut to 32 bits */
    struct pl_softmax_args softmax = {};
    struct pl_correct_args correct = {};
    struct pl_embedding_args embedding = {};

    softmax.rows = correct.rows = embedding.rows = rows;
    softmax.n = correct.classes = embedding.vocab = embedding.dim = 3;
    if (strcmp(op, "softmax") == 0)
        k->softmax_forward(&softmax);
    else if (strcmp(op, "correct") == 0)
        k->correct(&correct);
    else
        k->embedding_backward(&embedding);
}

int main(int argc, char **argv)
{
    static float to[THREADS + 1];
    const char *name = argc == 2 ? argv[1] : "";

    pl_emu_seed(7);
#define CASE(what) else if (strcmp(name, what) == 0)
    if (!*name)
        return 2;
    CASE("nothing-wrong")
    PL_LAUNCH(nothing_wrong, 2, THREADS, 0, to);
    CASE("some-return")
    PL_LAUNCH(some_return, 1, THREADS, 0, to);
    CASE("two-barriers")
    PL_LAUNCH(two_barriers, 1, THREADS, 0, to);
    CASE("two-shuffles")
    PL_LAUNCH(two_shuffles, 1, THREADS, 0, to);
    CASE("half-of-a-warp")
    PL_LAUNCH(half_of_a_warp, 1, THREADS, 0, to);
    CASE("part-of-a-warp")
    PL_LAUNCH(nothing_wrong, 1, THREADS - 1, 0, to);
    CASE("each-waits")
    PL_LAUNCH(each_waits, 1, THREADS, 0, to);
    CASE("one-too-far")
    PL_LAUNCH(one_too_far, 1, THREADS, 0, to);
    CASE("not-written")
    PL_LAUNCH(not_written, 1, THREADS, 0, to);
    CASE("of-the-block-before")
    PL_LAUNCH(of_the_block_before, 3, THREADS, 0, to);
    CASE("much-shared")
    PL_LAUNCH(much_shared, 1, THREADS, 200 * 1024, to);
    CASE("large-grid")
    PL_LAUNCH(nothing_wrong, grid_of(1, 65536), THREADS, 0, to);
    CASE("larger-grid")
    PL_LAUNCH(nothing_wrong, (size_t)1 << 31, THREADS, 0, to);
    CASE("one-block-in-32-bits")
    PL_LAUNCH(nothing_wrong, ((size_t)1 << 32) + 1, THREADS, 0, to);
    CASE("many-rows")
    many_rows("softmax");
    CASE("many-tokens")
    many_rows("embedding");
    CASE("many-labels")
    many_rows("correct");
    CASE("empty-grid")
    PL_LAUNCH(nothing_wrong, 0, THREADS, 0, to);
    CASE("large-block")
    PL_LAUNCH(nothing_wrong, 1, 2048, 0, to);
    CASE("in-order")
    PL_LAUNCH(in_order, THREADS, 32, 0, to);
    else return 2;
    for (int i = 0; i < THREADS; i++)
        if (isnan(to[i])) {
            printf("NaN\n");
            return 3;
        }
    for (int i = 0; strcmp(name, "in-order") == 0 && i < THREADS; i++)
        if (to[i] != (float)i) {
            printf("not in order\n");
            return 3;
        }
    return 0;
}
