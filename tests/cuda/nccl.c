/* SPDX-License-Identifier: MIT */
#include "tests/cuda/nccl.h"
#include "common/base/macros.h"
#include "kernels/half.h"
#include "runtime/engine/device/nccl_table.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MEMBERS_MAX 8
#define SLOT_BYTES ((size_t)1 << 20)
#define BLOCKS_MAX 8
#define COMMS_MAX 8 /* of a process */
#define HEADER 22000

/* Shared by the members; a slot has a member's part of the piece that is under way. */
struct meeting {
    atomic_uint joined;
    atomic_ullong arrived[MEMBERS_MAX], through[MEMBERS_MAX]; /* pieces so far */
    char slot[MEMBERS_MAX][SLOT_BYTES];
};

/* A collective: this member's input, replaced piece by piece by the result. */
struct work {
    struct work *next;
    char *buf, *data;
    size_t bytes, at;
    bool sum, scatter, joined;
    enum pl_nccl_type type;
    double scale;
    size_t offset[MEMBERS_MAX + 1]; /* scatter, or no sum: whose bytes count where */
};

struct comm {
    struct pl_device *dev;
    struct meeting *m;
    unsigned size, rank, sums, fails_at;
    atomic_bool aborted;
    atomic_bool doomed, broken; /* no more progress; state() returns an error, too */
    pthread_mutex_t lock;       /* protects the following; the watchdog makes progress, too */
    struct work *first, **last;
    unsigned long long piece;
    void *blocks[BLOCKS_MAX];
    unsigned n_blocks;
    int meeting_fd;
};

static struct comm *all[COMMS_MAX];
static int meeting_fd = -1;

static int say(char *text, const char *what)
{
    snprintf(text, PL_NCCL_TEXT, "emulated NCCL: %s", what);
    return -1;
}

/* ---- moving on ---- */

static bool all_at(const struct comm *c, const atomic_ullong *counters, unsigned long long value)
{
    for (unsigned i = 0; i < c->size; i++)
        if (atomic_load(&counters[i]) < value)
            return false;
    return true;
}

/* Each step is rounded to the type, as where sums go round a ring. */
static void add_up_halves(const struct comm *c, struct work *w, size_t n)
{
    enum pl_half type = w->type == PL_NCCL_BF16 ? PL_HALF_BF16 : PL_HALF_F16;

    for (size_t i = 0; i < n / 2; i++) {
        uint16_t sum = 0;

        for (unsigned k = 0; k < c->size; k++) {
            float x = pl_f32_of_half(type, ((const uint16_t *)c->m->slot[k])[i]) * (float)w->scale;

            x = pl_f32_of_half(type, pl_half_of_f32(type, x));
            sum = pl_half_of_f32(type, pl_f32_of_half(type, sum) + x);
        }
        ((uint16_t *)(w->data + w->at))[i] = sum;
    }
}

static void add_up(const struct comm *c, struct work *w, size_t n)
{
    const char *fault = getenv("PLUME_EMULATED_FAULT");
    if (w->type == PL_NCCL_BF16 || w->type == PL_NCCL_F16) {
        add_up_halves(c, w, n);
        return;
    }
    for (size_t i = 0; i < n / (w->type == PL_NCCL_F64 ? 8 : 4); i++) {
        double f64 = 0;
        float f32 = 0;

        for (unsigned k = 0; k < c->size; k++) {
            if (w->type == PL_NCCL_F64)
                f64 += ((const double *)c->m->slot[k])[i] * w->scale;
            else
                f32 += ((const float *)c->m->slot[k])[i] * (float)w->scale;
        }
        if (w->type == PL_NCCL_F64)
            ((double *)(w->data + w->at))[i] = f64;
        else
            ((float *)(w->data + w->at))[i] = f32;
    }
    if (fault && strcmp(fault, "allreduce f32") == 0)
        ((unsigned char *)w->data)[w->at + n - 1] ^= 0x80; /* the sign of the last one */
}

static void put_together(const struct comm *c, struct work *w, size_t n)
{
    for (unsigned i = 0; i < c->size; i++) {
        size_t from = PL_MAX(w->offset[i], w->at), to = PL_MIN(w->offset[i + 1], w->at + n);

        if (from < to)
            memcpy(w->data + from, c->m->slot[i] + (from - w->at), to - from);
    }
}

/* The next piece of a collective; false where others are not ready for it. */
static bool move_on(struct comm *c, struct work *w)
{
    size_t n = PL_MIN(SLOT_BYTES, w->bytes - w->at);

    if (atomic_load(&c->m->arrived[c->rank]) < c->piece) {
        if (!all_at(c, c->m->through, c->piece - 1))
            return false; /* another member still reads the slots of the last one */
        memcpy(c->m->slot[c->rank], w->data + w->at, n);
        atomic_store(&c->m->arrived[c->rank], c->piece);
    }
    if (!all_at(c, c->m->arrived, c->piece))
        return false;
    (w->sum ? add_up : put_together)(c, w, n);
    atomic_store(&c->m->through[c->rank], c->piece++);
    w->at += n;
    return true;
}

static void progress(struct comm *c)
{
    pthread_mutex_lock(&c->lock);
    for (struct work *w = c->first; w && !c->aborted && !c->doomed; w = w->next)
        while (w->at < w->bytes)
            if (!move_on(c, w)) {
                pthread_mutex_unlock(&c->lock);
                return;
            }
    pthread_mutex_unlock(&c->lock);
}

/* Removes the first work if it is complete: its result goes to the device. */
static bool take_off(struct comm *c)
{
    struct work *w;

    pthread_mutex_lock(&c->lock);
    w = c->first;
    if (!w || w->at < w->bytes) {
        pthread_mutex_unlock(&c->lock);
        return false;
    }
    c->first = w->next;
    if (!c->first)
        c->last = &c->first;
    pthread_mutex_unlock(&c->lock);
    if (w->scatter) { /* the rest stays NaNs */
        size_t from = w->offset[c->rank], to = w->offset[c->rank + 1];

        c->dev->ops->upload(c->dev, w->buf + from, w->data + from, to - from);
    } else {
        c->dev->ops->upload(c->dev, w->buf, w->data, w->bytes);
    }
    free(w->data);
    free(w);
    return true;
}

void pl_emu_nccl_settle(const struct pl_device *dev)
{
    static _Thread_local bool inside; /* it copies to the device itself */

    if (inside)
        return;
    inside = true;
    for (unsigned i = 0; i < COMMS_MAX; i++) {
        struct comm *c = all[i];

        while (c && c->dev == dev && c->first && c->first->joined && !c->aborted) {
            progress(c);
            if (!take_off(c))
                sched_yield();
        }
    }
    inside = false;
}

/* ---- the table ---- */

static int there(char *text, size_t size)
{
    const char *env = getenv("PLUME_EMULATED_NCCL");

    if (!env || strcmp(env, "none") != 0)
        return 0;
    snprintf(text, size, "NCCL (libnccl.so.2) is nowhere");
    return -1;
}

static int versions(int *ret_header, int *ret_library, char *text)
{
    const char *env = getenv("PLUME_EMULATED_NCCL");

    *ret_header = HEADER;
    *ret_library = env ? (int)strtol(env, NULL, 10) : HEADER;
    return 0;
}

static int unique_id(void *ret_id, char *text)
{
    char name[PL_NCCL_ID_BYTES] = "";

    meeting_fd = memfd_create("emulated-nccl", MFD_CLOEXEC);
    if (meeting_fd < 0 || ftruncate(meeting_fd, sizeof(struct meeting)) < 0)
        return say(text, "no shared memory");
    snprintf(name, sizeof(name), "/proc/%ld/fd/%d", (long)getpid(), meeting_fd);
    memcpy(ret_id, name, sizeof(name));
    return 0;
}

static int init(const void *id, unsigned size, unsigned rank, void *compute, void **ret, char *text)
{
    const char *fails = getenv("PLUME_EMULATED_NCCL_FAILS");
    struct comm *c = calloc(1, sizeof(*c));
    int fd = open(id, O_RDWR | O_CLOEXEC);
    unsigned place = 0;

    while (place < COMMS_MAX && all[place])
        place++;
    if (!c || fd < 0 || size > MEMBERS_MAX || place == COMMS_MAX)
        return say(text, "cannot meet");
    c->m = mmap(NULL, sizeof(*c->m), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c->m == MAP_FAILED)
        return say(text, "no shared memory");
    c->dev = compute; /* as device.c's stream */
    c->size = size;
    c->rank = rank;
    c->fails_at = fails && rank == 0 ? (unsigned)strtoul(fails, NULL, 10) : 0;
    c->piece = 1;
    c->meeting_fd = meeting_fd; /* the first member's: it has just made the id */
    c->last = &c->first;
    pthread_mutex_init(&c->lock, NULL);
    atomic_fetch_add(&c->m->joined, 1);
    all[place] = c;
    *ret = c;
    return 0;
}

static int split(void *comm, int color, int key, void **ret, char *text)
{
    return say(text, "it cannot be split");
}

static int state(void *comm, int *ret_done, char *text)
{
    struct comm *c = comm;

    if (c->broken)
        return say(text, "the network is gone");
    progress(c);
    *ret_done = atomic_load(&c->m->joined) == c->size;
    return 0;
}

static int finished(void *comm, int *ret_done, char *text)
{
    struct comm *c = comm;

    progress(c);
    while (take_off(c))
        ;
    *ret_done = !c->first;
    return 0;
}

/* Once a collective has started, it may fail asynchronously. */
static int mark(void *comm, char *text)
{
    struct comm *c = comm;

    if (c->doomed)
        c->broken = true;
    return 0;
}

static int join(void *comm, char *text)
{
    struct comm *c = comm;

    pthread_mutex_lock(&c->lock);
    for (struct work *w = c->first; w; w = w->next)
        w->joined = true;
    pthread_mutex_unlock(&c->lock);
    return 0;
}

static int begin(struct comm *c, void *buf, size_t bytes, struct work what, char *text)
{
    struct work *w = malloc(sizeof(*w));
    char *data = malloc(bytes), *nans = malloc(bytes);

    if (!w || !data || !nans)
        return say(text, "out of memory");
    *w = what;
    w->buf = buf;
    w->data = data;
    w->bytes = bytes;
    c->dev->ops->download(c->dev, w->data, buf, bytes, NULL);
    memset(nans, 0xff, bytes);
    c->dev->ops->upload(c->dev, buf, nans, bytes);
    free(nans);
    pthread_mutex_lock(&c->lock);
    *c->last = w;
    c->last = &w->next;
    pthread_mutex_unlock(&c->lock);
    progress(c);
    return 0;
}

static const size_t sizes[] = {4, 8, 2, 2};

static int
allreduce(void *comm, void *buf, size_t count, enum pl_nccl_type type, double scale, char *text)
{
    struct comm *c = comm;

    if (++c->sums == c->fails_at)
        c->doomed = true;
    return begin(comm, buf, count * sizes[type],
                 (struct work){.sum = true, .type = type, .scale = scale}, text);
}

/* All bits outside of this member's part are ones: NaNs. */
static int reduce_scatter(
    void *comm, void *buf, const size_t *offset, enum pl_nccl_type type, double scale, char *text)
{
    struct comm *c = comm;
    struct work what = {.sum = true, .scatter = true, .type = type, .scale = scale};

    if (++c->sums == c->fails_at)
        c->doomed = true;
    for (unsigned i = 0; i <= c->size; i++)
        what.offset[i] = offset[i] * sizes[type];
    return begin(comm, buf, what.offset[c->size], what, text);
}

static int broadcast(void *comm, void *buf, size_t bytes, char *text)
{
    struct work what = {0};

    for (unsigned i = 1; i <= MEMBERS_MAX; i++)
        what.offset[i] = bytes;
    return begin(comm, buf, bytes, what, text);
}

static int allgather(void *comm, void *buf, const size_t *offset, char *text)
{
    const struct comm *c = comm;
    struct work what = {0};

    memcpy(what.offset, offset, (c->size + 1) * sizeof(*offset));
    return begin(comm, buf, offset[c->size], what, text);
}

static int alloc(void *comm, size_t bytes, void **ret, char *text)
{
    struct comm *c = comm;
    struct pl_error err = {0};

    if (c->n_blocks == BLOCKS_MAX)
        return say(text, "too many blocks");
    if (c->dev->ops->alloc(c->dev, bytes, "collectives", ret, &err) < 0)
        return say(text, pl_error_text(&err));
    c->dev->ops->zero(c->dev, *ret, bytes);
    c->blocks[c->n_blocks++] = *ret;
    return 0;
}

static void abort_comm(void *comm)
{
    ((struct comm *)comm)->aborted = true;
}

static void destroy(void *comm)
{
    struct comm *c = comm;
    struct work *next;

    if (!c)
        return;
    for (unsigned i = 0; i < COMMS_MAX; i++)
        if (all[i] == c)
            all[i] = NULL;
    for (struct work *w = c->first; w; w = next) {
        next = w->next;
        free(w->data);
        free(w);
    }
    while (c->n_blocks)
        c->dev->ops->free(c->dev, c->blocks[--c->n_blocks]);
    if (c->rank == 0)
        close(c->meeting_fd);
    munmap(c->m, sizeof(*c->m));
    pthread_mutex_destroy(&c->lock);
    free(c);
}

__attribute__((visibility("default"))) extern const struct pl_nccl_table pl_nccl_table;

const struct pl_nccl_table pl_nccl_table = {
    .version = PL_NCCL_TABLE_VERSION,
    .there = there,
    .versions = versions,
    .unique_id = unique_id,
    .init = init,
    .split = split,
    .state = state,
    .finished = finished,
    .mark = mark,
    .join = join,
    .allreduce = allreduce,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .allgather = allgather,
    .alloc = alloc,
    .abort = abort_comm,
    .destroy = destroy,
};
