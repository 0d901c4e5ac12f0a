/* SPDX-License-Identifier: MIT */
#include "runtime/engine/comm/comm_mpi.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "runtime/engine/comm/comm_mpi_table.h"
#include "runtime/engine/comm/comm_tcp_private.h"
#include "runtime/engine/util/plugin.h"

#include <dlfcn.h>
#include <sched.h>
#include <string.h>

#define SPINS 200          /* tests before sched_yield() */
#define CHECK_NS 20000000u /* interval of checking the peers while waiting */

size_t pl_mpi_slice = (size_t)256 << 20;

struct pl_mpi {
    const struct pl_mpi_table *table;
    void *handle;
    struct pl_mpi_layout layout;
    bool broken; /* a collective never completed: MPI may still write to its buffer */
};

struct mpi {
    struct pl_comm base;
    struct pl_mpi *mpi;
    struct pl_tcp *watch;
    void *group; /* NULL until made */
};

bool pl_mpi_launched(void)
{
    return pl_env(PL_ENV_OMPI_COMM_WORLD_SIZE) || pl_env(PL_ENV_PMIX_RANK);
}

static int load(void **ret, struct pl_error *err)
{
    struct pl_error why = {0};
    /* MPI loads plugins that resolve its symbols: they must be global. */
    int r = pl_plugin_load("plume-mpi.so", RTLD_NOW | RTLD_GLOBAL, ret, &why);

    if (r == 0)
        return 0;
    return pl_error_set(err, r,
                        "cannot use MPI: %s; install an MPI and build with -Dmpi=enabled, or start "
                        "the ranks with plrun",
                        pl_error_text(&why));
}

int pl_mpi_open(struct pl_mpi **ret, struct pl_world *ret_world, struct pl_error *err)
{
    static struct pl_mpi once; /* MPI can be started once per process */
    char text[PL_MPI_TEXT];

    if (!once.table) {
        struct pl_mpi m = {0};
        int r = load(&m.handle, err);

        if (r < 0)
            return r;
        m.table = dlsym(m.handle, PL_MPI_TABLE_SYMBOL);
        if (!m.table || m.table->version != PL_MPI_TABLE_VERSION)
            return pl_error_set(err, -ENOTSUP, "plume-mpi.so is of another release");
        if (m.table->init(&m.layout, text) < 0)
            return pl_error_set(err, -ENOTSUP, "%s", text);
        once = m;
    }
    *ret = &once;
    *ret_world = (struct pl_world){
        .rank = once.layout.rank,
        .size = once.layout.size,
        .local_rank = once.layout.local_rank,
        .local_size = once.layout.local_size,
        .node = once.layout.node,
    };
    return 0;
}

void pl_mpi_close(struct pl_mpi *mpi, bool lost)
{
    if (mpi && mpi->table && !lost && !mpi->broken)
        mpi->table->finalize();
}

int pl_mpi_allgather(struct pl_mpi *mpi, void *buf, size_t bytes, struct pl_error *err)
{
    char text[PL_MPI_TEXT];

    return mpi->table->gather_world(buf, bytes, text) < 0 ? pl_error_set(err, -EIO, "%s", text) : 0;
}

/* A call of the table has failed: abort, so that the others do not wait for us. */
static int fail_call(struct mpi *m, const char *text, struct pl_error *err)
{
    char full[PL_COMM_TEXT_MAX];

    snprintf(full, sizeof(full), "rank %u: %.140s", m->base.world_ranks[m->base.rank], text);
    m->mpi->broken = true;
    pl_tcp_abort(m->watch, full);
    return pl_error_set(err, -ECONNRESET, "%s", full);
}

static int check(struct mpi *m, struct pl_error *err)
{
    if (m->watch->failed[0])
        return pl_error_set(err, -ECONNRESET, "%s", m->watch->failed);
    return 0;
}

/* Waits for a started collective; `started` is the table's return value. */
static int finish(struct mpi *m, int started, char *text, struct pl_error *err)
{
    uint64_t next_check = 0;
    int done = 0, r;

    if (started < 0)
        return fail_call(m, text, err);
    for (unsigned n = 0;; n++) {
        if (m->mpi->table->test(m->group, &done, text) < 0)
            return fail_call(m, text, err);
        if (done)
            return 0;
        if (n < SPINS)
            continue;
        if (pl_now_ns() >= next_check) {
            next_check = pl_now_ns() + CHECK_NS;
            r = pl_tcp_check(m->watch, err);
            if (r < 0) {
                m->mpi->broken = true;
                return r;
            }
        }
        sched_yield();
    }
}

static void scale_by(void *buf, size_t count, enum pl_real real, double scale)
{
    for (size_t i = 0; scale != 1 && i < count; i++) {
        if (real == PL_REAL_F64)
            ((double *)buf)[i] *= scale;
        else
            ((float *)buf)[i] *= (float)scale;
    }
}

static int mpi_allreduce(struct pl_comm *comm,
                         void *buf,
                         size_t count,
                         enum pl_real real,
                         double scale,
                         struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;
    size_t most = pl_mpi_slice / pl_real_size(real);
    char text[PL_MPI_TEXT], *at = buf;
    int r = check(m, err);

    while (r == 0 && count) {
        size_t step = PL_MIN(count, most);

        r = finish(m, m->mpi->table->allreduce(m->group, at, step, real == PL_REAL_F64, text), text,
                   err);
        if (r == 0)
            scale_by(at, step, real, scale);
        at += step * pl_real_size(real);
        count -= step;
    }
    return r;
}

static int mpi_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;
    char text[PL_MPI_TEXT], *at = buf;
    int r = check(m, err);

    while (r == 0 && bytes) {
        size_t step = PL_MIN(bytes, pl_mpi_slice);

        r = finish(m, m->mpi->table->broadcast(m->group, at, step, text), text, err);
        at += step;
        bytes -= step;
    }
    return r;
}

static int mpi_barrier(struct pl_comm *comm, struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;
    char text[PL_MPI_TEXT];
    int r = check(m, err);

    return r < 0 ? r : finish(m, m->mpi->table->barrier(m->group, text), text, err);
}

/* The first element of piece `at` of a part: its own offset within [at, at + step). */
static size_t clip(size_t offset, size_t at, size_t step)
{
    return PL_MIN(PL_MAX(offset, at), at + step) - at;
}

static int
mpi_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;
    unsigned n = comm->size;
    _cleanup_free_ size_t *part = calloc((size_t)n + 1, sizeof(*part));
    char text[PL_MPI_TEXT];
    int r = part ? check(m, err) : pl_error_nomem(err);

    for (size_t at = 0, step; r == 0 && at < offset[n]; at += step) {
        step = PL_MIN(offset[n] - at, pl_mpi_slice);
        for (unsigned i = 0; i <= n; i++)
            part[i] = clip(offset[i], at, step);
        r = finish(m, m->mpi->table->allgather(m->group, (char *)buf + at, part, text), text, err);
    }
    return r;
}

static int mpi_reduce_scatter(struct pl_comm *comm,
                              void *buf,
                              const size_t *offset,
                              enum pl_real real,
                              double scale,
                              struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;
    unsigned me = comm->rank, n = comm->size;
    size_t size = pl_real_size(real), most = pl_mpi_slice / size, step;
    _cleanup_free_ size_t *part = calloc((size_t)n + 1, sizeof(*part));
    char text[PL_MPI_TEXT];
    int r = part ? check(m, err) : pl_error_nomem(err);

    for (size_t at = 0; r == 0 && at < offset[n]; at += step) {
        char *piece = (char *)buf + at * size;

        step = PL_MIN(offset[n] - at, most);
        for (unsigned i = 0; i <= n; i++)
            part[i] = clip(offset[i], at, step);
        r = finish(m,
                   m->mpi->table->reduce_scatter(m->group, piece, part, real == PL_REAL_F64, text),
                   text, err);
        if (r < 0)
            break;
        scale_by(piece, part[me + 1] - part[me], real, scale);
        memmove(piece + part[me] * size, piece, (part[me + 1] - part[me]) * size);
    }
    return r;
}

static int mpi_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct mpi *m = (struct mpi *)comm;

    return m->watch->base.ops->alloc(&m->watch->base, bytes, ret, err);
}

static void mpi_abort(struct pl_comm *comm, const char *text)
{
    pl_tcp_abort(((struct mpi *)comm)->watch, text);
}

static void mpi_destroy(struct pl_comm *comm)
{
    struct mpi *m = (struct mpi *)comm;

    /* Barrier: a rank that exits early would look lost to the others. */
    if (m->group && mpi_barrier(comm, NULL) == 0)
        m->mpi->table->free(m->group);
    pl_tcp_destroy(&m->watch->base);
    free(m);
}

static const struct pl_comm_ops mpi_ops = {
    .name = "mpi",
    .allreduce = mpi_allreduce,
    .broadcast = mpi_broadcast,
    .barrier = mpi_barrier,
    .allgather = mpi_allgather,
    .reduce_scatter = mpi_reduce_scatter,
    .alloc = mpi_alloc,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

int pl_comm_mpi_create(struct pl_mpi *mpi,
                       struct pl_comm *tcp,
                       struct pl_comm **ret,
                       struct pl_error *err)
{
    struct mpi *m = calloc(1, sizeof(*m));
    char text[PL_MPI_TEXT];
    int r;

    if (!m) {
        pl_comm_destroy(tcp);
        return pl_error_nomem(err);
    }
    m->base = (struct pl_comm){
        .ops = &mpi_ops, .rank = tcp->rank, .size = tcp->size, .world_ranks = tcp->world_ranks};
    m->mpi = mpi;
    m->watch = (struct pl_tcp *)tcp;
    if (mpi->table->group(tcp->world_ranks, tcp->size, &m->group, text) < 0) {
        r = fail_call(m, text, err);
        mpi_destroy(&m->base);
        return r;
    }
    *ret = &m->base;
    return 0;
}
