/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/capture.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/tail.h"
#include "runtime/plrund/daemon/file_work.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define PENDING_MAX ((size_t)256 * 1024) /* unwritten bytes at which reading stops */
#define SKIP_MS 5000 /* for a file system: then the rank goes on, and the file lacks output */
#define LINE_MAX_BYTES 4096 /* longer lines are searched for metrics in parts */
#define READ_BYTES 65536    /* at once */
#define DRAIN_READS 32      /* so many at once */

/* The rank's own file. The loop fills `queue`; what is in `job` is its work's, once it is added. */
struct file {
    bool wanted;      /* there is one, or will be: it gets the output */
    bool open, close; /* what the next work is to do, beside the lines */
    bool send;        /* likewise: other hosts are to see what it has */
    bool unsent;      /* on NFS: they may not see all */
    bool closed;      /* it was told so */
    bool under_way;   /* the work below */
    bool skips;       /* the file system does not answer: the file lacks what comes now */
    size_t skipped;   /* bytes, since the queue's end */
    size_t cut;       /* bytes that it could not take, */
    int cut_error;    /* and why */
    struct pl_buf queue;
    struct pl_file_work work;
};

struct pl_capture {
    uv_poll_t in, out; /* `out` only if the real descriptor can be polled */
    int read_fd, real_fd;
    const struct pl_metric_rule *rules;
    size_t n_rules;
    const struct pl_capture_ops *ops;
    void *ctx;
    struct pl_buf pending; /* for real_fd */
    struct pl_tail tail;
    struct pl_buf line;
    bool real_is_socket, real_is_file;
    size_t real_cut, real_gap; /* bytes that such a file could not take: all, since its last note */
    int real_error;            /* and why */
    bool muted, held;          /* pl_capture_mute(), until pl_capture_let_go() */
    uint64_t heard_ns;
    struct file file;
    bool removed; /* somebody has removed the file: it takes everything, and nobody can read it */
    bool eof, told, closing, released, out_ready;
    bool ends;           /* pl_capture_end() */
    unsigned reads_left; /* then */
    unsigned handles;    /* uv handles still open */
};

static void update(struct pl_capture *c);

/* The step first: it is that of the line's other metrics, in whatever order the rules stand. */
static void search_line(struct pl_capture *c)
{
    double value;

    for (int others = 0; others < 2; others++)
        for (size_t i = 0; i < c->n_rules; i++)
            if ((strcmp(c->rules[i].name, "step") != 0) == others &&
                pl_metric_rule_find(&c->rules[i], pl_buf_str(&c->line), &value))
                c->ops->metric(c->ctx, c->rules[i].name, value);
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

/* As write_note() of file_work.c, in Slurm's file. */
static bool write_gap(struct pl_capture *c)
{
    char note[96];
    int size =
        snprintf(note, sizeof(note), "\n[plrund: %zu bytes could not be written]\n", c->real_gap);

    if (!c->real_gap)
        return true;
    if (write(c->real_fd, note, (size_t)size) < 0)
        return false;
    c->real_gap = 0;
    return true;
}

static void write_real(struct pl_capture *c)
{
    while (c->pending.len && c->real_fd >= 0) {
        ssize_t n = write_gap(c) ? write_some(c) : -1;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0) { /* srun is gone, or a disk is full: the rank's file still gets everything */
            pl_log_debug("child", "output stream closed: %s", strerror(errno));
            if (c->real_is_file) {
                c->real_error = errno;
                c->real_cut += c->pending.len;
                c->real_gap += c->pending.len;
            }
            c->pending.len = 0;
            return;
        }
        pl_buf_consume(&c->pending, (size_t)n);
    }
}

/* ---- the rank's file ---- */

static struct pl_capture *of_job(struct pl_disk_job *job)
{
    return (struct pl_capture *)((char *)job - offsetof(struct pl_capture, file.work.job));
}

static void destroy(struct pl_capture *c)
{
    pl_buf_finish(&c->pending);
    pl_tail_finish(&c->tail);
    pl_buf_finish(&c->line);
    pl_buf_finish(&c->file.queue);
    pl_file_work_finish(&c->file.work);
    free(c);
}

static void destroy_if_closed(struct pl_capture *c)
{
    if (c->closing && !c->handles && !c->file.under_way)
        destroy(c);
}

static void file_done(struct pl_disk_job *job);

/* Hands over what there is for the file, unless it is at work: then that follows by itself. */
static void send_file(struct pl_capture *c)
{
    struct file *f = &c->file;
    struct pl_buf data = f->work.data;

    if (f->under_way || !(f->queue.len || f->skipped || f->open || f->close || f->send))
        return;
    f->work.skipped = 0;
    if (!f->queue.len) { /* what was left out follows what waited */
        f->work.skipped = f->skipped;
        f->skipped = 0;
        f->skips = false;
    }
    f->work.data = f->queue;
    f->queue = data; /* empty; its memory is used again */
    f->work.open = f->open;
    f->work.close = f->close && !f->skipped;
    f->close = f->close && f->skipped;
    f->work.send = f->send;
    f->open = f->send = false;
    f->under_way = true;
    f->work.job.work = pl_file_work;
    f->work.job.done = file_done;
    pl_disk_add(f->work.disk, &f->work.job);
}

/* There is no file: the target gets what has waited for it, and all that comes. */
static void give_up_file(struct pl_capture *c)
{
    struct file *f = &c->file;

    if (c->muted) {
        pl_buf_add(&c->pending, f->queue.data, f->queue.len);
        write_real(c);
    }
    f->queue.len = f->skipped = 0;
    f->wanted = f->skips = f->close = c->muted = c->held = false;
}

static void file_done(struct pl_disk_job *job)
{
    struct pl_capture *c = of_job(job);
    struct file *f = &c->file;
    struct pl_buf *data = &f->work.data;
    size_t lost = f->work.removed ? data->len : f->work.lost;

    f->under_way = false;
    if (f->work.result == 0 && f->work.lost) {
        f->cut += f->work.lost;
        f->cut_error = f->work.error;
    }
    c->removed = f->work.removed;
    f->unsent = f->work.nfs && !f->work.send && (data->len || f->work.skipped);
    if (c->muted && lost) {
        pl_buf_add(&c->pending, data->data + data->len - lost, lost);
        write_real(c);
    }
    data->len = 0;
    if (f->work.open && f->work.result < 0)
        give_up_file(c);
    send_file(c);
    update(c);
    destroy_if_closed(c);
}

static size_t file_waiting(const struct file *f)
{
    return f->queue.len + (f->under_way ? f->work.data.len : 0);
}

/* The rank waits for a slow file system, as it would without us, but not for one that blocks. */
static bool may_skip(const struct file *f)
{
    return f->skips || pl_disk_busy_ms(f->work.disk) >= SKIP_MS;
}

/* False: the file will lack these bytes. */
static bool add_to_file(struct pl_capture *c, const char *data, size_t len)
{
    struct file *f = &c->file;

    if (!f->skips && !(file_waiting(f) > PENDING_MAX && may_skip(f)) &&
        pl_buf_add(&f->queue, data, len) == 0) {
        send_file(c);
        return true;
    }
    if (!f->skips)
        pl_log_warn("child", "a rank's file does not take its output in time: it will lack some; "
                             "the run goes on");
    f->skips = true;
    f->skipped += len;
    return false;
}

/* False: it is closed, or on its way. */
static bool close_file(struct pl_capture *c)
{
    if (!c->file.wanted || c->file.closed)
        return false;
    c->file.closed = c->file.close = true;
    send_file(c);
    return true;
}

static void accept_data(struct pl_capture *c, const char *data, size_t len)
{
    bool kept = c->file.wanted && add_to_file(c, data, len);

    pl_tail_add(&c->tail, data, len);
    c->heard_ns = pl_now_ns();
    if (c->n_rules)
        search(c, data, len);
    if (kept && c->muted)
        return;
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
        c->eof = c->eof || (c->ends && --c->reads_left == 0);
        return true;
    }
    if (n == 0 || errno != EAGAIN)
        c->eof = true;
    return false;
}

static void on_event(uv_poll_t *poll, int status, int events);

static void on_closed(uv_handle_t *handle)
{
    struct pl_capture *c = handle->data;

    if (--c->handles)
        return;
    close(PL_TAKE_FD(c->read_fd));
    close(PL_TAKE_FD(c->real_fd));
    destroy_if_closed(c);
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
    close_file(c);
}

static void update(struct pl_capture *c)
{
    if (c->closing || c->released)
        return;
    if (c->eof && c->line.len) {
        search_line(c);
        c->line.len = 0;
    }
    if (c->eof || c->pending.len > PENDING_MAX ||
        (file_waiting(&c->file) > PENDING_MAX && !may_skip(&c->file)))
        uv_poll_stop(&c->in);
    else
        uv_poll_start(&c->in, UV_READABLE, on_event);
    if (c->out_ready && c->pending.len)
        uv_poll_start(&c->out, UV_WRITABLE, on_event);
    else if (c->out_ready)
        uv_poll_stop(&c->out);
    if (c->eof && !c->pending.len && !pl_capture_file_waits(c) && !c->held && !c->told) {
        if (close_file(c)) /* a network file system writes it now; goes on after that */
            return;
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

    if (fstat(c->real_fd, &st) < 0)
        return;
    c->real_is_file = S_ISREG(st.st_mode);
    if (c->real_is_file)
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
                      struct pl_disk *disk,
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
                             .file.work = {.disk = disk, .fd = -EBADF},
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

void pl_capture_open_file(struct pl_capture *c, const char *dir, const char *name)
{
    struct file *f = &c->file;

    free(f->work.dir);
    free(f->work.name);
    f->work.dir = strdup(dir);
    f->work.name = strdup(name);
    if (!f->work.dir || !f->work.name) {
        pl_log_warn("child", "out of memory: there will be no '%s'", name);
        return;
    }
    f->wanted = f->open = true;
    send_file(c);
}

int pl_capture_file_error(const struct pl_capture *c)
{
    return c->file.under_way ? 0 : c->file.work.result;
}

size_t pl_capture_unwritten(const struct pl_capture *c)
{
    return c ? file_waiting(&c->file) + c->file.skipped : 0;
}

size_t pl_capture_cut(const struct pl_capture *c, const char **ret_name, int *ret_error)
{
    if (!c || !c->file.cut)
        return 0;
    *ret_name = c->file.work.name;
    *ret_error = c->file.cut_error;
    return c->file.cut;
}

size_t pl_capture_real_cut(const struct pl_capture *c, int *ret_error)
{
    if (!c || !c->real_cut)
        return 0;
    *ret_error = c->real_error;
    return c->real_cut;
}

bool pl_capture_file_waits(const struct pl_capture *c)
{
    return c && (c->file.under_way || c->file.queue.len || c->file.skipped);
}

void pl_capture_tick(struct pl_capture *c, bool send)
{
    if (!c)
        return;
    if (send && c->file.unsent && !c->file.closed && pl_disk_has_thread(c->file.work.disk)) {
        c->file.send = true;
        send_file(c);
    }
    update(c);
}

void pl_capture_mute(struct pl_capture *c)
{
    c->muted = c->held = c->file.wanted;
}

void pl_capture_let_go(struct pl_capture *c, const char *text)
{
    if (!c || !c->held || c->closing)
        return;
    c->held = false;
    if (text && !c->removed)
        pl_buf_adds(&c->pending, text);
    write_real(c);
    update(c);
}

bool pl_capture_say(struct pl_capture *c, const char *fmt, ...)
{
    _cleanup_free_ char *text = NULL;
    va_list ap;

    if (!c || c->closing || c->released)
        return false;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    if (!text || pl_buf_adds(&c->pending, text) < 0 || pl_buf_addc(&c->pending, '\n') < 0)
        return false;
    write_real(c);
    update(c);
    return true;
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

void pl_capture_end(struct pl_capture *c)
{
    if (!c || c->ends)
        return;
    c->ends = true;
    c->reads_left = DRAIN_READS;
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
    return !c || (c->eof && !c->pending.len && !pl_capture_file_waits(c));
}

void pl_capture_close(struct pl_capture *c)
{
    if (!c || c->closing)
        return;
    c->closing = true;
    write_real(c);
    release(c);
    destroy_if_closed(c);
}
