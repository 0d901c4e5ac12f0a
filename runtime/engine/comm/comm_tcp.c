/* SPDX-License-Identifier: MIT */
/* Collectives over TCP between ranks that share no memory.
 *
 * Small ones: recursive doubling (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005) in log2(n)
 * rounds; ranks past the largest power of two first give their part to a lower one. Large ones:
 * ring reduce-scatter and all-gather, which sends each byte twice. Both partners of a round add the
 * same two numbers, and addition commutes, so all ranks get the same bits.
 *
 * The bytes of a collective are neither signed nor encrypted; only connecting ranks are
 * authenticated (comm_tcp_connect.c). */
#include "runtime/engine/comm/comm_tcp_private.h"

#include <string.h>

#define SMALL_BYTES ((size_t)128 * 1024)

static unsigned power_below(unsigned n)
{
    unsigned p = 1;

    while (p * 2 <= n)
        p *= 2;
    return p;
}

bool pl_tcp_is_peer(unsigned a, unsigned b, unsigned size)
{
    unsigned p = power_below(size), low = PL_MIN(a, b), high = PL_MAX(a, b);

    if (a == b)
        return false;
    if (high - low == 1 || (low == 0 && high == size - 1)) /* ring */
        return true;
    if (high >= p) /* a rank past the power of two */
        return high - p == low;
    return ((low ^ high) & ((low ^ high) - 1)) ==
           0; /* recursive doubling, and the broadcast's tree */
}

static int send_to(struct pl_tcp *t,
                   const struct pl_tcp_frame *like,
                   unsigned to,
                   const void *data,
                   size_t len,
                   struct pl_error *err)
{
    return pl_tcp_swap(t, like, to, data, len, PL_TCP_NO_PEER, NULL, 0, err);
}

static int recv_from(struct pl_tcp *t,
                     const struct pl_tcp_frame *like,
                     unsigned from,
                     void *data,
                     size_t len,
                     struct pl_error *err)
{
    return pl_tcp_swap(t, like, PL_TCP_NO_PEER, NULL, 0, from, data, len, err);
}

/* Begins a collective. */
static int begin_collective(struct pl_tcp *t,
                            enum pl_tcp_op op,
                            size_t total,
                            size_t scratch,
                            struct pl_tcp_frame *ret,
                            struct pl_error *err)
{
    if (t->failed[0])
        return pl_error_set(err, -ECONNRESET, "%s", t->failed);
    if (scratch > t->scratch_size) {
        void *p;

        if (posix_memalign(&p, 64, scratch) != 0)
            return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes", scratch);
        free(t->scratch);
        t->scratch = p;
        t->scratch_size = scratch;
    }
    *ret = pl_tcp_frame(op, t->seq++, total);
    return 0;
}

static void add(enum pl_real real, void *dst, const void *a, const void *b, size_t n, double scale)
{
    pl_kernels_best(real)->add(
        &(struct pl_add_args){.n = n, .scale = scale, .a = a, .b = b, .dst = dst});
}

static int doubling(struct pl_tcp *t,
                    const struct pl_tcp_frame *frame,
                    char *buf,
                    size_t count,
                    enum pl_real real,
                    double scale,
                    struct pl_error *err)
{
    unsigned me = t->base.rank, n = t->base.size, p = power_below(n);
    size_t bytes = count * pl_real_size(real);
    int r;

    if (me >= p) {
        r = send_to(t, frame, me - p, buf, bytes, err);
        return r < 0 ? r : recv_from(t, frame, me - p, buf, bytes, err);
    }
    if (me + p < n) {
        r = recv_from(t, frame, me + p, t->scratch, bytes, err);
        if (r < 0)
            return r;
        add(real, buf, buf, t->scratch, count, 1);
    }
    for (unsigned bit = 1; bit < p; bit *= 2) {
        unsigned peer = me ^ bit;

        r = pl_tcp_swap(t, frame, peer, buf, bytes, peer, t->scratch, bytes, err);
        if (r < 0)
            return r;
        add(real, buf, buf, t->scratch, count, bit * 2 < p ? 1 : scale);
    }
    return me + p < n ? send_to(t, frame, me + p, buf, bytes, err) : 0;
}

/* The first element of piece i of n. */
static size_t piece(size_t count, unsigned i, unsigned n)
{
    return (size_t)((unsigned __int128)count * i / n);
}

static int ring(struct pl_tcp *t,
                const struct pl_tcp_frame *frame,
                char *buf,
                size_t count,
                enum pl_real real,
                double scale,
                struct pl_error *err)
{
    unsigned me = t->base.rank, n = t->base.size, next = (me + 1) % n, prev = (me + n - 1) % n;
    size_t size = pl_real_size(real);

    /* In round k each rank forwards the piece that began at rank me - k. After n - 1 rounds of
     * adding, each rank has one complete piece; n - 1 more rounds distribute the pieces. */
    for (unsigned k = 0; k < 2 * (n - 1); k++) {
        unsigned s = (me + 2 * n - k) % n, v = (s + n - 1) % n;
        size_t s0 = piece(count, s, n), s1 = piece(count, s + 1, n);
        size_t v0 = piece(count, v, n), v1 = piece(count, v + 1, n);
        bool adding = k < n - 1;
        int r = pl_tcp_swap(t, frame, next, buf + s0 * size, (s1 - s0) * size, prev,
                            adding ? t->scratch : buf + v0 * size, (v1 - v0) * size, err);

        if (r < 0)
            return r;
        if (adding)
            add(real, buf + v0 * size, buf + v0 * size, t->scratch, v1 - v0,
                k == n - 2 ? scale : 1);
    }
    return 0;
}

static int tcp_allreduce(struct pl_comm *comm,
                         void *buf,
                         size_t count,
                         enum pl_real real,
                         double scale,
                         struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    size_t bytes = count * pl_real_size(real);
    struct pl_tcp_frame frame;
    int r = begin_collective(t, PL_TCP_OP_ALLREDUCE, bytes,
                             bytes <= SMALL_BYTES ? bytes : bytes / comm->size + 64, &frame, err);

    if (r < 0)
        return r;
    return (bytes <= SMALL_BYTES ? doubling : ring)(t, &frame, buf, count, real, scale, err);
}

static int tcp_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    unsigned me = comm->rank, bit = 1;
    struct pl_tcp_frame frame;
    int r = begin_collective(t, PL_TCP_OP_BROADCAST, bytes, 0, &frame, err);

    if (r < 0)
        return r;
    if (me) { /* the parent is me without its highest bit */
        unsigned high = power_below(me);

        r = recv_from(t, &frame, me - high, buf, bytes, err);
        bit = high * 2;
    }
    for (; r == 0 && me + bit < comm->size; bit *= 2)
        r = send_to(t, &frame, me + bit, buf, bytes, err);
    return r;
}

static int tcp_barrier(struct pl_comm *comm, struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    struct pl_tcp_frame frame;
    char nothing[1];
    int r = begin_collective(t, PL_TCP_OP_BARRIER, 0, sizeof(nothing), &frame, err);

    return r < 0 ? r : doubling(t, &frame, nothing, 0, PL_REAL_F32, 1, err);
}

/* In round k each rank forwards the part of rank me - k. */
static int
tcp_allgather(struct pl_comm *comm, void *buf, const size_t *offset, struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    unsigned me = comm->rank, n = comm->size, next = (me + 1) % n, prev = (me + n - 1) % n;
    struct pl_tcp_frame frame;
    int r = begin_collective(t, PL_TCP_OP_ALLGATHER, offset[n], 0, &frame, err);

    for (unsigned k = 0; k < n - 1 && r == 0; k++) {
        unsigned s = (me + n - k) % n, v = (s + n - 1) % n;

        r = pl_tcp_swap(t, &frame, next, (char *)buf + offset[s], offset[s + 1] - offset[s], prev,
                        (char *)buf + offset[v], offset[v + 1] - offset[v], err);
    }
    return r;
}

/* The first half of ring(), for any parts: in round k each rank forwards the part of rank me - k -
 * 1, so that its own comes last. */
static int tcp_reduce_scatter(struct pl_comm *comm,
                              void *buf,
                              const size_t *offset,
                              enum pl_real real,
                              double scale,
                              struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    unsigned me = comm->rank, n = comm->size, next = (me + 1) % n, prev = (me + n - 1) % n;
    size_t size = pl_real_size(real), most = 0;
    struct pl_tcp_frame frame;
    int r;

    for (unsigned i = 0; i < n; i++)
        most = PL_MAX(most, offset[i + 1] - offset[i]);
    r = begin_collective(t, PL_TCP_OP_REDUCE_SCATTER, offset[n] * size, most * size + 64, &frame,
                         err);
    for (unsigned k = 0; k < n - 1 && r == 0; k++) {
        unsigned s = (me + 2 * n - k - 1) % n, v = (s + n - 1) % n;
        size_t send = offset[s + 1] - offset[s], count = offset[v + 1] - offset[v];
        char *to = (char *)buf + offset[v] * size;

        r = pl_tcp_swap(t, &frame, next, (char *)buf + offset[s] * size, send * size, prev,
                        t->scratch, count * size, err);
        if (r == 0)
            add(real, to, to, t->scratch, count, k == n - 2 ? scale : 1);
    }
    return r;
}

static int tcp_alloc(struct pl_comm *comm, size_t bytes, void **ret, struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    void *p = pl_bump_alloc(&t->memory, PL_MAX(bytes, (size_t)64));

    if (!p)
        return pl_error_set(err, -ENOMEM, "out of memory for %zu bytes", bytes);
    *ret = p;
    return 0;
}

static void tcp_abort(struct pl_comm *comm, const char *text)
{
    pl_tcp_abort((struct pl_tcp *)comm, text);
}

void pl_tcp_destroy(struct pl_comm *comm)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;

    for (unsigned i = 0; t->fd && i < comm->size; i++)
        if (t->fd[i] >= 0)
            close(t->fd[i]);
    free(t->fd);
    free(t->world_ranks);
    free(t->scratch);
    pl_bump_finish(&t->memory);
    free(t);
}

const struct pl_comm_ops pl_tcp_ops = {
    .name = "tcp",
    .allreduce = tcp_allreduce,
    .broadcast = tcp_broadcast,
    .barrier = tcp_barrier,
    .allgather = tcp_allgather,
    .reduce_scatter = tcp_reduce_scatter,
    .alloc = tcp_alloc,
    .abort = tcp_abort,
    .destroy = pl_tcp_destroy,
};
