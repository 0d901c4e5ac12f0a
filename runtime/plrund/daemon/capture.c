/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/capture.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/own.h"
#include "common/base/tail.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PENDING_MAX ((size_t)256 * 1024) /* unwritten bytes at which reading stops */
#define LINE_MAX_BYTES 4096              /* longer lines are searched for metrics in parts */
#define READ_BYTES 65536                 /* at once */
#define DRAIN_READS 32                   /* so many at once */

struct pl_capture {
    uv_poll_t in, out; /* `out` only if the real descriptor can be polled */
    int read_fd, real_fd, file_fd;
    const struct pl_metric_rule *rules;
    size_t n_rules;
    const struct pl_capture_ops *ops;
    void *ctx;
    struct pl_buf pending; /* for real_fd */
    struct pl_tail tail;
    struct pl_buf line;
    bool real_is_socket;
    bool muted, held; /* pl_capture_mute(), until pl_capture_let_go() */
    uint64_t heard_ns;
    size_t missing; /* bytes that the file does not have, at its end */
    bool eof, told, closing, released, out_ready, warned;
    unsigned handles; /* uv handles still open */
};

static void search_rule(struct pl_capture *c, const struct pl_metric_rule *rule)
{
    regmatch_t m[2];
    const char *text = pl_buf_str(&c->line);
    char number[64], *end;
    size_t len;
    double v;

    if (regexec(&rule->regex, text, 2, m, 0) != 0)
        return;
    if (m[1].rm_so < 0)
        m[1] = m[0];
    len = (size_t)(m[1].rm_eo - m[1].rm_so);
    if (len == 0 || len >= sizeof(number))
        return;
    memcpy(number, text + m[1].rm_so, len);
    number[len] = '\0';
    v = strtod(number, &end);
    if (end != number)
        c->ops->metric(c->ctx, rule->name, v);
}

/* The step first: it is that of the line's other metrics, in whatever order the rules stand. */
static void search_line(struct pl_capture *c)
{
    for (int others = 0; others < 2; others++)
        for (size_t i = 0; i < c->n_rules; i++)
            if ((strcmp(c->rules[i].name, "step") != 0) == others)
                search_rule(c, &c->rules[i]);
}

static void search(struct pl_capture *c, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\n' || data[i] == '\r' || c->line.len >= LINE_MAX_BYTES) {
            if (c->line.len)
                search_line(c);
            c->line.len = 0;
            if (c->line.data)
                c->line.data[0] = '\0';
        }
        if (data[i] != '\n' && data[i] != '\r' && data[i] != '\0')
            pl_buf_addc(&c->line, data[i]);
    }
}

/* Writes without blocking: by a flag of each call for sockets, by O_NONBLOCK for others. */
static ssize_t write_some(const struct pl_capture *c)
{
    if (c->real_is_socket)
        return send(c->real_fd, c->pending.data, c->pending.len, MSG_DONTWAIT | MSG_NOSIGNAL);
    return write(c->real_fd, c->pending.data, c->pending.len);
}

static void write_real(struct pl_capture *c)
{
    while (c->pending.len && c->real_fd >= 0) {
        ssize_t n = write_some(c);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) { /* srun is gone: the file still gets everything */
            pl_log_debug("child", "output stream closed: %s", strerror(errno));
            c->pending.len = 0;
            return;
        }
        pl_buf_consume(&c->pending, (size_t)n);
    }
}

/* On a full disk the file says where output is missing, once there is room again. Returns how many
 * bytes at the end of the data it did not take. */
static size_t write_rank_file(struct pl_capture *c, const char *data, size_t len)
{
    char note[96] = "";
    ssize_t n = 0;

    if (c->missing) {
        int size = snprintf(note, sizeof(note), "\n[plrund: %zu bytes could not be written]\n",
                            c->missing);

        n = write(c->file_fd, note, (size_t)size);
        if (n < size) { /* no part of the note stays */
            if (n > 0 && ftruncate(c->file_fd, lseek(c->file_fd, 0, SEEK_END) - n) < 0)
                pl_log_debug("child", "cannot truncate a rank's file");
            c->missing += len;
            return len;
        }
        c->missing = 0;
    }
    while (len) {
        n = write(c->file_fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        data += n;
        len -= (size_t)n;
    }
    if (len && !c->warned)
        pl_log_warn("child", "cannot write a rank's file: %s; the run goes on", strerror(errno));
    c->warned = c->warned || len;
    c->missing = len;
    return len;
}

/* A file that somebody has removed takes everything, and nobody can read it. */
static bool file_is_removed(const struct pl_capture *c)
{
    struct stat st;

    return fstat(c->file_fd, &st) == 0 && st.st_nlink == 0;
}

static void accept_data(struct pl_capture *c, const char *data, size_t len)
{
    size_t lost = c->file_fd >= 0 ? write_rank_file(c, data, len) : len;

    pl_tail_add(&c->tail, data, len);
    c->heard_ns = pl_now_ns();
    if (c->n_rules)
        search(c, data, len);
    if (c->muted && !file_is_removed(c)) {
        data += len - lost;
        len = lost;
    }
    pl_buf_add(&c->pending, data, len);
    write_real(c);
}

/* Reads once. False at the end of the stream, if there is nothing to read, or no room for it. */
static bool read_some(struct pl_capture *c)
{
    char data[READ_BYTES];
    ssize_t n;

    if (pl_buf_reserve(&c->pending, sizeof(data)) < 0)
        return false; /* it stays in the pipe */
    do
        n = read(c->read_fd, data, sizeof(data));
    while (n < 0 && errno == EINTR);
    if (n > 0) {
        accept_data(c, data, (size_t)n);
        return true;
    }
    if (n == 0 || errno != EAGAIN)
        c->eof = true;
    return false;
}

static void on_event(uv_poll_t *poll, int status, int events);

static void destroy(struct pl_capture *c)
{
    pl_buf_finish(&c->pending);
    pl_tail_finish(&c->tail);
    pl_buf_finish(&c->line);
    free(c);
}

static void on_closed(uv_handle_t *handle)
{
    struct pl_capture *c = handle->data;

    if (--c->handles)
        return;
    close(PL_TAKE_FD(c->read_fd));
    close(PL_TAKE_FD(c->real_fd));
    /* a network file system writes it now */
    if (c->file_fd >= 0 && close(PL_TAKE_FD(c->file_fd)) < 0 && !c->warned)
        pl_log_warn("child", "a rank's file may lack output: %s", strerror(errno));
    if (c->closing)
        destroy(c);
}

/* Closes the descriptors: Slurm waits for the end of a task's output before a step can end. */
static void release(struct pl_capture *c)
{
    if (c->released)
        return;
    c->released = true;
    uv_close((uv_handle_t *)&c->in, on_closed);
    if (c->out_ready)
        uv_close((uv_handle_t *)&c->out, on_closed);
}

static void update(struct pl_capture *c)
{
    if (c->closing || c->released)
        return;
    if (c->eof && c->line.len) {
        search_line(c);
        c->line.len = 0;
    }
    if (c->eof || c->pending.len > PENDING_MAX)
        uv_poll_stop(&c->in);
    else
        uv_poll_start(&c->in, UV_READABLE, on_event);
    if (c->out_ready && c->pending.len)
        uv_poll_start(&c->out, UV_WRITABLE, on_event);
    else if (c->out_ready)
        uv_poll_stop(&c->out);
    if (c->eof && !c->pending.len && !c->held && !c->told) {
        c->told = true;
        release(c);
        c->ops->done(c->ctx);
    }
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct pl_capture *c = poll->data;

    if (poll == &c->in)
        read_some(c);
    else if (status < 0)
        c->pending.len = 0;
    else
        write_real(c);
    update(c);
}

/* The real stream must not block us, but the task's other processes share its open file and do not
 * expect EAGAIN: so a pipe is opened again, for us alone. */
static void own_stream(struct pl_capture *c)
{
    char path[32];
    struct stat st;
    int fd = -EBADF;

    if (fstat(c->real_fd, &st) < 0 || S_ISREG(st.st_mode))
        return;
    c->real_is_socket = S_ISSOCK(st.st_mode);
    if (c->real_is_socket)
        return;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", c->real_fd);
    if (S_ISFIFO(st.st_mode))
        fd = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) { /* another user's */
        fcntl(c->real_fd, F_SETFL, fcntl(c->real_fd, F_GETFL) | O_NONBLOCK);
        return;
    }
    close(c->real_fd);
    c->real_fd = fd;
}

int pl_capture_create(uv_loop_t *loop,
                      int read_fd,
                      int real_fd,
                      const struct pl_metric_rule *rules,
                      size_t n_rules,
                      const struct pl_capture_ops *ops,
                      void *ctx,
                      struct pl_capture **ret)
{
    struct pl_capture *c = calloc(1, sizeof(*c));
    struct pl_buf pending = {0};
    int flags, r;

    if (!c) {
        close(read_fd);
        close(real_fd);
        return -ENOMEM;
    }
    /* The room that it needs, as long as reading stops in time: no line is lost for want of memory.
     */
    if (pl_buf_reserve(&pending, PENDING_MAX + READ_BYTES) < 0) {
        close(read_fd);
        close(real_fd);
        free(c);
        return -ENOMEM;
    }
    *c = (struct pl_capture){.read_fd = read_fd,
                             .real_fd = real_fd,
                             .file_fd = -EBADF,
                             .pending = pending,
                             .rules = rules,
                             .n_rules = n_rules,
                             .ops = ops,
                             .ctx = ctx};
    fcntl(read_fd, F_SETFL, fcntl(read_fd, F_GETFL) | O_NONBLOCK);
    own_stream(c);
    real_fd = c->real_fd;
    r = uv_poll_init(loop, &c->in, read_fd);
    if (r < 0) {
        close(read_fd);
        close(real_fd);
        pl_buf_finish(&c->pending);
        free(c);
        return r;
    }
    c->in.data = c;
    c->handles = 1;
    flags = fcntl(real_fd, F_GETFL);
    /* Regular files and /dev/null cannot be polled, and never block. */
    if (uv_poll_init(loop, &c->out, real_fd) == 0) {
        if (c->real_is_socket) /* libuv has set O_NONBLOCK for every process that shares it */
            fcntl(real_fd, F_SETFL, flags);
        c->out.data = c;
        c->out_ready = true;
        c->handles++;
    }
    *ret = c;
    update(c);
    return 0;
}

int pl_capture_open_file(struct pl_capture *c,
                         const char *dir,
                         const char *name,
                         struct pl_error *err)
{
    _cleanup_close_ int dir_fd = -EBADF;
    int r = pl_own_folder_open(AT_FDCWD, dir, &dir_fd, err);

    if (r == -ENOENT) { /* another node made the folder: NFS may lag */
        r = pl_mkdir_p(dir, 0777 & ~PL_OWN_MASK, err);
        if (r == 0)
            r = pl_own_folder_open(AT_FDCWD, dir, &dir_fd, err);
    }
    if (r < 0)
        return r;
    return pl_own_file_open(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND,
                            pl_own_mode(dir_fd, 0666), &c->file_fd, err);
}

void pl_capture_mute(struct pl_capture *c)
{
    c->muted = c->held = c->file_fd >= 0;
}

void pl_capture_let_go(struct pl_capture *c, const char *text)
{
    if (!c || !c->held || c->closing)
        return;
    c->held = false;
    if (text && !file_is_removed(c))
        pl_buf_adds(&c->pending, text);
    write_real(c);
    update(c);
}

void pl_capture_drain(struct pl_capture *c)
{
    if (!c || c->closing || c->released)
        return;
    /* At most what a pipe holds: an orphan of the rank may write for ever. */
    for (int i = 0; i < DRAIN_READS && !c->eof && read_some(c); i++)
        ;
    update(c);
}

char *pl_capture_tail(const struct pl_capture *c, unsigned rank)
{
    return pl_tail_text(&c->tail, rank);
}

uint64_t pl_capture_heard_ns(const struct pl_capture *c)
{
    return c ? c->heard_ns : 0;
}

bool pl_capture_is_done(const struct pl_capture *c)
{
    return !c || (c->eof && !c->pending.len);
}

void pl_capture_close(struct pl_capture *c)
{
    if (!c || c->closing)
        return;
    c->closing = true;
    write_real(c);
    release(c);
    if (c->handles == 0)
        destroy(c);
}
