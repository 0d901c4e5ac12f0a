/* SPDX-License-Identifier: MIT */
/* Frames between two ranks: sending, receiving, and detecting that the peer is lost. */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/comm/comm_tcp_private.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define ABORT_MS 500            /* limit for completing a frame before the abort */
#define FRAME_MAGIC 0x31664c50u /* also detects a different byte order */

enum frame_type {
    FRAME_DATA = 1,
    FRAME_ABORT = 2,
};

static const char *const op_names[] = {"allreduce", "broadcast", "barrier", "allgather",
                                       "reduce-scatter"};

/* One frame that is being sent or received. */
struct transfer {
    unsigned peer; /* member; PL_TCP_NO_PEER = none */
    struct pl_tcp_frame frame;
    char *data;
    size_t len;  /* of data */
    size_t done; /* of frame and data together */
};

static void set_text(struct pl_tcp *t, const char *fmt, ...) PL_PRINTF(2, 3);
static void set_text(struct pl_tcp *t, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(t->failed, sizeof(t->failed), fmt, ap);
    va_end(ap);
}

/* Reads the text of an abort, the peer's last frame; true if it has one. `have` bytes of it are in
 * `data` already. */
static bool read_abort(
    struct pl_tcp *t, int fd, const struct pl_tcp_frame *frame, const char *data, size_t have)
{
    size_t want = (size_t)PL_MIN(frame->bytes, (uint64_t)sizeof(t->failed) - 1);

    have = PL_MIN(have, want);
    if (have)
        memmove(t->failed, data, have);
    while (have < want) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n;

        if (poll(&p, 1, ABORT_MS) <= 0)
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

/* The connection broke while sending: read the peer's abort, if it sent one. */
static bool read_last_abort(struct pl_tcp *t, unsigned peer, const struct transfer *in)
{
    struct pl_tcp_frame frame = {0};
    ssize_t n;

    if (in->peer == peer && in->done > 0) /* in the middle of a frame: it cannot be found */
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
    return x->peer != PL_TCP_NO_PEER && x->done < transfer_size(x);
}

static struct msghdr message(struct transfer *x, struct iovec iov[2])
{
    size_t head = PL_MIN(x->done, sizeof(x->frame)), body = x->done - head;

    iov[0] = (struct iovec){(char *)&x->frame + head, sizeof(x->frame) - head};
    iov[1] = (struct iovec){x->data + body, x->len - body};
    return (struct msghdr){.msg_iov = iov, .msg_iovlen = 2};
}

/* Sends without blocking. Returns 0, or -errno. */
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

/* Sends an abort to all peers. First completes the frame in progress, or they would take the text
 * for data. */
static void send_aborts(struct pl_tcp *t, struct transfer *out)
{
    uint64_t limit = pl_now_ns() + ABORT_MS * 1000000ull;

    if (t->abort_sent)
        return;
    t->abort_sent = true;
    while (out && out->done > 0 && busy(out) && pl_now_ns() < limit) {
        struct pollfd p = {.fd = t->fd[out->peer], .events = POLLOUT};

        if (poll(&p, 1, ABORT_MS) <= 0 || push(t, out) < 0)
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
    send_aborts(t, out);
    return pl_error_set(err, -ECONNRESET, "%s", t->failed);
}

static int lost(struct pl_tcp *t,
                unsigned peer,
                const char *why,
                struct transfer *out,
                const struct transfer *in,
                struct pl_error *err)
{
    if (!read_last_abort(t, peer, in))
        set_text(t, "lost rank %u: %s", t->world_ranks[peer], why);
    return fail(t, out, err);
}

/* The head of a frame is complete: check that it is the expected one. */
static int check_frame(struct pl_tcp *t,
                       const struct pl_tcp_frame *want,
                       struct transfer *out,
                       struct transfer *in,
                       struct pl_error *err)
{
    const struct pl_tcp_frame *f = &in->frame;
    unsigned rank = t->world_ranks[in->peer];

    if (f->magic == FRAME_MAGIC && f->type == FRAME_ABORT) {
        if (!read_abort(t, t->fd[in->peer], f, in->data, in->done - sizeof(*f)))
            set_text(t, "rank %u gave up", rank);
        return fail(t, out, err);
    }
    if (f->magic != FRAME_MAGIC || f->type != FRAME_DATA) {
        set_text(t, "rank %u sent an invalid frame", rank);
        return fail(t, out, err);
    }
    if (f->seq != want->seq || f->op != want->op || f->total != want->total ||
        f->bytes != want->bytes) {
        set_text(t,
                 "ranks disagree: collective %u is %s of %llu bytes on rank %u, %u is %s of %llu "
                 "bytes on rank %u",
                 want->seq, op_names[want->op], (unsigned long long)want->total,
                 t->world_ranks[t->base.rank], f->seq,
                 f->op < PL_COUNT(op_names) ? op_names[f->op] : "unknown",
                 (unsigned long long)f->total, rank);
        return fail(t, out, err);
    }
    return 0;
}

/* Receives what has arrived, or waits for up to PL_TCP_TICK_MS (SO_RCVTIMEO). One call instead of
 * poll() and recvmsg() is most of the cost of a small collective. Returns 1 if the head has just
 * become complete, 0, or -errno (-EPIPE at the end of the connection). */
static int pull(struct pl_tcp *t, struct transfer *in, bool wait)
{
    while (busy(in)) {
        struct iovec iov[2];
        struct msghdr msg = message(in, iov);
        bool head = in->done >= sizeof(in->frame);
        ssize_t n = recvmsg(t->fd[in->peer], &msg, wait ? 0 : MSG_DONTWAIT);

        if (n < 0 && errno == EINTR && !wait)
            continue;
        /* An interrupted wait is over: a profiler's signals would prolong it without end. */
        if (n < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
            return -EPIPE;
        in->done += (size_t)n;
        if (!head && in->done >= sizeof(in->frame))
            return 1;
    }
    return 0;
}

/* True if the kernel has retransmitted data repeatedly without an answer (the host is dead; a dead
 * process closes its connection). Keepalive covers connections without such data. TCP_USER_TIMEOUT
 * cannot be used: it also ends connections to a peer that acknowledges but does not read. */
static bool host_dead(int fd)
{
    struct tcp_info info;
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_unacked > 0 &&
           info.tcpi_retransmits > 1 && info.tcpi_last_ack_recv >= 1000 * pl_comm_limits.host_s;
}

/* A peer that sends and takes nothing. */
static int check_time(struct pl_tcp *t,
                      struct pl_comm_wait *wait,
                      struct transfer *out,
                      const struct transfer *in,
                      struct pl_error *err)
{
    unsigned peer = busy(in) ? in->peer : out->peer;
    double seconds;
    int r = pl_comm_waits(wait, &seconds);

    if (r < 0) {
        set_text(t, "rank %u has waited %.0f s for rank %u in a collective (%s)",
                 t->world_ranks[t->base.rank], seconds, t->world_ranks[peer],
                 op_names[out->frame.op]);
        return fail(t, out, err);
    }
    if (r > 0)
        pl_log_warn("comm", "rank %u has waited %.0f s for rank %u in a collective (%s)",
                    t->world_ranks[t->base.rank], seconds, t->world_ranks[peer],
                    op_names[out->frame.op]);
    return 0;
}

int pl_tcp_swap(struct pl_tcp *t,
                const struct pl_tcp_frame *like,
                unsigned to,
                const void *send_data,
                size_t send_len,
                unsigned from,
                void *recv_data,
                size_t recv_len,
                struct pl_error *err)
{
    struct pl_tcp_frame want = *like;
    struct transfer out = {.peer = to, .frame = *like, .data = (char *)send_data, .len = send_len};
    struct transfer in = {.peer = from, .data = recv_data, .len = recv_len};
    struct pl_comm_wait wait = {0};
    size_t moved = 0;
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
                return pl_error_errno(err, errno, "cannot wait for rank %u", t->world_ranks[to]);
            r = PL_MAX(r, 0);
        }
        for (unsigned i = 0; r == 0 && i < 2; i++)
            if (p[i].fd >= 0 && host_dead(p[i].fd))
                return lost(t, i ? from : to, "its host does not answer", &out, &in, err);
        if (in.done + out.done != moved)
            wait = (struct pl_comm_wait){0};
        moved = in.done + out.done;
        if ((r = check_time(t, &wait, &out, &in, err)) < 0)
            return r;
    }
}

int pl_tcp_check(struct pl_tcp *t, struct pl_error *err)
{
    if (t->failed[0])
        return pl_error_set(err, -ECONNRESET, "%s", t->failed);
    for (unsigned i = 0; i < t->base.size; i++) {
        struct transfer in = {.peer = i}, none = {.peer = PL_TCP_NO_PEER};
        struct pl_tcp_frame want = {0};
        int r;

        if (t->fd[i] < 0)
            continue;
        if (host_dead(t->fd[i]))
            return lost(t, i, "its host does not answer", &none, &in, err);
        r = pull(t, &in, false);
        if (r < 0)
            return lost(t, i, r == -EPIPE ? "its connection closed" : strerror(-r), &none, &in,
                        err);
        if (r > 0 || in.done > 0)
            return check_frame(t, &want, &none, &in, err);
    }
    return 0;
}

struct pl_tcp_frame pl_tcp_frame(enum pl_tcp_op op, uint32_t seq, size_t total)
{
    return (struct pl_tcp_frame){
        .magic = FRAME_MAGIC, .type = FRAME_DATA, .seq = seq, .op = op, .total = total};
}

void pl_tcp_abort(struct pl_tcp *t, const char *text)
{
    if (!t->failed[0])
        set_text(t, "%s", text);
    send_aborts(t, NULL);
}
