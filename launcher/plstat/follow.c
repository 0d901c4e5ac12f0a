/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/follow.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/shared_open.h"
#include "common/run/output_ranks.h"
#include "launcher/plstat/lines.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define CHUNK_BYTES 65536
#define KNOWN_BYTES 16 /* before the place of reading, by which a file is known again */
#define OTHER_FILES 64 /* descriptors that the process needs for other things */
#define KEPT_MAX 65536 /* files that stay open between passes */
#define NAME_SIZE 32

struct source {
    bool err;
    bool known; /* it was open once: dev, ino and mtime are those of that file */
    bool complained;
    int fd; /* negative: none is kept */
    dev_t dev;
    ino_t ino;
    struct timespec mtime;
    off_t at; /* the place of reading */
    char last[KNOWN_BYTES];
    size_t n_last;
    struct pl_line line;
    uint64_t hole_ns; /* a zero on NFS was seen; 0: none */
};

struct pl_follow {
    char *dir;
    struct pl_follow_options options;
    struct pl_follow_ops ops;
    struct source **sources; /* by rank, out before err */
    size_t n;
    size_t n_kept, max_kept;
    bool first, nfs, unreadable;
    struct pl_lines out;
    char *chunk;
};

int pl_follow_create(const char *dir,
                     const struct pl_follow_options *options,
                     const struct pl_follow_ops *ops,
                     struct pl_follow **ret,
                     struct pl_error *err)
{
    _cleanup_(pl_follow_destroyp) struct pl_follow *f = calloc(1, sizeof(*f));
    struct rlimit limit = {0};

    if (!f)
        return pl_error_nomem(err);
    f->dir = strdup(dir);
    f->chunk = malloc(CHUNK_BYTES);
    if (!f->dir || !f->chunk)
        return pl_error_nomem(err);
    f->options = *options;
    f->ops = *ops;
    f->out = (struct pl_lines){.write = ops->write, .ctx = ops->ctx};
    f->first = true;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > OTHER_FILES)
        f->max_kept = PL_MIN((size_t)limit.rlim_cur - OTHER_FILES, (size_t)KEPT_MAX);
    *ret = PL_TAKE(f);
    return 0;
}

void pl_follow_destroy(struct pl_follow *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n; i++) {
        if (f->sources[i]->fd >= 0)
            close(f->sources[i]->fd);
        pl_buf_finish(&f->sources[i]->line.text);
        free(f->sources[i]);
    }
    free(f->sources);
    free(f->dir);
    free(f->chunk);
    pl_buf_finish(&f->out.text);
    free(f);
}

void pl_follow_label(struct pl_follow *f)
{
    f->out.label = true;
}

size_t pl_follow_n_files(const struct pl_follow *f)
{
    return f->n;
}

bool pl_follow_unreadable(const struct pl_follow *f)
{
    return f->unreadable;
}

bool pl_follow_several(const struct pl_follow *f)
{
    return f->n > 0 && f->sources[0]->line.rank != f->sources[f->n - 1]->line.rank;
}

/* ---- files ---- */

static void file_name(const struct source *s, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "rank-%u.%s", s->line.rank, s->err ? "err" : "out");
}

static void note(const struct pl_follow *f, const struct source *s, const char *what)
{
    _cleanup_free_ char *text = NULL;
    char name[NAME_SIZE];

    file_name(s, name);
    text = pl_strf("%s/%s %s", f->dir, name, what);
    if (text)
        f->ops.note(f->ops.ctx, text);
}

static void complain(struct pl_follow *f, struct source *s, int code)
{
    _cleanup_free_ char *what = pl_strf("cannot be read: %s", strerror(code));

    if (!s->complained && what)
        note(f, s, what);
    s->complained = f->unreadable = true;
}

/* Keeps the bytes before the place of reading. */
static void remember(struct source *s, const char *data, size_t len)
{
    size_t old = len >= KNOWN_BYTES ? 0 : PL_MIN(s->n_last, KNOWN_BYTES - len);
    size_t new = PL_MIN(len, (size_t)KNOWN_BYTES);

    memmove(s->last, s->last + s->n_last - old, old);
    memcpy(s->last + old, data + len - new, new);
    s->n_last = old + new;
}

/* True if the file still has the bytes that were read last. */
static bool is_same(const struct source *s, int fd)
{
    char now[KNOWN_BYTES];
    ssize_t n = s->n_last ? pread(fd, now, s->n_last, s->at - (off_t)s->n_last) : 0;

    return n < 0 || ((size_t)n == s->n_last && memcmp(now, s->last, s->n_last) == 0);
}

/* The number of bytes that may be shown: on NFS another host's writes may arrive in another order,
 * and those that are missing read as zeros. */
static size_t before_hole(const struct pl_follow *f, struct source *s, const char *data, size_t len)
{
    const char *zero = f->nfs ? memchr(data, '\0', len) : NULL;
    uint64_t now = pl_now_ns();

    if (!zero) {
        s->hole_ns = 0;
        return len;
    }
    if (zero > data)
        s->hole_ns = 0;
    if (!s->hole_ns)
        s->hole_ns = now;
    return now - s->hole_ns < PL_FOLLOW_HOLE_MS * 1000000ull ? (size_t)(zero - data) : len;
}

/* Reads up to `end`; once, or all. *ret_left: there is more. */
static int read_file(struct pl_follow *f,
                     struct source *s,
                     int fd,
                     off_t end,
                     bool all,
                     bool *ret_any,
                     bool *ret_left,
                     struct pl_error *err)
{
    *ret_left = false;
    while (s->at < end) {
        size_t want = (size_t)PL_MIN(end - s->at, (off_t)CHUNK_BYTES), len;
        ssize_t n = pread(fd, f->chunk, want, s->at);
        int r;

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != ESTALE)
            complain(f, s, errno);
        if (n <= 0)
            return 0;
        len = before_hole(f, s, f->chunk, (size_t)n);
        if (len == 0)
            return 0;
        remember(s, f->chunk, len);
        s->at += (off_t)len;
        *ret_any = true;
        r = pl_lines_add(&f->out, &s->line, f->chunk, len, err);
        if (r < 0)
            return r;
        *ret_left = s->at < end;
        if (!all)
            break;
    }
    return 0;
}

static bool is_end(char c)
{
    return c == '\n' || c == '\r';
}

/* The place at which the last lines begin, by the rules of pl_lines_add(): "\r\n" ends one line,
 * and a carriage return without text before it none. */
static off_t last_lines(struct pl_follow *f, int fd, off_t size, int64_t lines)
{
    int64_t left = -1; /* ends to be found; -1: neither text nor an end was seen */
    off_t at = size;
    char next = '\0';

    for (off_t from; at > 0; at = from) {
        size_t len = (size_t)PL_MIN(at, (off_t)CHUNK_BYTES - 1), before = (off_t)len < at;

        from = at - (off_t)len;
        if (pread(fd, f->chunk, before + len, from - (off_t)before) != (ssize_t)(before + len))
            return at;
        for (size_t i = before + len; i-- > before;) {
            char c = f->chunk[i], previous = i > 0 ? f->chunk[i - 1] : '\n';

            if (!is_end(c))
                left = left < 0 ? lines : left;
            else if (c == '\n' || (!is_end(previous) && next != '\n')) {
                left = left < 0 ? lines : left - 1;
                if (left == 0)
                    return from + (off_t)(i + 1 - before);
            }
            next = c;
        }
    }
    return 0;
}

/* The first look at a file. */
static void begin(struct pl_follow *f, struct source *s, int fd, const struct stat *st)
{
    s->known = true;
    s->dev = st->st_dev;
    s->ino = st->st_ino;
    s->at = 0;
    s->n_last = 0;
    if (f->first && f->options.lines >= 0)
        s->at = f->options.lines ? last_lines(f, fd, st->st_size, f->options.lines) : st->st_size;
    if (s->at > 0) {
        ssize_t n = pread(fd, f->chunk, (size_t)PL_MIN(s->at, (off_t)KNOWN_BYTES),
                          s->at - PL_MIN(s->at, (off_t)KNOWN_BYTES));

        remember(s, f->chunk, n > 0 ? (size_t)n : 0);
    }
}

static void forget_fd(struct pl_follow *f, struct source *s)
{
    if (s->fd < 0)
        return;
    f->n_kept--;
    close(PL_TAKE_FD(s->fd));
}

/* Reads what a file has that is not at its name any more. */
static int read_rest(struct pl_follow *f, struct source *s, bool *ret_any, struct pl_error *err)
{
    struct stat st;
    bool left;

    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return 0;
    return read_file(f, s, s->fd, st.st_size, true, ret_any, &left, err);
}

/* Looks for a change of the file, and sets the place of reading. *ret_idle: there is nothing new.
 */
static int look(struct pl_follow *f,
                struct source *s,
                int fd,
                const struct stat *st,
                bool *ret_any,
                bool *ret_idle,
                struct pl_error *err)
{
    bool changed = st->st_mtim.tv_sec != s->mtime.tv_sec || st->st_mtim.tv_nsec != s->mtime.tv_nsec;
    int r = 0;

    *ret_idle = false;
    s->mtime = st->st_mtim;
    if (!s->known) {
        begin(f, s, fd, st);
        return 0;
    }
    if (st->st_dev != s->dev || st->st_ino != s->ino) {
        r = read_rest(f, s, ret_any, err);
        if (r == 0)
            r = pl_lines_end(&f->out, &s->line, err);
        begin(f, s, fd, st);
        return r;
    }
    *ret_idle = st->st_size == s->at && !changed;
    if (*ret_idle || (st->st_size >= s->at && is_same(s, fd)))
        return 0;
    note(f, s, st->st_size < s->at ? "was truncated" : "was written anew");
    s->at = 0;
    s->n_last = 0;
    return pl_lines_end(&f->out, &s->line, err);
}

/* Reads one file. */
static int read_source(struct pl_follow *f,
                       int dir,
                       struct source *s,
                       bool *ret_any,
                       bool *ret_more,
                       struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    char name[NAME_SIZE];
    bool idle, left = false;
    struct stat st;
    int r;

    file_name(s, name);
    /* Not only regular files may stand there: nothing must block. */
    fd = pl_shared_open_at(dir, name);
    if (fd < 0 && fd != -ENOENT && fd != -ESTALE && fd != -EINVAL)
        complain(f, s, -fd);
    if (fd < 0 && fd != -EINVAL)
        return read_rest(f, s, ret_any, err);
    if (fd >= 0 && fstat(fd, &st) < 0)
        return 0;
    if (fd < 0 || !S_ISREG(st.st_mode)) {
        if (!s->complained)
            note(f, s, "is no regular file");
        s->complained = f->unreadable = true;
        return 0;
    }
    r = look(f, s, fd, &st, ret_any, &idle, err);
    if (r == 0 && !idle)
        r = read_file(f, s, fd, st.st_size, f->options.whole, ret_any, &left, err);
    if (r == 0 && f->options.whole)
        r = pl_lines_end(&f->out, &s->line, err);
    *ret_more |= left;
    forget_fd(f, s);
    if (f->n_kept < f->max_kept) {
        s->fd = PL_TAKE_FD(fd);
        f->n_kept++;
    }
    return r;
}

/* "rank-3.err": false for other names, and for files that are not wanted. */
static bool
parse_name(const struct pl_follow *f, const char *name, unsigned *ret_rank, bool *ret_err)
{
    static const char prefix[] = "rank-";
    const char *number = name + strlen(prefix);
    size_t digits;
    char text[12];
    int64_t rank;

    if (strncmp(name, prefix, strlen(prefix)) != 0)
        return false;
    digits = strspn(number, "0123456789");
    if (digits == 0 || digits >= sizeof(text) || (digits > 1 && *number == '0'))
        return false;
    memcpy(text, number, digits);
    text[digits] = '\0';
    *ret_err = strcmp(number + digits, ".err") == 0;
    if (!*ret_err && strcmp(number + digits, ".out") != 0)
        return false;
    if (pl_parse_int(text, 0, INT32_MAX, &rank, NULL) < 0)
        return false;
    *ret_rank = (unsigned)rank;
    return (*ret_err ? f->options.err : f->options.out) &&
           pl_output_ranks_contain(f->options.ranks, (unsigned)rank);
}

/* The index of the source, or the one at which it would stand. */
static size_t find(const struct pl_follow *f, unsigned rank, bool err)
{
    size_t low = 0, high = f->n;

    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct source *s = f->sources[mid];

        if (s->line.rank < rank || (s->line.rank == rank && s->err < err))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static int add_source(struct pl_follow *f, unsigned rank, bool err)
{
    size_t i = find(f, rank, err);
    struct source **more;
    struct source *s;

    if (i < f->n && f->sources[i]->line.rank == rank && f->sources[i]->err == err)
        return 0;
    more = realloc(f->sources, (f->n + 1) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    f->sources = more;
    s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->line.rank = rank;
    s->err = err;
    s->fd = -EBADF;
    memmove(more + i + 1, more + i, (f->n - i) * sizeof(*more));
    more[i] = s;
    f->n++;
    return 0;
}

static int list_files(struct pl_follow *f, DIR *dir)
{
    const struct dirent *entry;
    int r = 0;

    while (r == 0 && (entry = readdir(dir))) {
        unsigned rank;
        bool err;

        if (parse_name(f, entry->d_name, &rank, &err))
            r = add_source(f, rank, err);
    }
    return r;
}

bool pl_follow_look(struct pl_follow *f)
{
    DIR *dir = opendir(f->dir);

    if (dir) {
        list_files(f, dir); /* without memory: a pass reports it */
        closedir(dir);
    }
    return f->n > 0;
}

/* A prompt, or dots that a program prints one by one. */
static int show_parts(struct pl_follow *f, struct pl_error *err)
{
    uint64_t now = pl_now_ns();
    int r = 0;

    for (size_t i = 0; i < f->n && r == 0 && !f->out.label && !pl_follow_several(f); i++) {
        struct pl_line *line = &f->sources[i]->line;

        if (now - line->time_ns >= PL_FOLLOW_PART_MS * 1000000ull)
            r = pl_lines_show_part(&f->out, line, err);
    }
    return r;
}

int pl_follow_pass(struct pl_follow *f, bool *ret_any, bool *ret_more, struct pl_error *err)
{
    DIR *dir = opendir(f->dir);
    struct statfs fs;
    int r;

    *ret_any = *ret_more = false;
    if (!dir)
        return 0;
    f->nfs = fstatfs(dirfd(dir), &fs) == 0 && fs.f_type == NFS_SUPER_MAGIC;
    r = list_files(f, dir) < 0 ? pl_error_nomem(err) : 0;
    for (size_t i = 0; i < f->n && r == 0; i++)
        r = read_source(f, dirfd(dir), f->sources[i], ret_any, ret_more, err);
    closedir(dir);
    f->first = false;
    if (r == 0)
        r = show_parts(f, err);
    return r == 0 ? pl_lines_flush(&f->out, err) : r;
}

int pl_follow_end(struct pl_follow *f, struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < f->n && r == 0; i++)
        r = pl_lines_end(&f->out, &f->sources[i]->line, err);
    return r == 0 ? pl_lines_flush(&f->out, err) : r;
}
