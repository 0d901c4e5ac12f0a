/* SPDX-License-Identifier: MIT */
/* Calls of a communicator's table, and the communicator of one rank. */
#include "runtime/engine/comm/comm.h"
#include "common/base/fs.h"
#include "common/base/memory.h"
#include "common/base/trace.h"
#include "common/proto/rank/place.h"

#include <string.h>

#define HALF_STAGE ((size_t)64 * 1024)     /* 16-bit numbers that are summed at a time */
#define ORDERED_STAGE ((size_t)256 * 1024) /* bytes per rank that are gathered at a time */

struct pl_comm_limits pl_comm_limits = {.warn_s = 60, .host_s = 4};

int pl_comm_waits(struct pl_comm_wait *wait, double *ret_s)
{
    uint64_t now = pl_now_ns();

    if (!wait->since_ns)
        wait->since_ns = now;
    *ret_s = (double)(now - wait->since_ns) * 1e-9;
    if (pl_comm_limits.end_s > 0 && *ret_s >= pl_comm_limits.end_s)
        return -ETIMEDOUT;
    if (wait->warned || !(pl_comm_limits.warn_s > 0 && *ret_s >= pl_comm_limits.warn_s))
        return 0;
    wait->warned = true;
    return 1;
}

static void trace(const struct pl_comm *comm, const char *name, size_t bytes)
{
    pl_trace("collective", name, comm->ops->name, (int64_t)bytes);
}

/* True if this collective is counted. The node daemon compares the counts of ranks that make no
 * progress: only calls that all ranks make are equally many on each. */
static bool counts(const struct pl_comm *comm)
{
    return comm->size > 1 && comm->size == comm->world.size && !comm->world.is_part;
}

/* Of this thread. A hierarchy calls its parts: the outermost call counts. */
static _Thread_local struct {
    unsigned depth;
    uint64_t since_ns, total_ns;
} spent;

uint64_t pl_comm_spent_ns(void)
{
    return spent.total_ns;
}

static void enter(const struct pl_comm *comm, const char *name, size_t bytes)
{
    trace(comm, name, bytes);
    if (spent.depth++ == 0 && comm->size > 1)
        spent.since_ns = pl_now_ns();
    if (counts(comm))
        pl_place_enter(name);
}

static int leave(const struct pl_comm *comm, int r)
{
    if (--spent.depth == 0 && comm->size > 1)
        spent.total_ns += pl_now_ns() - spent.since_ns;
    if (counts(comm))
        pl_place_leave();
    return r;
}

/* An allreduce with the same bits as over shared memory, over any backend. */
static int ordered_allreduce(struct pl_comm *comm,
                             char *buf,
                             size_t count,
                             enum pl_real real,
                             double scale,
                             struct pl_error *err)
{
    const struct pl_kernels *k = pl_kernels_best(real);
    size_t size = pl_real_size(real), n = comm->size, most = PL_MIN(count, ORDERED_STAGE / size);
    _cleanup_free_ char *all = malloc(n * most * size + 1);
    _cleanup_free_ size_t *offset = calloc(n + 1, sizeof(*offset));
    int r = all && offset ? 0 : pl_error_nomem(err);

    for (size_t step; r == 0 && count; count -= step, buf += step * size) {
        step = PL_MIN(count, most);
        for (size_t i = 0; i <= n; i++)
            offset[i] = i * step * size;
        memcpy(all + offset[comm->rank], buf, step * size);
        r = comm->ops->allgather(comm, all, offset, err);
        for (size_t i = 1; r == 0 && i < n; i++)
            k->add(&(struct pl_add_args){.n = step,
                                         .scale = i == n - 1 ? scale : 1,
                                         .a = i == 1 ? all : buf,
                                         .b = all + offset[i],
                                         .dst = buf});
    }
    return r;
}

/* The same for a reduce-scatter: every part goes to all ranks, which add up their own. */
static int ordered_reduce_scatter(struct pl_comm *comm,
                                  char *buf,
                                  const size_t *part,
                                  enum pl_real real,
                                  double scale,
                                  struct pl_error *err)
{
    const struct pl_kernels *k = pl_kernels_best(real);
    size_t size = pl_real_size(real), n = comm->size;
    size_t count = part[n], most = PL_MIN(count, ORDERED_STAGE / size);
    _cleanup_free_ char *all = malloc(n * most * size + 1);
    _cleanup_free_ size_t *offset = calloc(n + 1, sizeof(*offset));
    int r = all && offset ? 0 : pl_error_nomem(err);

    for (size_t at = 0, step; r == 0 && at < count; at += step) {
        size_t from = PL_MAX(part[comm->rank], at), to;
        char *dst = buf + from * size;

        step = PL_MIN(count - at, most);
        to = PL_MIN(part[comm->rank + 1], at + step);
        for (size_t i = 0; i <= n; i++)
            offset[i] = i * step * size;
        memcpy(all + offset[comm->rank], buf + at * size, step * size);
        r = comm->ops->allgather(comm, all, offset, err);
        for (size_t i = 1; r == 0 && from < to && i < n; i++)
            k->add(&(struct pl_add_args){.n = to - from,
                                         .scale = i == n - 1 ? scale : 1,
                                         .a = i == 1 ? all + (from - at) * size : dst,
                                         .b = all + offset[i] + (from - at) * size,
                                         .dst = dst});
    }
    return r;
}

int pl_comm_allreduce(struct pl_comm *comm,
                      void *buf,
                      size_t count,
                      enum pl_real real,
                      double scale,
                      struct pl_error *err)
{
    int r;

    enter(comm, "allreduce", count * pl_real_size(real));
    if (comm->ordered && !comm->ops->in_order && comm->size > 2) /* two numbers have one sum */
        r = ordered_allreduce(comm, buf, count, real, scale, err);
    else
        r = comm->ops->allreduce(comm, buf, count, real, scale, err);
    return leave(comm, r);
}

int pl_comm_allreduce_start(struct pl_comm *comm,
                            void *buf,
                            size_t count,
                            enum pl_real real,
                            double scale,
                            struct pl_error *err)
{
    if (!comm->ops->start)
        return pl_comm_allreduce(comm, buf, count, real, scale, err);
    enter(comm, "allreduce", count * pl_real_size(real));
    return leave(comm, comm->ops->start(comm, buf, count, real, scale, err));
}

/* A rank that hangs here waits for sums. */
int pl_comm_join(struct pl_comm *comm, struct pl_error *err)
{
    if (!comm->ops->join)
        return 0;
    enter(comm, "allreduce", 0);
    return leave(comm, comm->ops->join(comm, err));
}

int pl_comm_allreduce_half(struct pl_comm *comm,
                           uint16_t *buf,
                           size_t count,
                           enum pl_half type,
                           double scale,
                           struct pl_error *err)
{
    const struct pl_kernels *k = pl_kernels_best(PL_REAL_F32);
    _cleanup_free_ float *wide = malloc(PL_MIN(count, HALF_STAGE) * sizeof(*wide) + 1);
    int r = wide ? 0 : pl_error_nomem(err);

    for (size_t at = 0; at < count && r == 0; at += HALF_STAGE) {
        struct pl_half_args args = {
            .n = PL_MIN(count - at, HALF_STAGE), .type = type, .half = buf + at, .wide = wide};

        k->widen(&args);
        r = pl_comm_allreduce(comm, wide, args.n, PL_REAL_F32, scale, err);
        if (r == 0)
            k->narrow(&args);
    }
    return r;
}

int pl_comm_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    enter(comm, "broadcast", bytes);
    return leave(comm, comm->ops->broadcast(comm, buf, bytes, err));
}

int pl_comm_allreduce_on(struct pl_comm *comm,
                         struct pl_device *dev,
                         void *buf,
                         size_t count,
                         enum pl_real real,
                         struct pl_error *err)
{
    struct pl_device_map map;
    int r;

    if (comm->size == 1)
        return 0;
    if (comm->gpu && !dev->ops->host)
        return pl_comm_allreduce(comm->gpu, buf, count, real, 1, err);
    r = pl_device_map(dev, buf, count * pl_real_size(real), PL_DEVICE_READ | PL_DEVICE_WRITE, &map,
                      err);
    if (r < 0)
        return r;
    r = pl_comm_allreduce(comm, map.data, count, real, 1, err);
    pl_device_unmap(&map);
    return r;
}

int pl_comm_broadcast_on(
    struct pl_comm *comm, struct pl_device *dev, void *buf, size_t bytes, struct pl_error *err)
{
    struct pl_device_map map;
    int r;

    if (comm->size == 1)
        return 0;
    if (comm->gpu && !dev->ops->host)
        return pl_comm_broadcast(comm->gpu, buf, bytes, err);
    r = pl_device_map(dev, buf, bytes, PL_DEVICE_READ | PL_DEVICE_WRITE, &map, err);
    if (r < 0)
        return r;
    r = pl_comm_broadcast(comm, map.data, bytes, err);
    pl_device_unmap(&map);
    return r;
}

int pl_comm_barrier(struct pl_comm *comm, struct pl_error *err)
{
    enter(comm, "barrier", 0);
    return leave(comm, comm->ops->barrier(comm, err));
}

/* Counts as a collective of the whole communicator: a rank that waits here for one of its node is
 * not behind. */
int pl_comm_node_barrier(struct pl_comm *comm, struct pl_error *err)
{
    struct pl_comm *node = pl_comm_node(comm);
    struct pl_error own = {0};
    int r;

    err = err ? err : &own;
    enter(comm, "barrier", 0);
    r = node ? node->ops->barrier(node, err) : 0;
    if (r < 0 && node != comm) /* tells the ranks of other nodes */
        comm->ops->abort(comm, err->text);
    return leave(comm, r);
}

int pl_comm_node_work(struct pl_comm *comm,
                      uint32_t count,
                      int (*work)(void *ctx, uint32_t posted, struct pl_error *err),
                      void *ctx,
                      struct pl_error *err)
{
    uint32_t posted;
    int r = 0;

    enter(comm, "allreduce", 0);
    do {
        uint64_t begin = pl_now_ns();

        posted = comm->ops->posted(comm);
        if (work)
            r = work(ctx, posted, err);
        spent.since_ns += pl_now_ns() - begin; /* work is not waiting */
        if (r == 0 && (int32_t)(posted - count) < 0)
            r = comm->ops->await(comm, posted + 1, err);
    } while (r == 0 && (int32_t)(posted - count) < 0);
    return leave(comm, r);
}

int pl_comm_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    enter(comm, "allgather", offset[comm->size]);
    return leave(comm, comm->ops->allgather(comm, buf, offset, err));
}

int pl_comm_allgather_on(struct pl_comm *comm,
                         struct pl_device *dev,
                         void *buf,
                         const size_t *offset,
                         struct pl_error *err)
{
    struct pl_device_map map;
    int r;

    if (comm->size == 1)
        return 0;
    if (comm->gpu && !dev->ops->host)
        return pl_comm_allgather(comm->gpu, buf, offset, err);
    r = pl_device_map(dev, buf, offset[comm->size], PL_DEVICE_READ | PL_DEVICE_WRITE, &map, err);
    if (r < 0)
        return r;
    r = pl_comm_allgather(comm, map.data, offset, err);
    pl_device_unmap(&map);
    return r;
}

int pl_comm_reduce_scatter(struct pl_comm *comm,
                           void *buf,
                           const size_t *offset,
                           enum pl_real real,
                           double scale,
                           struct pl_error *err)
{
    int r;

    enter(comm, "reduce-scatter", offset[comm->size] * pl_real_size(real));
    if (comm->ordered && !comm->ops->in_order && comm->size > 2)
        r = ordered_reduce_scatter(comm, buf, offset, real, scale, err);
    else
        r = comm->ops->reduce_scatter(comm, buf, offset, real, scale, err);
    return leave(comm, r);
}

int pl_comm_agree(struct pl_comm *comm, bool mine, bool *ret, struct pl_error *err)
{
    double votes = mine;
    int r = pl_comm_allreduce(comm, &votes, 1, PL_REAL_F64, 1, err);

    if (r == 0)
        *ret = votes == comm->size;
    return r;
}

int pl_comm_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    return comm->ops->alloc(comm, bytes, ret, err);
}

void pl_comm_abort(struct pl_comm *comm, const char *text)
{
    char full[PL_COMM_TEXT_MAX];

    if (!comm)
        return;
    snprintf(full, sizeof(full), "rank %u gave up: %s", comm->world_ranks[comm->rank], text);
    trace(comm, "abort", 0);
    comm->ops->abort(comm, full);
    if (comm->gpu)
        comm->gpu->ops->abort(comm->gpu, full);
}

void pl_comm_fail(struct pl_comm *comm, int r, const struct pl_error *err)
{
    if (r != -ECONNRESET)
        pl_comm_abort(comm, pl_error_text(err));
    else if (comm->gpu)
        comm->ops->abort(comm, pl_error_text(err));
}

void pl_comm_destroy(struct pl_comm *comm)
{
    if (comm)
        comm->ops->destroy(comm);
}

/* self */

struct self {
    struct pl_comm base;
    unsigned world_rank;
    void **blocks;
    size_t n;
};

static int self_allreduce(struct pl_comm *comm,
                          void *buf,
                          size_t count,
                          enum pl_real real,
                          double scale,
                          struct pl_error *err)
{
    if (scale == 1)
        return 0;
    for (size_t i = 0; i < count; i++) {
        if (real == PL_REAL_F64)
            ((double *)buf)[i] *= scale;
        else
            ((float *)buf)[i] *= (float)scale;
    }
    return 0;
}

static int self_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    return 0;
}

static int self_barrier(struct pl_comm *comm, struct pl_error *err)
{
    return 0;
}

static int
self_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    return 0;
}

static int self_reduce_scatter(struct pl_comm *comm,
                               void *buf,
                               const size_t *offset,
                               enum pl_real real,
                               double scale,
                               struct pl_error *err)
{
    return self_allreduce(comm, buf, offset[1], real, scale, err);
}

static int self_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct self *self = (struct self *)comm;
    void **blocks = reallocarray(self->blocks, self->n + 1, sizeof(*blocks));
    void *p;

    if (!blocks)
        return pl_error_nomem(err);
    self->blocks = blocks;
    if (pl_memory_alloc(64, bytes, &p) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes", bytes);
    memset(p, 0, bytes);
    self->blocks[self->n++] = p;
    *ret = p;
    return 0;
}

static void self_abort(struct pl_comm *comm, const char *text) {}

static void self_destroy(struct pl_comm *comm)
{
    struct self *self = (struct self *)comm;

    for (size_t i = 0; i < self->n; i++)
        free(self->blocks[i]);
    free(self->blocks);
    free(self);
}

static const struct pl_comm_ops self_ops = {
    .name = "self",
    .in_order = true,
    .allreduce = self_allreduce,
    .broadcast = self_broadcast,
    .barrier = self_barrier,
    .allgather = self_allgather,
    .reduce_scatter = self_reduce_scatter,
    .alloc = self_alloc,
    .abort = self_abort,
    .destroy = self_destroy,
};

int pl_comm_self_create(unsigned world_rank, struct pl_comm **ret, struct pl_error *err)
{
    struct self *self = calloc(1, sizeof(*self));

    if (!self)
        return pl_error_nomem(err);
    self->world_rank = world_rank;
    self->base = (struct pl_comm){.ops = &self_ops, .size = 1, .world_ranks = &self->world_rank};
    *ret = &self->base;
    return 0;
}
