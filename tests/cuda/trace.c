/* SPDX-License-Identifier: MIT */
/* As FastTrack (Flanagan and Freund 2009) a byte keeps its last write and its last reads only. The
 * order between threads comes from barriers alone, so one clock of the block replaces vectors of
 * clocks: an access is ordered before all that follows the next barrier.
 *
 * Banks: shared memory has 32 banks of 4 bytes. A warp's access of 4 bytes a lane is one pass where
 * no bank is asked for two different words; 8 bytes a lane are two passes (half a warp each), 16
 * bytes four (CUDA C++ Programming Guide, "Shared Memory"; Volkov 2010 for the halves). Lanes run
 * one after another here, so that the k-th execution of an instruction in each lane between two
 * barriers is taken for one access of the warp. */
#include "tests/cuda/trace.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096u
#define PAGES 65536u /* places in the table; full: the program ends */
#define THREADS_MAX 1024
#define WARP 32
#define BANKS 32
#define SITES 16384u
#define SAME_MAX 4096 /* executions of an instruction by a lane between two barriers */

enum many {
    MANY_THREADS = 1,
    MANY_BLOCKS = 2,
};

struct touch {
    uint32_t run; /* which launch, or which block for shared memory; 0: none */
    uint32_t block, clock;
    uint16_t thread;
    uint8_t atomic, many;
};

struct cell {
    struct touch write, read;
};

struct page {
    uintptr_t number;
    struct cell cells[PAGE];
};

/* An instruction that accesses shared memory, as one warp executes it between two barriers. */
struct site {
    const void *pc;
    unsigned bytes;
    uint64_t passes, best;
    uint16_t times[WARP];
    unsigned used; /* executions that have addresses, and the warp and clock that they belong to */
    unsigned warp;
    uint32_t interval;
    struct {
        uint32_t mask;
        uint32_t at[WARP];
    } * lanes;
};

static struct {
    bool running, atomic;
    uintptr_t shared, shared_end, stack, stack_end;
    uint32_t launch, block_run, block, clock, barrier, interval;
    uint32_t of_warp[THREADS_MAX / WARP];
    unsigned thread;
    struct page *pages[PAGES];
    struct page *last;
    const char *banks;
    struct site *sites;
} trace;

/* Starts addr2line for n instructions of the program. Returns its output, a line with function and
 * line of each, or NULL. The caller closes it and waits for *ret_pid. */
static FILE *
ask_places(const char *program, const void *base, const void *const *pc, size_t n, pid_t *ret_pid)
{
    char(*text)[24] = calloc(n, sizeof(*text));
    char **args = calloc(n + 4, sizeof(*args));
    posix_spawn_file_actions_t actions;
    int out[2];
    FILE *f = NULL;

    if (!text || !args || pipe2(out, O_CLOEXEC) < 0)
        abort();
    memcpy(args, (char *[]){"addr2line", "-Cfpse", (char *)(uintptr_t)program}, 3 * sizeof(*args));
    for (size_t i = 0; i < n; i++) {
        snprintf(text[i], sizeof(text[i]), "0x%zx",
                 (size_t)((const char *)pc[i] - (const char *)base) - 1);
        args[3 + i] = text[i];
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    if (posix_spawnp(ret_pid, "addr2line", &actions, NULL, args, environ) == 0)
        f = fdopen(out[0], "r");
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    free(args);
    free(text);
    return f;
}

/* Prints before(ctx, i), then function and line of instruction i, of n. Most of addr2line's time is
 * its start: one is asked for all that are in the same program. */
static void
print_places(FILE *to, const void *const *pc, size_t n, void (*before)(FILE *to, size_t i))
{
    Dl_info info, other;
    size_t end;

    for (size_t i = 0; i < n; i = end) {
        FILE *places = NULL;
        char *line = NULL;
        size_t room = 0;
        pid_t pid;
        bool known = dladdr(pc[i], &info) && info.dli_fname;

        for (end = i + 1; known && end < n; end++)
            if (!dladdr(pc[end], &other) || other.dli_fbase != info.dli_fbase)
                break;
        if (known)
            places = ask_places(info.dli_fname, info.dli_fbase, pc + i, end - i, &pid);
        for (size_t k = i; k < end; k++) {
            before(to, k);
            if (places && getline(&line, &room, places) > 0)
                fputs(line, to);
            else if (known)
                fprintf(to, "%s+0x%zx\n", info.dli_fname,
                        (size_t)((const char *)pc[k] - (const char *)info.dli_fbase) - 1);
            else
                fprintf(to, "%p\n", pc[k]);
        }
        free(line);
        if (places) {
            fclose(places);
            waitpid(pid, NULL, 0);
        }
    }
}

static void print_nothing(FILE *to, size_t i) {}

static void give_up(const void *pc, const char *what, const void *p, size_t bytes)
{
    bool shared = (uintptr_t)p >= trace.shared && (uintptr_t)p < trace.shared_end;

    trace.running = false;
    fprintf(stderr, "CUDA emulator: %s, %zu bytes of %s memory; block %u, thread %u, at ", what,
            bytes, shared ? "shared" : "global", trace.block, trace.thread);
    print_places(stderr, &pc, 1, print_nothing);
    abort();
}

static struct page *page_of(uintptr_t p)
{
    uintptr_t number = p / PAGE;
    size_t at = (number * 0x9e3779b97f4a7c15u) >> 48;

    if (trace.last && trace.last->number == number)
        return trace.last;
    for (size_t tries = 0; tries < PAGES; tries++, at = (at + 1) % PAGES) {
        if (!trace.pages[at]) {
            trace.pages[at] = calloc(1, sizeof(*trace.pages[at]));
            if (!trace.pages[at])
                break;
            trace.pages[at]->number = number;
        }
        if (trace.pages[at]->number == number)
            return trace.last = trace.pages[at];
    }
    fprintf(stderr, "CUDA emulator: out of memory for traces\n");
    abort();
}

/* True if that access comes before everything that the thread does now. */
static bool ordered(const struct touch *then)
{
    if (then->block != trace.block)
        return false;
    if (then->thread == trace.thread || then->clock < trace.barrier)
        return true;
    return then->thread / WARP == trace.thread / WARP &&
           then->clock < trace.of_warp[trace.thread / WARP];
}

/* True if an access now collides with this earlier one. */
static bool collides(const struct touch *then, uint32_t run)
{
    if (then->run != run || (then->atomic && trace.atomic))
        return false;
    if (then->many & MANY_BLOCKS)
        return true;
    if (then->many & MANY_THREADS && then->clock >= trace.barrier)
        return true;
    return !ordered(then);
}

static void
check_byte(struct cell *c, uint32_t run, bool write, const void *pc, const void *p, size_t bytes)
{
    struct touch now = {.run = run,
                        .block = trace.block,
                        .clock = trace.clock,
                        .thread = (uint16_t)trace.thread,
                        .atomic = trace.atomic};

    if (collides(&c->write, run))
        give_up(pc,
                write ? "race: a thread writes what another wrote"
                      : "race: a thread reads what another wrote",
                p, bytes);
    if (write) {
        if (collides(&c->read, run))
            give_up(pc, "race: a thread writes what another read", p, bytes);
        c->write = now;
        return;
    }
    if (c->read.run == run) {
        if (c->read.block != now.block)
            now.many = MANY_BLOCKS;
        else if (!ordered(&c->read))
            now.many = MANY_THREADS;
        else if (c->read.clock >= trace.barrier)
            now.many = c->read.many & MANY_THREADS;
        now.many |= c->read.many & MANY_BLOCKS;
        now.atomic = now.atomic && c->read.atomic;
    }
    c->read = now;
}

/* ---- banks ---- */

/* Adds up what the warp has done at this instruction: for each execution the passes that it takes.
 */
static void close_site(struct site *s)
{
    unsigned lanes_a_pass = s->bytes <= 4 ? WARP : s->bytes == 8 ? WARP / 2 : WARP / 4;

    for (unsigned k = 0; k < s->used; k++)
        for (unsigned first = 0; first < WARP; first += lanes_a_pass) {
            uint32_t words[BANKS][WARP];
            unsigned n[BANKS] = {0}, most = 0;

            for (unsigned lane = first; lane < first + lanes_a_pass; lane++) {
                if (!(s->lanes[k].mask >> lane & 1))
                    continue;
                for (unsigned b = 0; b < s->bytes; b += 4) {
                    uint32_t word = (s->lanes[k].at[lane] + b) / 4;
                    unsigned bank = word % BANKS, i;

                    for (i = 0; i < n[bank] && words[bank][i] != word; i++)
                        ;
                    if (i < n[bank])
                        continue;
                    words[bank][n[bank]++] = word;
                    most = n[bank] > most ? n[bank] : most;
                }
            }
            s->passes += most;
            s->best += most > 0;
        }
    memset(s->times, 0, sizeof(s->times));
    if (s->used)
        memset(s->lanes, 0, s->used * sizeof(*s->lanes));
    s->used = 0;
}

static void note_banks(const void *pc, uintptr_t p, unsigned bytes)
{
    size_t at = ((uintptr_t)pc * 0x9e3779b97f4a7c15u) >> 50;
    unsigned warp = trace.thread / WARP, lane = trace.thread % WARP, k;
    struct site *s;

    while (trace.sites[at].pc && (trace.sites[at].pc != pc || trace.sites[at].warp != warp))
        at = (at + 1) % SITES;
    s = &trace.sites[at];
    if (!s->pc) {
        s->pc = pc;
        s->warp = warp;
        s->bytes = bytes;
        s->lanes = calloc(SAME_MAX, sizeof(*s->lanes));
        if (!s->lanes)
            abort();
    }
    if (s->interval != trace.interval) {
        close_site(s);
        s->interval = trace.interval;
    }
    k = s->times[lane]++;
    if (k >= SAME_MAX)
        return;
    s->used = k + 1 > s->used ? k + 1 : s->used;
    s->lanes[k].mask |= 1u << lane;
    s->lanes[k].at[lane] = (uint32_t)(p - trace.shared);
}

/* The sites that are in use, at the table's beginning. */
static void print_passes(FILE *to, size_t i)
{
    const struct site *s = &trace.sites[i];

    fprintf(to, "%llu %llu %u ", (unsigned long long)s->passes, (unsigned long long)s->best,
            s->bytes);
}

static void write_banks(void)
{
    static const void *pc[SITES];
    char name[4096];
    size_t n = 0;
    FILE *f;

    snprintf(name, sizeof(name), "%s/%d", trace.banks, (int)getpid());
    f = fopen(name, "w");
    if (!f) {
        perror(name);
        _exit(1);
    }
    trace.running = false;
    for (size_t i = 0; i < SITES; i++) {
        if (!trace.sites[i].pc)
            continue;
        close_site(&trace.sites[i]);
        trace.sites[n] = trace.sites[i];
        pc[n] = trace.sites[n].pc;
        n++;
    }
    print_places(f, pc, n, print_passes);
    fclose(f);
}

/* ---- what the emulator tells ---- */

void pl_trace_launch(const void *shared, size_t bytes, unsigned threads)
{
    static bool asked;

    if (!asked) {
        asked = true;
        trace.banks = getenv("PLUME_EMULATED_BANKS");
        if (trace.banks) {
            trace.sites = calloc(SITES, sizeof(*trace.sites));
            if (!trace.sites)
                abort();
            atexit(write_banks);
        }
    }
    (void)threads;
    trace.shared = (uintptr_t)shared;
    trace.shared_end = trace.shared + bytes;
    trace.launch = ++trace.block_run;
}

void pl_trace_launched(void)
{
    trace.running = false;
}

void pl_trace_block(uint32_t block)
{
    trace.block = block;
    trace.block_run++;
    trace.interval++;
    trace.clock = trace.barrier = 1;
    memset(trace.of_warp, 0, sizeof(trace.of_warp));
    trace.running = true;
}

void pl_trace_thread(unsigned thread, const void *stack, size_t stack_bytes)
{
    trace.thread = thread;
    trace.stack = (uintptr_t)stack;
    trace.stack_end = trace.stack + stack_bytes;
}

void pl_trace_barrier(void)
{
    trace.barrier = ++trace.clock;
    trace.interval++;
}

void pl_trace_syncwarp(unsigned warp)
{
    trace.of_warp[warp] = ++trace.clock;
}

void pl_trace_atomic(bool on)
{
    trace.atomic = on;
}

/* ---- what the compiler calls ---- */

static void access_of(const void *p, size_t bytes, bool write, bool aligned, const void *pc)
{
    uintptr_t at = (uintptr_t)p;
    bool shared = at >= trace.shared && at < trace.shared_end;
    uint32_t run = shared ? trace.block_run : trace.launch;

    if (!trace.running || (at >= trace.stack && at < trace.stack_end))
        return;
    if (aligned && at % bytes)
        give_up(pc, "an address that is not aligned to what is moved", p, bytes);
    for (size_t i = 0; i < bytes; i++)
        check_byte(&page_of(at + i)->cells[(at + i) % PAGE], run, write, pc, p, bytes);
    if (shared && trace.sites && (bytes <= 4 || bytes == 8 || bytes == 16))
        note_banks(pc, at, (unsigned)bytes);
}

void __tsan_init(void);
void __tsan_func_entry(void *pc);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);

void __tsan_init(void) {}

void __tsan_func_entry(void *pc)
{
    (void)pc;
}

void __tsan_func_exit(void) {}

void __tsan_read_range(void *p, size_t bytes)
{
    access_of(p, bytes, false, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t bytes)
{
    access_of(p, bytes, true, false, __builtin_return_address(0));
}

#define CALLED(name, bytes, write, aligned)                                                        \
    void name(void *p);                                                                            \
    void name(void *p)                                                                             \
    {                                                                                              \
        access_of(p, bytes, write, aligned, __builtin_return_address(0));                          \
    }
CALLED(__tsan_read1, 1, false, true)
CALLED(__tsan_read2, 2, false, true)
CALLED(__tsan_read4, 4, false, true)
CALLED(__tsan_read8, 8, false, true)
CALLED(__tsan_read16, 16, false, true)
CALLED(__tsan_write1, 1, true, true)
CALLED(__tsan_write2, 2, true, true)
CALLED(__tsan_write4, 4, true, true)
CALLED(__tsan_write8, 8, true, true)
CALLED(__tsan_write16, 16, true, true)
CALLED(__tsan_unaligned_read2, 2, false, false)
CALLED(__tsan_unaligned_read4, 4, false, false)
CALLED(__tsan_unaligned_read8, 8, false, false)
CALLED(__tsan_unaligned_read16, 16, false, false)
CALLED(__tsan_unaligned_write2, 2, true, false)
CALLED(__tsan_unaligned_write4, 4, true, false)
CALLED(__tsan_unaligned_write8, 8, true, false)
CALLED(__tsan_unaligned_write16, 16, true, false)
