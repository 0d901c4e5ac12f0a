/* SPDX-License-Identifier: MIT */
/* Collectives over TCP between ranks that share no memory.
 *
 * Small: recursive doubling (Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005), log2(n) rounds;
 * ranks past the largest power of two hand their part to a lower one first. Large: ring
 * reduce-scatter and all-gather, each byte sent twice. Both partners of a round add the same two
 * numbers, and addition commutes, so all ranks get the same bits.
 *
 * The bytes of a collective are neither signed nor encrypted; only who connects is checked (see
 * comm_tcp_connect.c). */
#include "common/base/fs.h"
#include "runtime/engine/comm_tcp_private.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define SMALL_BYTES ((size_t)128 * 1024)
#define HOST_DEAD_MS 4000       /* no acknowledgement of sent data for so long */
#define LAST_WORDS_MS 500       /* for finishing a frame before the abort */
#define FRAME_MAGIC 0x31664c50u /* also tells byte orders apart */

enum frame_type {
    FRAME_DATA = 1,
    FRAME_ABORT = 2,
};

struct frame {
    uint32_t magic;
    uint32_t type;
    uint32_t seq; /* number of the collective */
    uint32_t op;
    uint64_t total; /* bytes of the whole collective */
    uint64_t bytes; /* that follow */
};

enum op {
    OP_ALLREDUCE,
    OP_BROADCAST,
    OP_BARRIER,
};

static const char *const op_names[] = {"allreduce", "broadcast", "barrier"};

/* One frame on its way out or in. */
struct transfer {
    unsigned peer; /* member; NO_PEER = none */
    struct frame frame;
    char *data;
    size_t len;  /* of data */
    size_t done; /* of frame and data */
};

#define NO_PEER UINT32_MAX

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
    if (high >= p) /* handing over */
        return high - p == low;
    return ((low ^ high) & ((low ^ high) - 1)) == 0; /* doubling, and the broadcast's tree */
}

static void set_text(struct pl_tcp *t, const char *fmt, ...) PL_PRINTF(2, 3);
static void set_text(struct pl_tcp *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(t->failed, sizeof(t->failed), fmt, ap);
    va_end(ap);
}

/* Reads what a peer said before it went away; true where that was an abort. `have` bytes behind
 * its frame's head are in `data` already. */
static bool
read_abort(struct pl_tcp *t, int fd, const struct frame *frame, const char *data, size_t have)
{
    size_t want = (size_t)PL_MIN(frame->bytes, (uint64_t)sizeof(t->failed) - 1);

    have = PL_MIN(have, want);
    memmove(t->failed, data, have);
    while (have < want) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, LAST_WORDS_MS) <= 0)
            break;
        n = recv(fd, t->failed + have, want - have, MSG_DONTWAIT);
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    t->failed[have] = '\0';
    for (char *c = t->failed; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return have > 0;
}

/* The connection broke while sending: maybe the peer said why. */
static bool last_words(struct pl_tcp *t, unsigned peer, const struct transfer *in)
{
    struct frame frame = {0};
    ssize_t n;

    if (in->peer == peer && in->done > 0) /* in the middle of a frame: no telling */
        return false;
    n = recv(t->fd[peer], &frame, sizeof(frame), MSG_DONTWAIT);
    return n == (ssize_t)sizeof(frame) && frame.magic == FRAME_MAGIC && frame.type == FRAME_ABORT &&
           read_abort(t, t->fd[peer], &frame, "", 0);
}

static size_t transfer_size(const struct transfer *x)
{
    return sizeof(x->frame) + x->len;
}

static bool busy(const struct transfer *x)
{
    return x->peer != NO_PEER && x->done < transfer_size(x);
}

static struct msghdr message(struct transfer *x, struct iovec iov[2])
{
    size_t head = PL_MIN(x->done, sizeof(x->frame)), body = x->done - head;

    iov[0] = (struct iovec){(char *)&x->frame + head, sizeof(x->frame) - head};
    iov[1] = (struct iovec){x->data + body, x->len - body};
    return (struct msghdr){.msg_iov = iov, .msg_iovlen = 2};
}

/* Sends what goes. 0, or -errno. */
static int push(struct pl_tcp *t, struct transfer *out)
{
    while (busy(out)) {
        struct iovec iov[2];
        struct msghdr msg = message(out, iov);
        ssize_t n = sendmsg(t->fd[out->peer], &msg, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        out->done += (size_t)n;
    }
    return 0;
}

/* Tells all peers; finishes the frame that is half sent, or they would take the text for data. */
static void tell_all(struct pl_tcp *t, struct transfer *out)
{
    uint64_t limit = pl_now_ns() + LAST_WORDS_MS * 1000000ull;

    if (t->told)
        return;
    t->told = true;
    while (out && out->done > 0 && busy(out) && pl_now_ns() < limit) {
        struct pollfd p = {.fd = t->fd[out->peer], .events = POLLOUT};

        if (poll(&p, 1, LAST_WORDS_MS) <= 0 || push(t, out) < 0)
            break;
    }
    for (unsigned i = 0; i < t->base.size; i++) {
        struct transfer x = {
            .peer = i,
            .frame = {.magic = FRAME_MAGIC, .type = FRAME_ABORT, .bytes = strlen(t->failed)},
            .data = t->failed,
            .len = strlen(t->failed),
        };

        if (t->fd[i] >= 0 && !(out && out->peer == i && out->done > 0 && busy(out)))
            push(t, &x);
    }
}

static int fail(struct pl_tcp *t, struct transfer *out, struct pl_error *err)
{
    tell_all(t, out);
    return pl_error_set(err, -ECONNRESET, "%s", t->failed);
}

static int lost(struct pl_tcp *t,
                unsigned peer,
                const char *why,
                struct transfer *out,
                const struct transfer *in,
                struct pl_error *err)
{
    if (!last_words(t, peer, in))
        set_text(t, "lost rank %u: %s", t->world[peer], why);
    return fail(t, out, err);
}

/* The head of a frame is there: is it the one expected? */
static int check_frame(struct pl_tcp *t,
                       const struct frame *want,
                       struct transfer *out,
                       struct transfer *in,
                       struct pl_error *err)
{
    const struct frame *f = &in->frame;
    unsigned rank = t->world[in->peer];

    if (f->magic == FRAME_MAGIC && f->type == FRAME_ABORT) {
        if (!read_abort(t, t->fd[in->peer], f, in->data, in->done - sizeof(*f)))
            set_text(t, "rank %u gave up", rank);
        return fail(t, out, err);
    }
    if (f->magic != FRAME_MAGIC || f->type != FRAME_DATA) {
        set_text(t, "rank %u sent no frame of ours", rank);
        return fail(t, out, err);
    }
    if (f->seq != want->seq || f->op != want->op || f->total != want->total ||
        f->bytes != want->bytes) {
        set_text(t,
                 "ranks disagree: collective %u is %s of %llu bytes on rank %u, %u is %s of %llu "
                 "bytes on rank %u",
                 want->seq, op_names[want->op], (unsigned long long)want->total,
                 t->world[t->base.rank], f->seq,
                 f->op < PL_COUNT(op_names) ? op_names[f->op] : "unknown",
                 (unsigned long long)f->total, rank);
        return fail(t, out, err);
    }
    return 0;
}

/* Receives what is there, or waits for it up to PL_TCP_TICK_MS (SO_RCVTIMEO): one call where poll()
 * and then recvmsg() would be two, and this is most of what a small collective costs. 1 where the
 * head has just become complete, 0, or -errno (-EPIPE at the end of the connection). */
static int pull(struct pl_tcp *t, struct transfer *in, bool wait)
{
    while (busy(in)) {
        struct iovec iov[2];
        struct msghdr msg = message(in, iov);
        bool head = in->done >= sizeof(in->frame);
        ssize_t n = recvmsg(t->fd[in->peer], &msg, wait ? 0 : MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -errno;
        if (n == 0)
            return -EPIPE;
        in->done += (size_t)n;
        if (!head && in->done >= sizeof(in->frame))
            return 1;
    }
    return 0;
}

/* True where the kernel has sent data again and again and heard nothing (a dead host; a dead
 * process is noticed by the closed connection). Keepalive covers connections without such data. A
 * peer that just does not read keeps acknowledging, so TCP_USER_TIMEOUT, which ends that too, is
 * not for us. */
static bool host_dead(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_unacked > 0 &&
           info.tcpi_retransmits > 1 && info.tcpi_last_ack_recv >= HOST_DEAD_MS;
}

/* Sends a frame to one member and receives one from another (or the same), both at once. */
static int swap(struct pl_tcp *t,
                const struct frame *like,
                unsigned to,
                const void *send_data,
                size_t send_len,
                unsigned from,
                void *recv_data,
                size_t recv_len,
                struct pl_error *err)
{
    struct frame want = *like;
    struct transfer out = {.peer = to, .frame = *like, .data = (char *)send_data, .len = send_len};
    struct transfer in = {.peer = from, .data = recv_data, .len = recv_len};
    int r;

    out.frame.bytes = send_len;
    want.bytes = recv_len;
    for (;;) {
        struct pollfd p[2] = {{.fd = -1}, {.fd = -1}};

        if ((r = push(t, &out)) < 0)
            return lost(t, to, strerror(-r), &out, &in, err);
        while ((r = pull(t, &in, !busy(&out))) != 0) {
            if (r < 0)
                return lost(t, from, r == -EPIPE ? "its connection closed" : strerror(-r), &out,
                            &in, err);
            if ((r = check_frame(t, &want, &out, &in, err)) < 0)
                return r;
        }
        if (!busy(&out) && !busy(&in))
            return 0;
        if (busy(&in))
            p[1] = (struct pollfd){.fd = t->fd[from], .events = POLLIN};
        if (busy(&out)) {
            p[0] = (struct pollfd){.fd = t->fd[to], .events = POLLOUT};
            r = poll(p, 2, PL_TCP_TICK_MS);
            if (r < 0 && errno != EINTR)
                return pl_error_errno(err, errno, "cannot wait for rank %u", t->world[to]);
        }
        for (unsigned i = 0; r == 0 && i < 2; i++)
            if (p[i].fd >= 0 && host_dead(p[i].fd))
                return lost(t, i ? from : to, "its host does not answer", &out, &in, err);
    }
}

static int send_to(struct pl_tcp *t,
                   const struct frame *like,
                   unsigned to,
                   const void *data,
                   size_t len,
                   struct pl_error *err)
{
    return swap(t, like, to, data, len, NO_PEER, NULL, 0, err);
}

static int recv_from(struct pl_tcp *t,
                     const struct frame *like,
                     unsigned from,
                     void *data,
                     size_t len,
                     struct pl_error *err)
{
    return swap(t, like, NO_PEER, NULL, 0, from, data, len, err);
}

/* Begins a collective. */
static int enter(struct pl_tcp *t,
                 enum op op,
                 size_t total,
                 size_t scratch,
                 struct frame *ret,
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
    *ret = (struct frame){
        .magic = FRAME_MAGIC, .type = FRAME_DATA, .seq = t->seq++, .op = op, .total = total};
    return 0;
}

static void add(enum pl_real real, void *dst, const void *a, const void *b, size_t n, double scale)
{
    pl_kernels_best(real)->add(
        &(struct pl_add_args){.n = n, .scale = scale, .a = a, .b = b, .dst = dst});
}

static int doubling(struct pl_tcp *t,
                    const struct frame *frame,
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

        r = swap(t, frame, peer, buf, bytes, peer, t->scratch, bytes, err);
        if (r < 0)
            return r;
        add(real, buf, buf, t->scratch, count, bit * 2 < p ? 1 : scale);
    }
    return me + p < n ? send_to(t, frame, me + p, buf, bytes, err) : 0;
}

/* Where piece i of n begins. */
static size_t piece(size_t count, unsigned i, unsigned n)
{
    return (size_t)((unsigned __int128)count * i / n);
}

static int ring(struct pl_tcp *t,
                const struct frame *frame,
                char *buf,
                size_t count,
                enum pl_real real,
                double scale,
                struct pl_error *err)
{
    unsigned me = t->base.rank, n = t->base.size, next = (me + 1) % n, prev = (me + n - 1) % n;
    size_t size = pl_real_size(real);

    /* In round k the piece that began at rank me - k goes on; after n - 1 rounds of adding, each
     * rank has one whole piece, which n - 1 more rounds carry to all. */
    for (unsigned k = 0; k < 2 * (n - 1); k++) {
        unsigned s = (me + 2 * n - k) % n, v = (s + n - 1) % n;
        size_t s0 = piece(count, s, n), s1 = piece(count, s + 1, n);
        size_t v0 = piece(count, v, n), v1 = piece(count, v + 1, n);
        bool adding = k < n - 1;
        int r = swap(t, frame, next, buf + s0 * size, (s1 - s0) * size, prev,
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
    struct frame frame;
    int r = enter(t, OP_ALLREDUCE, bytes, bytes <= SMALL_BYTES ? bytes : bytes / comm->size + 64,
                  &frame, err);

    if (r < 0)
        return r;
    return (bytes <= SMALL_BYTES ? doubling : ring)(t, &frame, buf, count, real, scale, err);
}

static int tcp_broadcast(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;
    unsigned me = comm->rank, bit = 1;
    struct frame frame;
    int r = enter(t, OP_BROADCAST, bytes, 0, &frame, err);

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
    struct frame frame;
    int r = enter(t, OP_BARRIER, 0, 0, &frame, err);

    return r < 0 ? r : doubling(t, &frame, NULL, 0, PL_REAL_F32, 1, err);
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
    struct pl_tcp *t = (struct pl_tcp *)comm;

    if (!t->failed[0])
        set_text(t, "%s", text);
    tell_all(t, NULL);
}

void pl_tcp_destroy(struct pl_comm *comm)
{
    struct pl_tcp *t = (struct pl_tcp *)comm;

    for (unsigned i = 0; t->fd && i < comm->size; i++)
        if (t->fd[i] >= 0)
            close(t->fd[i]);
    free(t->fd);
    free(t->world);
    free(t->scratch);
    pl_bump_finish(&t->memory);
    free(t);
}

const struct pl_comm_ops pl_tcp_ops = {
    .name = "tcp",
    .allreduce = tcp_allreduce,
    .broadcast = tcp_broadcast,
    .barrier = tcp_barrier,
    .alloc = tcp_alloc,
    .abort = tcp_abort,
    .destroy = pl_tcp_destroy,
};
