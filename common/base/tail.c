/* SPDX-License-Identifier: MIT */
#include "common/base/tail.h"
#include "common/base/fs.h"
#include "common/base/shared_open.h"

#include <ctype.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_BYTES (1 << 20)
#define FRAMES_KEPT 2
#define MESSAGE_LINES 4 /* of an exception: its name, and what follows after the same prefix */

static const char traceback_head[] = "Traceback (most recent call last):";
static const char summary_head[] = "Root Cause (first observed failure)";
static const char round_end[] = "failed (exitcode: "; /* the agent's line before each restart */

static bool contains(const char *s, size_t len, const char *word)
{
    return memmem(s, len, word, strlen(word)) != NULL;
}

static bool begins(const char *s, size_t len, const char *word)
{
    return len >= strlen(word) && memcmp(s, word, strlen(word)) == 0;
}

/* Keeps the last lines, at least PL_TAIL_BYTES of them. */
static void limit(struct pl_buf *lines)
{
    if (lines->len > (size_t)2 * PL_TAIL_BYTES)
        pl_buf_consume(lines, lines->len - PL_TAIL_BYTES);
}

/* ---- native stack frames ---- */

/* True for "    @ 0x7f..." (glog), "frame #3: ..." (PyTorch) and "  Binary file "python3", at ..."
 * (faulthandler of Python 3.14, below the frames of Python), also after a prefix "[rank2]: ". */
static bool is_frame(const char *s, size_t len)
{
    const char *end = s + len, *bracket = len && *s == '[' ? memchr(s, ']', len) : NULL;

    if (bracket)
        s = bracket + 1 + (bracket + 1 < end && bracket[1] == ':');
    while (s < end && *s == ' ')
        s++;
    if (begins(s, (size_t)(end - s), "frame #") || begins(s, (size_t)(end - s), "Binary file \""))
        return true;
    if (s == end || *s++ != '@')
        return false;
    while (s < end && *s == ' ')
        s++;
    return begins(s, (size_t)(end - s), "0x");
}

static void add_skipped_frames(struct pl_buf *lines, unsigned frames)
{
    if (frames > FRAMES_KEPT)
        pl_buf_addf(lines, "    ... %u more stack frame%s\n", frames - FRAMES_KEPT,
                    frames - FRAMES_KEPT == 1 ? "" : "s");
}

/* ---- tracebacks ---- */

/* The traceback of this round after this prefix; NULL = none. */
static struct pl_traceback *find_traceback(struct pl_tail *t, const char *prefix, size_t len)
{
    for (size_t i = 0; i < t->n_tracebacks; i++) {
        struct pl_traceback *tb = &t->tracebacks[i];

        if (tb->round == t->round && tb->prefix_len == len && memcmp(tb->prefix, prefix, len) == 0)
            return tb;
    }
    return NULL;
}

/* A free place, else that of a traceback two rounds ago; NULL = none. */
static struct pl_traceback *find_place(struct pl_tail *t)
{
    if (t->n_tracebacks < PL_TAIL_TRACEBACKS)
        return &t->tracebacks[t->n_tracebacks++];
    for (size_t i = 0; i < t->n_tracebacks; i++)
        if (t->tracebacks[i].round + 1 < t->round)
            return &t->tracebacks[i];
    return NULL;
}

/* A line that holds "Traceback". A second one after the same prefix is of the same exception if the
 * first is not closed. */
static void begin_traceback(struct pl_tail *t, const char *line, size_t prefix_len)
{
    struct pl_traceback *tb = find_traceback(t, line, prefix_len);

    if (tb && !tb->closed && tb->message) {
        pl_buf_addf(&tb->text, "%.*s%s\n", (int)prefix_len, line, traceback_head);
        tb->message = 0;
    }
    if (tb || prefix_len >= sizeof(tb->prefix))
        return;
    tb = find_place(t);
    if (!tb)
        return;
    pl_buf_finish(&tb->text);
    *tb = (struct pl_traceback){.prefix_len = prefix_len, .round = t->round};
    memcpy(tb->prefix, line, prefix_len);
}

/* Lines between two tracebacks of one exception. */
static bool is_chain(const char *s, size_t len)
{
    return len == 0 || begins(s, len, "During handling of the above exception") ||
           begins(s, len, "The above exception was the direct cause");
}

static void continue_traceback(struct pl_traceback *tb, const char *line, size_t len)
{
    const char *rest = line + tb->prefix_len;
    size_t rest_len = len - tb->prefix_len;
    bool indented = rest_len && (*rest == ' ' || *rest == '\t');

    if (!indented || tb->message)
        tb->message++;
    /* Without a prefix, the next lines may be of any process. */
    if (tb->message > MESSAGE_LINES ||
        (tb->message > 1 && tb->prefix_len == 0 && !is_chain(rest, rest_len)) ||
        (tb->message > 1 && begins(rest, rest_len, "["))) {
        tb->closed = true;
        return;
    }
    if (pl_buf_add(&tb->text, line, len) == 0)
        pl_buf_addc(&tb->text, '\n');
    tb->cut |= tb->text.len > (size_t)2 * PL_TAIL_BYTES;
    limit(&tb->text);
}

/* The open traceback that this line belongs to: the one of the longest prefix. */
static struct pl_traceback *owner_of(struct pl_tail *t, const char *line, size_t len)
{
    struct pl_traceback *best = NULL;

    for (size_t i = 0; i < t->n_tracebacks; i++) {
        struct pl_traceback *tb = &t->tracebacks[i];

        if (tb->round == t->round && begins(line, len, tb->prefix) &&
            (!best || tb->prefix_len > best->prefix_len))
            best = tb;
    }
    return best && !best->closed ? best : NULL;
}

static void look_for_traceback(struct pl_tail *t, const char *line, size_t len)
{
    const char *head = memmem(line, len, traceback_head, strlen(traceback_head));
    struct pl_traceback *tb;

    if (contains(line, len, round_end))
        t->round++;
    if (head) {
        begin_traceback(t, line, (size_t)(head - line));
        return;
    }
    tb = owner_of(t, line, len);
    if (tb)
        continue_traceback(tb, line, len);
}

/* ---- adding ---- */

static void end_line(struct pl_tail *t)
{
    size_t len = PL_MIN(t->line.len, (size_t)PL_TAIL_BYTES);
    const char *line = pl_buf_str(&t->line) + (t->line.len - len);

    if (is_frame(line, len)) {
        t->frames++;
    } else {
        add_skipped_frames(&t->lines, t->frames);
        t->frames = 0;
    }
    if (t->frames <= FRAMES_KEPT && pl_buf_add(&t->lines, line, len) == 0)
        pl_buf_addc(&t->lines, '\n');
    limit(&t->lines);
    look_for_traceback(t, line, len);
    t->line.len = 0;
    t->returned = false;
}

/* Adds a part without a line feed. */
static void add_part(struct pl_tail *t, const char *s, size_t len)
{
    const char *last;

    if (!len)
        return;
    if (t->returned && *s != '\r')
        t->line.len = 0;
    t->returned = s[len - 1] == '\r';
    while (len && s[len - 1] == '\r')
        len--;
    last = len ? memrchr(s, '\r', len) : NULL;
    if (last) {
        len -= (size_t)(last + 1 - s);
        s = last + 1;
        t->line.len = 0;
    }
    pl_buf_add(&t->line, s, len);
    limit(&t->line);
}

void pl_tail_add(struct pl_tail *t, const char *data, size_t len)
{
    while (len) {
        const char *end = memchr(data, '\n', len);
        size_t part = end ? (size_t)(end - data) : len;

        add_part(t, data, part);
        if (!end)
            return;
        end_line(t);
        data += part + 1;
        len -= part + 1;
    }
}

/* ---- showing ---- */

/* The number after `key`, spaces and a colon, at or after s; -1 = none. */
static int64_t number_after(const char *s, const char *key)
{
    const char *at = strstr(s, key);

    if (!at)
        return -1;
    at += strlen(key);
    at += strspn(at, " :");
    return isdigit((unsigned char)*at) ? strtoll(at, NULL, 10) : -1;
}

/* True if a prefix names a worker: "[rank6]: " by its rank, others ("[default2]:") by its local
 * rank. */
static bool is_prefix_of(const struct pl_traceback *tb, int64_t rank, int64_t local_rank)
{
    const char *p = tb->prefix + 1;

    if (tb->prefix[0] != '[')
        return false;
    while (isalpha((unsigned char)*p) || *p == '_')
        p++;
    if (!isdigit((unsigned char)*p) || p[strspn(p, "0123456789")] != ']')
        return false;
    return strtoll(p, NULL, 10) ==
           (begins(tb->prefix, tb->prefix_len, "[rank") ? rank : local_rank);
}

/* The worker's traceback of the last round; NULL = it printed none. */
static const struct pl_traceback *
find_worker(const struct pl_tail *t, int64_t rank, int64_t local_rank)
{
    const struct pl_traceback *plain = NULL;
    bool prefixed = false; /* this release of PyTorch prints prefixes */

    for (size_t i = 0; i < t->n_tracebacks; i++) {
        const struct pl_traceback *tb = &t->tracebacks[i];

        if (tb->round + 1 < t->round || !tb->text.len)
            continue;
        if (is_prefix_of(tb, rank, local_rank))
            return tb;
        if (!tb->prefix_len && !strstr(pl_buf_str(&tb->text), "torch.distributed.elastic"))
            plain = tb;
        prefixed |= tb->prefix[0] == '[';
    }
    return prefixed ? NULL : plain;
}

/* Appends the last lines, within the limits. */
static int add_last(struct pl_buf *out, const char *data, size_t len, size_t max_lines)
{
    size_t from, lines = 0, bytes = PL_TAIL_BYTES - out->len;

    while (len && data[len - 1] == '\n')
        len--;
    for (from = len; from > 0 && len - from < bytes; from--)
        if (data[from - 1] == '\n' && ++lines == max_lines)
            break;
    return pl_buf_add_text(out, data + from, len - from);
}

static int add_traceback(struct pl_buf *out, const struct pl_traceback *tb)
{
    size_t lines = 0;
    bool cut;

    for (size_t i = 0; i < tb->text.len; i++)
        lines += tb->text.data[i] == '\n';
    cut = tb->cut || lines > PL_TAIL_LINES - 2 || tb->text.len > PL_TAIL_BYTES - out->len - 128;
    if (pl_buf_add_text(out, tb->prefix, tb->prefix_len) < 0 ||
        pl_buf_addf(out, "%s\n", traceback_head) < 0 ||
        (cut &&
         (pl_buf_add_text(out, tb->prefix, tb->prefix_len) < 0 || pl_buf_adds(out, "  ...\n") < 0)))
        return -ENOMEM;
    return add_last(out, tb->text.data, tb->text.len, PL_TAIL_LINES - 2 - cut);
}

/* all: the lines, with those that have not ended. */
static int
show(const struct pl_tail *t, const char *all, size_t len, int64_t agent, struct pl_buf *out)
{
    const char *summary = strstr(all, summary_head);
    int64_t rank = summary ? number_after(summary, "  rank ") : -1;
    const struct pl_traceback *tb;

    if (rank < 0)
        return add_last(out, all, len, PL_TAIL_LINES);
    tb = find_worker(t, rank, number_after(summary, "local_rank"));
    if (pl_buf_addf(out, "worker %lld of agent %lld:\n", (long long)rank, (long long)agent) < 0)
        return -ENOMEM;
    return tb ? add_traceback(out, tb) : add_last(out, all, len, PL_TAIL_LINES - 1);
}

char *pl_tail_text(const struct pl_tail *t, int64_t rank)
{
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};
    struct pl_buf out = {0};

    if (pl_buf_add(&all, pl_buf_str(&t->lines), t->lines.len) < 0)
        return NULL;
    add_skipped_frames(&all, t->frames);
    if (pl_buf_add(&all, pl_buf_str(&t->line), t->line.len) < 0 ||
        show(t, pl_buf_str(&all), all.len, rank, &out) < 0) {
        pl_buf_finish(&out);
        return NULL;
    }
    return pl_buf_take(&out);
}

void pl_tail_finish(struct pl_tail *t)
{
    pl_buf_finish(&t->lines);
    pl_buf_finish(&t->line);
    for (size_t i = 0; i < t->n_tracebacks; i++)
        pl_buf_finish(&t->tracebacks[i].text);
    t->n_tracebacks = 0;
}

char *pl_tail_file(const char *path, int64_t from, int64_t rank)
{
    _cleanup_close_ int fd = pl_shared_open(path);
    _cleanup_(pl_tail_finish) struct pl_tail tail = {0};
    char data[65536];
    struct stat st;
    ssize_t n = 0;
    off_t at;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    at = from > 0 && from <= st.st_size ? (off_t)from : 0;
    for (at = PL_MAX(st.st_size - (off_t)FILE_BYTES, at); at < st.st_size; at += n) {
        n = pread(fd, data, sizeof(data), at);
        if (n <= 0)
            break;
        pl_tail_add(&tail, data, (size_t)n);
    }
    return n < 0 ? NULL : pl_tail_text(&tail, rank);
}
