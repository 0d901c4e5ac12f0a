/* SPDX-License-Identifier: MIT */
/* Watches each access that emulated kernels make to memory, in builds with -Demulator_trace=true.
 * The compiler calls out at each load and store (-fsanitize=thread, whose library is not linked:
 * trace.c has these functions). The program ends with a message at
 *   - a race: two threads touch a byte, at least one writes, and nothing orders them. In a block
 *     __syncthreads() orders all threads and __syncwarp() the lanes of a warp; shuffles and votes
 *     order nothing, and neither does anything between two blocks of a launch. Two atomics on one
 *     address are no race.
 *   - a load or store that is not aligned to its size, up to 16 bytes.
 * PLUME_EMULATED_BANKS=FOLDER: when the program ends, a file there, named by its pid, has a line
 * for each load or store of shared memory: its passes over the banks, those of the best case, the
 * bytes of a lane, function and line (tests/cuda/banks.py adds them up).
 */
#ifndef PL_TESTS_CUDA_TRACE_H
#define PL_TESTS_CUDA_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef PL_EMULATOR_TRACE
/* The shared memory of blocks lies in [shared, shared + bytes). */
void pl_trace_launch(const void *shared, size_t bytes, unsigned threads);
void pl_trace_launched(void);
void pl_trace_block(uint32_t block);
/* The thread that runs from now on, whose stack is its own. */
void pl_trace_thread(unsigned thread, const void *stack, size_t stack_bytes);
void pl_trace_barrier(void);
void pl_trace_syncwarp(unsigned warp);
void pl_trace_atomic(bool on);
#else
static inline void pl_trace_launch(const void *shared, size_t bytes, unsigned threads)
{
    (void)shared;
    (void)bytes;
    (void)threads;
}
static inline void pl_trace_launched(void) {}
static inline void pl_trace_block(uint32_t block)
{
    (void)block;
}
static inline void pl_trace_thread(unsigned thread, const void *stack, size_t stack_bytes)
{
    (void)thread;
    (void)stack;
    (void)stack_bytes;
}
static inline void pl_trace_barrier(void) {}
static inline void pl_trace_syncwarp(unsigned warp)
{
    (void)warp;
}
static inline void pl_trace_atomic(bool on)
{
    (void)on;
}
#endif

#endif
