/* SPDX-License-Identifier: MIT */
/* The barrier of ranks that share memory, and how they learn that one is lost. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/comm/comm_shm_private.h"

#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#define NAMED_MAX 8 /* missing ranks in a message */

static const char *const op_names[] = {"sum",    "broadcast", "barrier",
                                       "memory", "allgather", "reduce-scatter"};

int pl_shm_futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, op, value, timeout, NULL, 0) < 0 ? -errno : 0;
}

int pl_shm_failed(struct pl_shm *shm, struct pl_error *err)
{
    struct pl_shm_control *c = shm->control;

    if (!atomic_load(&c->failed))
        return 0;
    return pl_error_set(err, -ECONNRESET, "%.*s", PL_COMM_TEXT_MAX - 1, c->text);
}

/* For Linux before 5.3. The state follows the name, which may contain anything: proc(5). */
static bool process_ended(pid_t pid)
{
    _cleanup_free_ char *text = NULL;
    char path[64], *state;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    if (pl_file_read(path, 4096, &text, NULL, NULL) < 0)
        return true;
    state = strrchr(text, ')');
    return state && state[1] && (state[2] == 'Z' || state[2] == 'X');
}

bool pl_shm_peer_ended(const struct pl_shm *shm, unsigned i)
{
    struct pollfd p = {.fd = shm->pidfd[i], .events = POLLIN};

    if (i == shm->base.rank)
        return false;
    if (shm->pidfd[i] >= 0)
        return poll(&p, 1, 0) == 1;
    return process_ended(shm->pid[i]);
}

/* The first rank to come writes the text. If it dies meanwhile, another one takes over. */
void pl_shm_abort(struct pl_comm *comm, const char *text)
{
    struct pl_shm *shm = (struct pl_shm *)comm;
    struct pl_shm_control *c = shm->control;
    uint32_t writer = 0;

    if (atomic_compare_exchange_strong(&c->failing, &writer, comm->rank + 1) ||
        (!atomic_load(&c->failed) && pl_shm_peer_ended(shm, writer - 1) &&
         atomic_compare_exchange_strong(&c->failing, &writer, comm->rank + 1))) {
        snprintf(c->text, sizeof(c->text), "%s", text);
        atomic_store(&c->failed, 1);
    }
    pl_shm_futex(&c->generation, FUTEX_WAKE, INT_MAX, NULL);
    for (unsigned i = 0; i < comm->size; i++)
        pl_shm_futex(&c->posts[i].counted, FUTEX_WAKE, INT_MAX, NULL);
}

int pl_shm_lose(struct pl_shm *shm, struct pl_error *err, const char *fmt, ...)
{
    char text[PL_COMM_TEXT_MAX];
    va_list ap;
    int r;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    do /* while another rank writes */
        pl_shm_abort(&shm->base, text);
    while ((r = pl_shm_failed(shm, err)) == 0 && sched_yield() == 0);
    return r;
}

static int check_peers(struct pl_shm *shm, uint32_t generation, struct pl_error *err)
{
    unsigned gone;

    for (gone = 0; gone < shm->base.size; gone++)
        if (pl_shm_peer_ended(shm, gone))
            break;
    /* A rank that exits after the barrier has opened is not missing at it. */
    if (gone == shm->base.size || atomic_load(&shm->control->generation) != generation)
        return 0;
    return pl_shm_lose(shm, err, "lost rank %u: its process ended", shm->world_ranks[gone]);
}

static bool is_here(const struct pl_shm *shm, uint32_t generation, unsigned i)
{
    return atomic_load(&shm->control->claim[generation & 1][i].here) == generation + 1;
}

/* "rank 3", or "ranks 2, 5 and 7 more". Returns the number of missing ranks. */
static unsigned name_missing(const struct pl_shm *shm,
                             bool (*here)(const struct pl_shm *shm, uint32_t number, unsigned i),
                             uint32_t number,
                             char *text,
                             size_t size)
{
    unsigned n = 0;
    size_t len = 0;

    for (unsigned i = 0; i < shm->base.size; i++)
        if (!here(shm, number, i) && n++ < NAMED_MAX && len < size)
            len += (size_t)snprintf(text + len, size - len, n > 1 ? ", %u" : " %u",
                                    shm->world_ranks[i]);
    if (n > NAMED_MAX && len < size)
        snprintf(text + len, size - len, " and %u more", n - NAMED_MAX);
    return n;
}

/* The first rank that waits warns for all. */
int pl_shm_check_time(struct pl_shm *shm,
                      bool (*here)(const struct pl_shm *shm, uint32_t number, unsigned i),
                      uint32_t number,
                      enum pl_shm_op op,
                      struct pl_comm_wait *wait,
                      struct pl_error *err)
{
    char ranks[PL_COMM_TEXT_MAX / 2] = "";
    unsigned first = 0;
    double seconds;
    int r = pl_comm_waits(wait, &seconds);

    if (r == 0)
        return 0;
    while (first < shm->base.size && !here(shm, number, first))
        first++;
    if (!name_missing(shm, here, number, ranks, sizeof(ranks)))
        return 0;
    if (r < 0)
        return pl_shm_lose(shm, err, "lost rank%s: a collective (%s) has waited %.0f s for it",
                           ranks, op_names[op], seconds);
    if (first == shm->base.rank)
        pl_log_warn("comm", "rank %u has waited %.0f s for rank%s in a collective (%s)",
                    shm->world_ranks[first], seconds, ranks, op_names[op]);
    return 0;
}

/* Call after the barrier. Ranks in different collectives would overwrite each other's memory. */
static int check_claim(struct pl_shm *shm, uint32_t generation, struct pl_error *err)
{
    const struct pl_shm_claim *all = shm->control->claim[generation & 1];
    const struct pl_shm_claim *mine = &all[shm->base.rank];

    if (mine->op == all[0].op && mine->slab == all[0].slab && mine->offset == all[0].offset &&
        mine->bytes == all[0].bytes)
        return 0;
    return pl_shm_lose(
        shm, err, "ranks disagree: %s of %llu bytes on rank %u, %s of %llu bytes on rank %u%s",
        op_names[mine->op], (unsigned long long)mine->bytes, shm->world_ranks[shm->base.rank],
        op_names[all[0].op], (unsigned long long)all[0].bytes, shm->world_ranks[0],
        mine->op == all[0].op && mine->bytes == all[0].bytes ? ", in other memory" : "");
}

void pl_shm_spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    atomic_signal_fence(memory_order_seq_cst);
}

static int wait_all(struct pl_shm *shm, struct pl_error *err)
{
    struct pl_shm_control *c = shm->control;
    uint32_t generation = atomic_load(&c->generation);
    const struct timespec tick = {0, PL_SHM_TICK_MS * 1000000};
    struct pl_comm_wait wait = {0};
    uint64_t looked;
    int r;

    atomic_store(&c->claim[generation & 1][shm->base.rank].here, generation + 1);
    if (atomic_fetch_add(&c->arrived, 1) + 1 == shm->base.size) {
        atomic_store(&c->arrived, 0);
        atomic_fetch_add(&c->generation, 1);
        pl_shm_futex(&c->generation, FUTEX_WAKE, INT_MAX, NULL);
        return 0;
    }
    for (int i = 0; shm->spin && i < PL_SHM_SPINS; i++) {
        if (atomic_load_explicit(&c->generation, memory_order_acquire) != generation)
            return 0;
        pl_shm_spin_pause();
    }
    looked = pl_now_ns();
    while (atomic_load(&c->generation) == generation) {
        r = pl_shm_failed(shm, err);
        if (r < 0)
            return r;
        pl_shm_futex(&c->generation, FUTEX_WAIT, generation, &tick);
        /* By the clock: a profiler's signals may end each wait early. */
        if (pl_now_ns() - looked < PL_SHM_TICK_MS * 1000000ull)
            continue;
        looked = pl_now_ns();
        r = check_peers(shm, generation, err);
        if (r == 0)
            r = pl_shm_check_time(shm, is_here, generation,
                                  c->claim[generation & 1][shm->base.rank].op, &wait, err);
        if (r < 0)
            return r;
    }
    return 0;
}

/* A barrier within a collective. slab and offset: this rank's buffer. */
int pl_shm_meet(struct pl_shm *shm,
                enum pl_shm_op op,
                const struct pl_shm_slab *slab,
                size_t offset,
                size_t bytes,
                struct pl_error *err)
{
    uint32_t generation = atomic_load(&shm->control->generation);
    int r = pl_shm_failed(shm, err);
    struct pl_shm_claim *mine;

    if (r < 0)
        return r;
    mine = &shm->control->claim[generation & 1][shm->base.rank];
    mine->op = op;
    mine->slab = slab ? (uint32_t)(slab - shm->slabs) : UINT32_MAX;
    mine->offset = offset;
    mine->bytes = bytes;
    r = wait_all(shm, err);
    return r < 0 ? r : check_claim(shm, generation, err);
}
