/* SPDX-License-Identifier: MIT */
#include "tests/cuda/emulator.h"
#include "tests/cuda/fiber.h"
#include "tests/cuda/trace.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 1024 /* of a block */
#define WARP 32
#define SHARED_MAX (99 * 1024) /* of a block of sm_86, sm_89 and sm_120; others have more */
#define GUARD 64
#define GUARD_BYTE 0xa5
#define POISON 0xff /* a NaN in every type */
#define SITES_MAX 32

typedef void (*emu_body)(void *ctx);

enum state {
    UNBORN,
    READY,
    AT_BARRIER,
    AT_WARP,
    DONE,
};

struct thread {
    enum state state;
    int line; /* that it waits at */
    struct pl_fiber *fiber;
    struct pl_emu_dim at;
};

struct warp {
    unsigned arrived, turn;
    int line;
    uint64_t values[2][WARP]; /* of this rendezvous and the one before */
};

struct site {
    const void *key;
    size_t offset, bytes;
};

struct pl_emu_now pl_emu_now;

static struct {
    pthread_mutex_t lock;
    uint64_t random;
    const struct pl_emu_watch *watch;
    void (*body)(void *ctx);
    void *ctx;
    /* of the block that runs */
    unsigned count, born, done, at_barrier, current;
    unsigned turn; /* whose it is, in order, once all are born */
    bool backwards;
    struct thread threads[THREADS_MAX];
    struct warp warps[THREADS_MAX / WARP];
    struct pl_fiber *idle[THREADS_MAX + 1];
    unsigned n_idle;
    struct site sites[SITES_MAX];
    size_t n_sites, shared_used, dynamic;
    _Alignas(128) unsigned char shared[SHARED_MAX + (SITES_MAX + 1) * (GUARD + 128)];
} emu = {.lock = PTHREAD_MUTEX_INITIALIZER, .random = 1};

static void give_up(const char *what, int line)
{
    fprintf(stderr, "CUDA emulator: %s (line %d; block %u of %u, thread %u of %u)\n", what, line,
            pl_emu_now.block.x, pl_emu_now.grid_dim.x, emu.current, emu.count);
    abort();
}

static uint64_t draw(void)
{
    uint64_t z = (emu.random += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void pl_emu_seed(uint64_t seed)
{
    emu.random = seed;
}

static unsigned in_order(unsigned i)
{
    return emu.backwards ? emu.count - 1 - i : i;
}

static void become(unsigned t)
{
    emu.current = t;
    pl_emu_now.thread = emu.threads[t].at;
#ifdef PL_EMULATOR_TRACE
    size_t bytes;
    const void *stack = pl_fiber_stack(emu.threads[t].fiber, &bytes);

    pl_trace_thread(t, stack, bytes);
#endif
}

/* From one thread's turn to the next one that is ready, or to run_block() after the last one. */
static void leave(struct pl_fiber *self)
{
    while (++emu.turn < emu.count) {
        const struct thread *t = &emu.threads[in_order(emu.turn)];

        if (t->state == READY) {
            pl_fiber_pass(self, t->fiber);
            return;
        }
    }
    pl_fiber_leave(self);
}

/* A fiber's life: threads that have not begun, one after another, until one of them has to wait
 * and takes the fiber with it. */
static void live(struct pl_fiber *self)
{
    for (;;) {
        while (emu.born < emu.count) {
            unsigned t = in_order(emu.born++);

            emu.threads[t].fiber = self;
            become(t);
            emu.body(emu.ctx);
            emu.threads[emu.current].state = DONE;
            emu.done++;
        }
        emu.idle[emu.n_idle++] = self;
        leave(self);
    }
}

static void wait_as(enum state state, int line)
{
    unsigned t = emu.current;

    emu.threads[t].state = state;
    emu.threads[t].line = line;
    leave(emu.threads[t].fiber);
    become(t);
}

void pl_emu_barrier(int line)
{
    if (emu.done)
        give_up("__syncthreads() after a thread has ended", line);
    if (++emu.at_barrier < emu.count) {
        wait_as(AT_BARRIER, line);
        return;
    }
    for (unsigned t = 0; t < emu.count; t++) {
        if (t == emu.current)
            continue;
        if (emu.threads[t].line != line)
            give_up("threads wait at different barriers", line);
        emu.threads[t].state = READY;
    }
    emu.at_barrier = 0;
    pl_trace_barrier();
}

void pl_emu_syncwarp(unsigned mask, int line)
{
    unsigned warp = emu.current / WARP;
    uint64_t nothing = 0;

    if (emu.warps[warp].arrived + 1 == WARP)
        pl_trace_syncwarp(warp);
    pl_emu_warp(mask, &nothing, sizeof(nothing), line);
}

void pl_emu_atomic(bool on)
{
    pl_trace_atomic(on);
}

const uint64_t *pl_emu_warp(unsigned mask, const void *value, size_t size, int line)
{
    unsigned t = emu.current, first = t / WARP * WARP;
    struct warp *w = &emu.warps[t / WARP];
    unsigned turn = w->turn;

    if (mask != 0xffffffff || emu.count % WARP)
        give_up("only whole warps are emulated", line);
    if (w->arrived && w->line != line)
        give_up("lanes of a warp wait at different lines", line);
    w->line = line;
    memcpy(&w->values[turn % 2][t % WARP], value, size);
    if (++w->arrived < WARP) {
        wait_as(AT_WARP, line);
    } else {
        for (unsigned lane = first; lane < first + WARP; lane++)
            if (lane != t)
                emu.threads[lane].state = READY;
        w->arrived = 0;
        w->turn++;
    }
    return w->values[turn % 2];
}

static void *shared_take(const void *key, size_t bytes)
{
    struct site *s = &emu.sites[emu.n_sites++];
    size_t at = (emu.shared_used + 127) / 128 * 128;

    if (emu.n_sites > SITES_MAX || at + bytes + GUARD > sizeof(emu.shared))
        give_up("too much shared memory", 0);
    *s = (struct site){.key = key, .offset = at, .bytes = bytes};
    memset(emu.shared + at, POISON, bytes);
    memset(emu.shared + at + bytes, GUARD_BYTE, GUARD);
    emu.shared_used = at + bytes + GUARD;
    return emu.shared + at;
}

void *pl_emu_shared(const void *site, size_t bytes)
{
    for (size_t i = 0; i < emu.n_sites; i++)
        if (emu.sites[i].key == site)
            return emu.shared + emu.sites[i].offset;
    return shared_take(site, bytes);
}

void *pl_emu_dynamic_shared(void)
{
    return pl_emu_shared(&emu.dynamic, emu.dynamic);
}

static void check_shared(void)
{
    size_t total = 0;

    for (size_t i = 0; i < emu.n_sites; i++) {
        const struct site *s = &emu.sites[i];

        total += s->bytes;
        for (size_t k = 0; k < GUARD; k++)
            if (emu.shared[s->offset + s->bytes + k] != GUARD_BYTE)
                give_up("written behind an array in shared memory", 0);
    }
    if (total > SHARED_MAX)
        give_up("a block has no room for so much shared memory", 0);
}

static void run_block(void)
{
    emu.born = emu.done = emu.at_barrier = 0;
    emu.n_sites = emu.shared_used = 0;
    pl_trace_block(pl_emu_now.block.x +
                   pl_emu_now.grid_dim.x *
                       (pl_emu_now.block.y + pl_emu_now.grid_dim.y * pl_emu_now.block.z));
    for (unsigned t = 0; t < emu.count; t++)
        emu.threads[t].state = UNBORN;
    for (unsigned w = 0; w < (emu.count + WARP - 1) / WARP; w++)
        emu.warps[w].arrived = 0;
    while (emu.born < emu.count) {
        emu.turn = emu.count;
        if (!emu.n_idle)
            emu.idle[emu.n_idle++] = pl_fiber_create(live);
        pl_fiber_enter(emu.idle[--emu.n_idle]);
    }
    while (emu.done < emu.count) {
        bool any = false;

        for (emu.turn = 0; emu.turn < emu.count; emu.turn++) {
            struct thread *t = &emu.threads[in_order(emu.turn)];

            if (t->state == READY) {
                any = true;
                pl_fiber_enter(t->fiber);
            }
        }
        if (!any)
            give_up("threads wait for each other for ever", emu.threads[emu.current].line);
    }
    check_shared();
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    return b ? common_divisor(b, a % b) : a;
}

static void
run(struct pl_emu_dim grid, struct pl_emu_dim block, size_t shared_bytes, emu_body body, void *ctx)
{
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, step, at;

    pthread_mutex_lock(&emu.lock);
    if (emu.watch)
        emu.watch->begin();
    pl_emu_now.grid_dim = grid;
    pl_emu_now.block_dim = block;
    emu.count = block.x * block.y * block.z;
    if (blocks == 0 || emu.count == 0 || emu.count > THREADS_MAX || grid.y > 65535 ||
        grid.z > 65535 || block.z > 64)
        give_up("no such grid or block", 0);
    emu.body = body;
    emu.ctx = ctx;
    emu.dynamic = shared_bytes;
    emu.backwards = draw() % 2;
    for (unsigned t = 0; t < emu.count; t++)
        emu.threads[t].at =
            (struct pl_emu_dim){t % block.x, t / block.x % block.y, t / block.x / block.y};
    pl_trace_launch(emu.shared, sizeof(emu.shared), emu.count);
    at = draw() % blocks;
    do
        step = 1 + draw() % blocks;
    while (common_divisor(step, blocks) != 1);
    for (uint64_t b = 0; b < blocks; b++, at = (at + step) % blocks) {
        pl_emu_now.block =
            (struct pl_emu_dim){(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y),
                                (unsigned)(at / grid.x / grid.y)};
        run_block();
    }
    pl_trace_launched();
    if (emu.watch)
        emu.watch->end();
    pthread_mutex_unlock(&emu.lock);
}

void pl_emu_set_watch(const struct pl_emu_watch *watch)
{
    emu.watch = watch;
}

void pl_emu_argument(const void *value, size_t bytes)
{
    if (emu.watch)
        emu.watch->argument(value, bytes);
}

/* ---- what a thread keeps: scratch, and what it records ---- */

struct job {
    struct job *next;
    bool launch; /* else a call */
    struct pl_emu_dim grid, block;
    size_t shared_bytes;
    emu_body body;
    _Alignas(16) char ctx[];
};

struct pl_emu_graph {
    struct job *first, **end;
    const char *scratch; /* where it was, and how often it had moved */
    unsigned moves;
};

static _Thread_local struct {
    char *memory;
    size_t bytes;
    unsigned moves;
    size_t asked;
} scratch;

static _Thread_local struct {
    struct pl_emu_graph *graph; /* NULL: not recording */
    const char *spoilt;
} recording;

static void add_job(const struct job *what, const void *ctx, size_t ctx_bytes)
{
    struct job *job = calloc(1, sizeof(*job) + ctx_bytes);

    if (!job)
        give_up("out of memory", 0);
    *job = *what;
    memcpy(job->ctx, ctx, ctx_bytes);
    *recording.graph->end = job;
    recording.graph->end = &job->next;
}

void pl_emu_launch(struct pl_emu_dim grid,
                   struct pl_emu_dim block,
                   size_t shared_bytes,
                   void (*body)(void *ctx),
                   void *ctx,
                   size_t ctx_bytes)
{
    struct job job = {
        .launch = true, .grid = grid, .block = block, .shared_bytes = shared_bytes, .body = body};

    if (recording.graph)
        add_job(&job, ctx, ctx_bytes);
    else
        run(grid, block, shared_bytes, body, ctx);
}

void pl_emu_refuse(const char *why)
{
    give_up(why, 0);
}

void pl_emu_record_begin(void)
{
    if (recording.graph)
        give_up("a recording inside a recording", 0);
    recording.spoilt = NULL;
    recording.graph = calloc(1, sizeof(*recording.graph));
    if (!recording.graph)
        give_up("out of memory", 0);
    recording.graph->end = &recording.graph->first;
    recording.graph->scratch = scratch.memory;
    recording.graph->moves = scratch.moves;
}

bool pl_emu_recording(void)
{
    return recording.graph != NULL;
}

void pl_emu_record(void (*call)(void *ctx), const void *ctx, size_t ctx_bytes)
{
    add_job(&(struct job){.body = call}, ctx, ctx_bytes);
}

void pl_emu_spoil(const char *why)
{
    if (recording.graph && !recording.spoilt)
        recording.spoilt = why;
}

struct pl_emu_graph *pl_emu_record_end(const char **ret_why)
{
    struct pl_emu_graph *graph = recording.graph;

    if (!graph)
        give_up("a recording is ended that was not begun", 0);
    recording.graph = NULL;
    *ret_why = recording.spoilt;
    if (!recording.spoilt)
        return graph;
    pl_emu_graph_free(graph);
    return NULL;
}

bool pl_emu_replay(const struct pl_emu_graph *graph)
{
    if (recording.graph)
        give_up("a replay inside a recording", 0);
    if (graph->scratch != scratch.memory || graph->moves != scratch.moves)
        return false;
    for (struct job *j = graph->first; j; j = j->next) {
        if (j->launch)
            run(j->grid, j->block, j->shared_bytes, j->body, j->ctx);
        else
            j->body(j->ctx);
    }
    return true;
}

void pl_emu_graph_free(struct pl_emu_graph *graph)
{
    for (struct job *j = graph->first, *next; j; j = next) {
        next = j->next;
        free(j);
    }
    free(graph);
}

int pl_emu_is_scratch(const void *p)
{
    return (const char *)p >= scratch.memory && (const char *)p < scratch.memory + scratch.bytes;
}

size_t pl_emu_scratch_asked(void)
{
    size_t asked = scratch.asked;

    scratch.asked = 0;
    return asked;
}

struct poison {
    void *at;
    size_t bytes;
};

static void poison(void *ctx)
{
    const struct poison *p = ctx;

    memset(p->at, POISON, p->bytes);
}

/* Ends at the end of a page, so that writes past it are detected. */
void *pl_emu_scratch(size_t bytes)
{
    size_t size = (bytes + 15) / 16 * 16;
    struct poison p = {.bytes = bytes};

    scratch.asked += bytes;
    if (size > scratch.bytes) {
        if (recording.graph) {
            pl_emu_spoil("kernels need more scratch");
            return NULL;
        }
        free(scratch.memory);
        scratch.memory = malloc(size);
        scratch.bytes = size;
        scratch.moves++;
        if (!scratch.memory)
            give_up("out of memory", 0);
    }
    p.at = scratch.memory + scratch.bytes - size;
    if (recording.graph)
        pl_emu_record(poison, &p, sizeof(p));
    else
        poison(&p);
    return p.at;
}
