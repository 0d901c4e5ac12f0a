/* SPDX-License-Identifier: MIT */
/* Runs CUDA kernels that a C++ compiler has compiled for the CPU, to test them without a GPU.
 * Shared memory, barriers and shuffles behave as on a GPU; speed and memory order do not. Each CUDA
 * thread runs until it waits at a barrier, and from then on has a stack of its own; one that never
 * waits costs a function call.
 *
 * Kernels that rely on luck fail: blocks come in shuffled order, threads forwards or backwards;
 * shared memory starts as NaNs and has guards after it, also after the contents of an earlier
 * block; all threads of a block (or lanes of a warp) must reach a barrier at the same line, or the
 * program ends with a message. With -Demulator_trace=true races and misaligned accesses end it, too
 * (trace.h). */
#ifndef PL_TESTS_CUDA_EMULATOR_H
#define PL_TESTS_CUDA_EMULATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pl_emu_dim {
    unsigned x, y, z;
};

/* The thread that runs: CUDA's threadIdx, blockIdx, blockDim, gridDim. */
extern struct pl_emu_now {
    struct pl_emu_dim thread, block, block_dim, grid_dim;
} pl_emu_now;

/* Runs body(ctx) for each thread of the grid; returns when all are done. One launch at a time per
 * process. shared_bytes: of dynamic shared memory. ctx has ctx_bytes, without pointers into itself:
 * a recording keeps a copy. */
void pl_emu_launch(struct pl_emu_dim grid,
                   struct pl_emu_dim block,
                   size_t shared_bytes,
                   void (*body)(void *ctx),
                   void *ctx,
                   size_t ctx_bytes);

/* The order of blocks and threads follows from this. */
void pl_emu_seed(uint64_t seed);

/* Callbacks for a device with memory of its own (device.c): argument() gets each argument of a
 * kernel before the launch; begin() and end() surround it, one launch at a time. NULL (at first):
 * none. */
struct pl_emu_watch {
    void (*argument)(const void *value, size_t bytes);
    void (*begin)(void);
    void (*end)(void);
};
void pl_emu_set_watch(const struct pl_emu_watch *watch);
void pl_emu_argument(const void *value, size_t bytes);

/* True if the address is in the calling thread's scratch. */
int pl_emu_is_scratch(const void *p);

/* The calling thread's memory for one op's kernels, uninitialised, valid until the next call. As on
 * a GPU it moves only if more is requested than before. NULL if it would move while the thread
 * records: the recording fails. */
void *pl_emu_scratch(size_t bytes);

/* An op that cannot be done ends the process, with the op's words. */
void pl_emu_refuse(const char *why);

/* Bytes that the calling thread has asked of pl_emu_scratch() since it last called this. */
size_t pl_emu_scratch_asked(void);

/* Recordings, as CUDA's graphs are: until record_end() the calling thread's launches are kept with
 * copies of their arguments, and not done. */
struct pl_emu_graph;
void pl_emu_record_begin(void);
bool pl_emu_recording(void);
/* Work between two launches: run(ctx), on a copy of ctx. */
void pl_emu_record(void (*run)(void *ctx), const void *ctx, size_t ctx_bytes);
/* Marks the recording as failed, with a literal reason. The first one counts. */
void pl_emu_spoil(const char *why);
/* NULL where the recording is spoilt, with *ret_why. */
struct pl_emu_graph *pl_emu_record_end(const char **ret_why);
/* Runs the recorded work. False: scratch has moved since, or is another thread's; nothing was run.
 */
bool pl_emu_replay(const struct pl_emu_graph *graph);
void pl_emu_graph_free(struct pl_emu_graph *graph);

/* From inside a kernel only. `line` distinguishes the calls. */

void pl_emu_barrier(int line);

/* Waits for all lanes of the warp and returns what each of them gave, 8 bytes a lane; good until
 * the next call. size <= 8. The mask must be that of all lanes. */
const uint64_t *pl_emu_warp(unsigned mask, const void *value, size_t size, int line);

/* __syncwarp(): orders what the lanes of the warp do to memory before and after it. */
void pl_emu_syncwarp(unsigned mask, int line);

/* From on to off, all reads and writes of the calling thread are one atomic operation. */
void pl_emu_atomic(bool on);

/* The block's array that this site declares. */
void *pl_emu_shared(const void *site, size_t bytes);
void *pl_emu_dynamic_shared(void);

#ifdef __cplusplus
}
#endif

#endif
