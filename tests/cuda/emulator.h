/* SPDX-License-Identifier: MIT */
/* Runs CUDA kernels that a C++ compiler has compiled for the CPU, to test them without a GPU: what
 * a block's threads share, wait for and tell each other is as on a GPU; speed and memory order are
 * not. Each CUDA thread runs until it waits at a barrier, on a stack of its own from then on; one
 * that never waits costs a function call.
 *
 * What it makes sure of, so that a kernel that relies on luck fails: blocks come in shuffled order,
 * threads forwards or backwards; shared memory begins as NaNs and has guards behind it, also behind
 * what a block that came before left there; a barrier is reached by all threads of the block (or
 * lanes of the warp) at the same line, or the program ends with a message. */
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

/* Runs body(ctx) for each thread of the grid; returns when all are done. One launch at a time in
 * the process. shared_bytes: of dynamic shared memory. ctx has ctx_bytes, without pointers into
 * itself: a recording keeps a copy. */
void pl_emu_launch(struct pl_emu_dim grid,
                   struct pl_emu_dim block,
                   size_t shared_bytes,
                   void (*body)(void *ctx),
                   void *ctx,
                   size_t ctx_bytes);

/* The order of blocks and threads follows from this. */
void pl_emu_seed(uint64_t seed);

/* What looks on, for a device with memory of its own (device.c): argument() is given each argument
 * of a kernel before the launch; begin() and end() stand around it, one launch at a time. NULL (at
 * first): nobody. */
struct pl_emu_watch {
    void (*argument)(const void *value, size_t bytes);
    void (*begin)(void);
    void (*end)(void);
};
void pl_emu_set_watch(const struct pl_emu_watch *watch);
void pl_emu_argument(const void *value, size_t bytes);

/* Whether the address is in the calling thread's scratch. */
int pl_emu_is_scratch(const void *p);

/* Memory of one op's kernels, contents undefined, of the calling thread: good until the next call.
 * As on a GPU it stays where it is until more is asked for than ever before. NULL where that
 * happens while the thread records: the recording is spoilt. */
void *pl_emu_scratch(size_t bytes);

/* Recordings, as CUDA's graphs are: until record_end() the calling thread's launches are kept with
 * copies of their arguments, and not done. */
struct pl_emu_graph;
void pl_emu_record_begin(void);
bool pl_emu_recording(void);
/* What is done between two launches: run(ctx), on a copy of ctx. */
void pl_emu_record(void (*run)(void *ctx), const void *ctx, size_t ctx_bytes);
/* Something happened that cannot be recorded: a literal. The first one counts. */
void pl_emu_spoil(const char *why);
/* NULL where the recording is spoilt, with *ret_why. */
struct pl_emu_graph *pl_emu_record_end(const char **ret_why);
/* Does what was recorded. False: scratch has moved since, or was another thread's; nothing was
 * done. */
bool pl_emu_replay(const struct pl_emu_graph *graph);
void pl_emu_graph_free(struct pl_emu_graph *graph);

/* From inside a kernel only. `line` tells calls apart. */

void pl_emu_barrier(int line);

/* Waits for all lanes of the warp and returns what each of them gave, 8 bytes a lane; good until
 * the next call. size <= 8. The mask must be that of all lanes. */
const uint64_t *pl_emu_warp(unsigned mask, const void *value, size_t size, int line);

/* The block's array that this site declares. */
void *pl_emu_shared(const void *site, size_t bytes);
void *pl_emu_dynamic_shared(void);

#ifdef __cplusplus
}
#endif

#endif
