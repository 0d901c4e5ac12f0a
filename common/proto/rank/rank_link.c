/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/proto/rank/rank_link.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/trace.h"
#include "common/proto/rank/minijson.h"

#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

/* A wait is counted in slices of this length: one that is suspended counts for no more. */
#define SLICE_MS 1000u

/* The places if the usual folder is not ours, in order; every rank of a node comes to the same. */
static char *other_folder(unsigned number)
{
    const char *session = pl_env(PL_ENV_XDG_RUNTIME_DIR);
    _cleanup_free_ char *home = NULL;

    if (number == 0)
        return session && session[0] == '/' ? pl_path_join(session, "plume") : NULL;
    home = pl_home_dir(NULL);
    return home ? pl_path_join(home, "sockets") : NULL;
}

/* Another user may make /tmp/plume-UID first, or /tmp may be read-only: neither stops the steps. */
static int choose_folder(char **ret, struct pl_error *err)
{
    const char *wanted = pl_env_text(PL_ENV_PLUME_RUNTIME_DIR);
    _cleanup_free_ char *dir =
        wanted ? strdup(wanted) : pl_strf("/tmp/plume-%u", (unsigned)geteuid());
    struct pl_error why = {0};
    int r;

    if (!dir)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_mkdir_private(dir, wanted ? err : &why);
    if (r < 0 && wanted)
        return r;
    if (r == 0 && !wanted && access(dir, W_OK) < 0) /* a node's disk that has failed, for one */
        r = pl_error_errno(&why, errno, "cannot write to '%s'", dir);
    if (r == 0) {
        *ret = PL_TAKE(dir);
        return 0;
    }
    for (unsigned i = 0; i < 2; i++) {
        char *other = other_folder(i);

        if (other && pl_mkdir_private(other, NULL) == 0) {
            pl_error_set(err, r, "%s; the sockets are in '%s'", why.text, other);
            *ret = other;
            return 1;
        }
        free(other);
    }
    return pl_error_set(err, r, "%s; set PLUME_RUNTIME_DIR to a folder of your own", why.text);
}

int pl_rank_socket_path(const char *job,
                        const char *step,
                        unsigned attempt,
                        unsigned node_id,
                        char **ret,
                        struct pl_error *err)
{
    _cleanup_free_ char *dir = NULL;
    char *path;
    int r = choose_folder(&dir, err);

    if (r < 0)
        return r;
    path = pl_strf("%s/%s.%s.%u.%u", dir, job, step, attempt, node_id);
    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
        free(path);
        return pl_error_set(err, -ENAMETOOLONG,
                            "socket path below '%s' is too long: set PLUME_RUNTIME_DIR to a short "
                            "folder",
                            dir);
    }
    *ret = path;
    return r;
}

bool pl_rank_socket_is_of(const char *path, const char *job, const char *step)
{
    const char *name = path ? strrchr(path, '/') : NULL;
    char start[96];
    int n = snprintf(start, sizeof(start), "/%s.%s%s", job, step ? step : "", step ? "." : "");

    return name && n < (int)sizeof(start) && strncmp(name, start, (size_t)n) == 0;
}

const char *const pl_rank_own_variables[] = {
    "RANK",          "WORLD_SIZE",
    "LOCAL_RANK",    "LOCAL_WORLD_SIZE",
    "NODE_RANK",     "GROUP_RANK",
    "MASTER_ADDR",   "MASTER_PORT",
    "NCCL_RAS_ADDR", "JAX_COORDINATOR_ADDRESS",
    "PLUME_RUNTIME", "PLUME_NODE_ADDR",
    "PLUME_SOCKET",  NULL,
};

bool pl_rank_variable_is_ours(const char *name, const char *value, const char *master_addr)
{
    size_t len = master_addr ? strlen(master_addr) : 0;

    if (strcmp(name, "NCCL_RAS_ADDR") == 0)
        return strncmp(value, "localhost:", 10) == 0;
    if (strcmp(name, "JAX_COORDINATOR_ADDRESS") == 0) {
        value += *value == '[';
        return len && strncmp(value, master_addr, len) == 0;
    }
    return true;
}

static int check_peer(int fd, const char *path, struct pl_error *err)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return pl_error_errno(err, errno, "cannot check who listens at '%s'", path);
    if (cred.uid != geteuid())
        return pl_error_set(err, -EPERM, "socket '%s' is served by another user (uid %u)", path,
                            (unsigned)cred.uid);
    return 0;
}

/* A container, and under the plugin a task with a /tmp of its own, may lack the node's folder; and
 * a folder of the job's own goes with the job. */
static int no_daemon(const char *path, struct pl_error *err)
{
    const char *name = strrchr(path, '/');
    _cleanup_free_ char *dir = name ? strndup(path, (size_t)(name - path)) : NULL;

    if (!dir || !*dir || access(dir, F_OK) == 0 || errno != ENOENT)
        return pl_error_set(err, -ETIMEDOUT, "no node daemon at '%s'", path);
    return pl_error_set(
        err, -ETIMEDOUT,
        "no node daemon at '%s': this process finds no such folder. Its step has ended, or "
        "the folder is not mounted here: mount it into the container; if jobs have a /tmp of their "
        "own, see 'runtime_dir' in spank_plume(8)",
        path);
}

int pl_rank_link_open(struct pl_rank_link *link,
                      const char *path,
                      unsigned timeout_ms,
                      struct pl_error *err)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct timespec pause = {0, 1000000};
    uint64_t waited_ns = 0; /* counted: a suspended job has not waited */
    int r;

    if (strlen(path) >= sizeof(addr.sun_path))
        return pl_error_set(err, -ENAMETOOLONG, "socket path '%s' is too long", path);
    memcpy(addr.sun_path, path, strlen(path) + 1);
    for (;;) {
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
            return pl_error_errno(err, errno, "cannot make a socket");
        if (!PL_FAULT("connect", ECONNREFUSED) &&
            connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0) {
            r = check_peer(fd, path, err);
            if (r < 0)
                return r;
            *link = (struct pl_rank_link){.fd = PL_TAKE_FD(fd)};
            return 0;
        }
        r = -errno;
        if (r != -ENOENT && r != -ECONNREFUSED && r != -EAGAIN && r != -EINTR)
            return pl_error_errno(err, r, "cannot connect to the node daemon at '%s'", path);
        if (waited_ns >= (uint64_t)timeout_ms * 1000000u)
            return no_daemon(path, err);
        waited_ns += (uint64_t)pause.tv_nsec;
        nanosleep(&pause, NULL); /* a socket file has no event to wait for that is cheaper */
        if (pause.tv_nsec < 50000000)
            pause.tv_nsec += pause.tv_nsec / 2;
    }
}

void pl_rank_link_close(struct pl_rank_link *link)
{
    if (link->fd >= 0)
        close(link->fd);
    pl_buf_finish(&link->in);
    *link = (struct pl_rank_link)PL_RANK_LINK_INIT;
}

int pl_rank_link_hello(struct pl_rank_link *link,
                       enum pl_rank_role role,
                       unsigned rank,
                       unsigned local_rank,
                       pid_t pid,
                       bool guarded,
                       const int *fds,
                       size_t n_fds,
                       struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    int r = pl_rank_line_hello(&out, role, rank, local_rank, pid, guarded);

    if (r == 0)
        r = pl_buf_addc(&out, '\n');
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    pl_trace_line("send", "plrund", out.data, out.len - 1);
    r = pl_send_fds(link->fd, out.data, out.len, fds, n_fds);
    return r < 0 ? pl_error_errno(err, r, "cannot greet the node daemon") : 0;
}

int pl_rank_link_send(struct pl_rank_link *link, const char *line, struct pl_error *err)
{
    _cleanup_free_ char *text = pl_strf("%s\n", line);
    int r;

    if (!text)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (strlen(text) > PL_RANK_LINE_MAX)
        return pl_error_set(err, -EMSGSIZE, "message of %zu bytes is too long", strlen(text));
    pl_trace_line("send", "plrund", line, strlen(line));
    r = pl_send_fds(link->fd, text, strlen(text), NULL, 0);
    return r < 0 ? pl_error_errno(err, r, "cannot write to the node daemon") : 0;
}

/* r: what the line's writer returned. */
static int
send_line(struct pl_rank_link *link, const struct pl_buf *line, int r, struct pl_error *err)
{
    return r < 0 ? pl_error_set(err, r, "out of memory")
                 : pl_rank_link_send(link, pl_buf_str(line), err);
}

int pl_rank_link_spawned(struct pl_rank_link *link, pid_t pid, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    return send_line(link, &line, pl_rank_line_spawned(&line, -1, pid), err);
}

int pl_rank_link_signalled(struct pl_rank_link *link,
                           int signal,
                           pid_t sender,
                           struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    return send_line(link, &line, pl_rank_line_signalled(&line, signal, sender), err);
}

int pl_rank_link_exited(struct pl_rank_link *link,
                        int status,
                        int term_default,
                        struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    return send_line(link, &line, pl_rank_line_exited(&line, -1, status, pl_now_ns(), term_default),
                     err);
}

int pl_rank_link_offer(struct pl_rank_link *link, const char *line)
{
    _cleanup_free_ char *text = pl_strf("%s\n", line);
    size_t len = text ? strlen(text) : 0;
    ssize_t n;

    if (!text || link->fd < 0 || len > PL_RANK_LINE_MAX) {
        link->dropped++;
        return 0;
    }
    pl_trace_line("send", "plrund", line, len - 1);
    n = send(link->fd, text, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
        link->dropped++;
        return 0;
    }
    /* A line that went half must be finished, or the next one would be garbled. */
    if ((size_t)n < len && pl_send_fds(link->fd, text + n, len - (size_t)n, NULL, 0) < 0)
        link->dropped++;
    return 0;
}

static uint64_t whole_wait(unsigned timeout_ms)
{
    return timeout_ms == UINT_MAX ? UINT64_MAX : timeout_ms;
}

/* *left_ms is what is left of a wait: it is made shorter. */
static int receive(struct pl_rank_link *link, uint64_t *left_ms, char **ret, struct pl_error *err)
{
    for (;;) {
        char *newline = link->in.len ? memchr(link->in.data, '\n', link->in.len) : NULL;
        struct pollfd p = {.fd = link->fd, .events = POLLIN};
        uint64_t slice_ms = PL_MIN(*left_ms, (uint64_t)SLICE_MS), begun_ns;
        ssize_t n;

        if (newline) {
            size_t len = (size_t)(newline - link->in.data);
            char *line = strndup(link->in.data, len);

            if (!line)
                return pl_error_set(err, -ENOMEM, "out of memory");
            pl_buf_consume(&link->in, len + 1);
            pl_trace_line("receive", "plrund", line, len);
            *ret = line;
            return 0;
        }
        if (link->in.len > PL_WORLD_LINE_MAX)
            return pl_error_set(err, -EMSGSIZE, "the node daemon sent an overlong line");
        begun_ns = pl_now_ns();
        n = poll(&p, 1, *left_ms == UINT64_MAX ? -1 : (int)slice_ms);
        if (*left_ms != UINT64_MAX)
            *left_ms -= n == 0 ? slice_ms : PL_MIN((pl_now_ns() - begun_ns) / 1000000u, slice_ms);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pl_error_errno(err, errno, "cannot wait for the node daemon");
        if (n == 0 && *left_ms)
            continue;
        if (n == 0)
            return pl_error_set(err, -ETIMEDOUT, "the node daemon did not answer in time");
        if (pl_buf_reserve(&link->in, 4096) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
        n = recv(link->fd, link->in.data + link->in.len, link->in.cap - link->in.len - 1, 0);
        if (n < 0 && (errno == EINTR || errno == EAGAIN))
            continue;
        if (n < 0)
            return pl_error_errno(err, errno, "cannot read from the node daemon");
        if (n == 0)
            return pl_error_set(err, -EPIPE, "the node daemon closed the connection");
        link->in.len += (size_t)n;
        link->in.data[link->in.len] = '\0';
    }
}

int pl_rank_link_recv(struct pl_rank_link *link,
                      unsigned timeout_ms,
                      char **ret,
                      struct pl_error *err)
{
    uint64_t left_ms = whole_wait(timeout_ms);

    return receive(link, &left_ms, ret, err);
}

static int set_process_env(void *ctx, const char *name, const char *value, bool overwrite)
{
    (void)ctx;
    return setenv(name, value, overwrite) < 0 ? -errno : 0;
}

static int apply_env(const char *line,
                     const char *key,
                     bool overwrite,
                     int (*set)(void *, const char *, const char *, bool),
                     void *ctx)
{
    struct pl_mini_value list, item;
    size_t pos = 0;
    int r = pl_mini_find(line, key, &list);

    if (r == -ENOENT)
        return 0;
    while (r >= 0 && (r = pl_mini_next(&list, &pos, &item)) == 1) {
        _cleanup_free_ char *entry = NULL;
        char *equals;

        r = pl_mini_string(&item, &entry);
        if (r < 0)
            break;
        equals = strchr(entry, '=');
        if (!equals)
            return -EINVAL;
        *equals = '\0';
        r = set(ctx, entry, equals + 1, overwrite);
    }
    return r;
}

int pl_rank_link_world(struct pl_rank_link *link,
                       unsigned timeout_ms,
                       int (*set)(void *ctx, const char *name, const char *value, bool overwrite),
                       void *ctx,
                       struct pl_error *err)
{
    uint64_t left_ms = whole_wait(timeout_ms);

    if (!set)
        set = set_process_env;
    for (;;) {
        _cleanup_free_ char *line = NULL, *text = NULL;
        int r = receive(link, &left_ms, &line, err);

        if (r < 0)
            return r;
        if (pl_mini_is(line, "refused")) {
            if (pl_mini_get_string(line, "text", &text) < 0)
                return pl_error_set(err, -ECONNABORTED, "the node daemon refused");
            return pl_error_set(err, -ECONNABORTED, "%s", text);
        }
        if (!pl_mini_is(line, "world"))
            continue;
        r = apply_env(line, "env", true, set, ctx);
        if (r >= 0)
            r = apply_env(line, "defaults", false, set, ctx);
        return r < 0 ? pl_error_set(err, r, "the node daemon sent a bad world") : 0;
    }
}

/* Builds one block: pointers first, then strings. */
static int strings_block(const struct pl_mini_value *list, char ***ret, size_t *ret_n)
{
    struct pl_mini_value item;
    size_t n = 0, pos = 0, at;
    char **block;
    int r;

    while ((r = pl_mini_next(list, &pos, &item)) == 1)
        n++;
    if (r < 0)
        return r;
    block = malloc(n * sizeof(char *) + list->len + 1);
    if (!block)
        return -ENOMEM;
    pos = 0;
    at = n * sizeof(char *);
    for (size_t i = 0; i < n; i++) {
        _cleanup_free_ char *s = NULL;

        r = pl_mini_next(list, &pos, &item);
        if (r == 1)
            r = pl_mini_string(&item, &s);
        if (r < 0) {
            free(block);
            return r;
        }
        block[i] = (char *)block + at;
        memcpy(block[i], s, strlen(s) + 1);
        at += strlen(s) + 1;
    }
    *ret = block;
    *ret_n = n;
    return 0;
}

int pl_rank_link_exchange(struct pl_rank_link *link,
                          const char *name,
                          const char *value,
                          unsigned timeout_ms,
                          char ***ret,
                          size_t *ret_n,
                          struct pl_error *err)
{
    uint64_t left_ms = whole_wait(timeout_ms);
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    int r;

    if (strlen(name) > PL_RANK_EXCHANGE_MAX || strlen(value) > PL_RANK_EXCHANGE_MAX)
        return pl_error_set(err, -EMSGSIZE,
                            "exchange '%.32s': a name or value has at most %d bytes", name,
                            PL_RANK_EXCHANGE_MAX);
    r = send_line(link, &out, pl_rank_line_exchange(&out, name, value), err);
    while (r == 0) {
        _cleanup_free_ char *line = NULL, *which = NULL;
        struct pl_mini_value list;

        r = receive(link, &left_ms, &line, err);
        if (r < 0)
            return pl_error_wrap(err, r, "exchange '%s'", name);
        if (!pl_mini_is(line, "exchanged") || pl_mini_get_string(line, "name", &which) < 0 ||
            strcmp(which, name) != 0)
            continue;
        if (pl_mini_find(line, "values", &list) < 0 || strings_block(&list, ret, ret_n) < 0)
            return pl_error_set(err, -EPROTO, "the node daemon sent a bad answer to exchange '%s'",
                                name);
        return 0;
    }
    return r;
}

int pl_rank_link_metrics(struct pl_rank_link *link,
                         int64_t step,
                         int64_t own_us,
                         const char *const *names,
                         const double *values,
                         size_t n)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    int r = pl_rank_line_metrics(&out, step, own_us, names, values, n);

    if (r < 0)
        return r;
    return pl_rank_link_offer(link, pl_buf_str(&out));
}

int pl_rank_link_phase(struct pl_rank_link *link, const char *phase, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    return send_line(link, &line, pl_rank_line_phase(&line, phase), err);
}

int pl_rank_link_fact(struct pl_rank_link *link,
                      const char *key,
                      const char *value,
                      struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};

    return send_line(link, &line, pl_rank_line_fact(&line, key, value), err);
}
