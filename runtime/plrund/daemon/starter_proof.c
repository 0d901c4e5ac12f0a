/* SPDX-License-Identifier: MIT */
/* A starter's hello makes a rank present, and its connection reports the rank's start and end. The
 * kernel tells which process connected (unix(7), SO_PEERCRED), so that a program of one rank cannot
 * pose as the starter of another. */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/proto/messages.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/plrund/daemon/daemon.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#define DEPTH_MAX 64 /* ancestors of a process */

/* 0 if the process is gone, or has no parent that we can see. */
static pid_t parent_of(pid_t pid)
{
    _cleanup_free_ char *path = pl_strf("/proc/%d/stat", (int)pid), *text = NULL;
    const char *p;
    int parent;

    if (!path || pl_file_read(path, 4096, &text, NULL, NULL) < 0)
        return 0;
    p = strrchr(text, ')'); /* the name before it may hold any bytes */
    return p && sscanf(p, ") %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

static bool guards_a_rank(const struct pl_daemon *d, pid_t pid)
{
    for (unsigned i = 0; i < d->n_present; i++)
        if (d->ranks[i].guard_pid == pid)
            return true;
    return false;
}

/* plrun is the subreaper of its rank: whatever the rank starts stays a descendant of plrun. */
static bool is_of_a_rank(const struct pl_daemon *d, pid_t pid)
{
    pid = parent_of(pid);
    for (int depth = 0; pid > 1 && depth < DEPTH_MAX; depth++, pid = parent_of(pid))
        if (guards_a_rank(d, pid))
            return true;
    return false;
}

bool pl_rank_may_have_signalled(const struct pl_rank *rank, int64_t pid)
{
    if (pid <= 1 || pid > INT32_MAX || pid == getpid()) /* a plrun has started us */
        return false;
    if (rank->starter_pid != rank->guard_pid) /* the number is of another pid namespace */
        return false;
    /* slurmstepd cancels a step, or the executor of a local run, and both live until the step has
     * ended. A process that is gone was neither: a rank's sub-shell may run the trap of its script
     * and end by its own signal. */
    return is_of_a_rank(rank->daemon, (pid_t)pid) || (kill((pid_t)pid, 0) < 0 && errno == ESRCH);
}

/* The pid in this message of slurmstepd if it is about this rank, else 0. */
static pid_t pid_in(const json_t *message, unsigned rank)
{
    struct pl_msg m;

    if (pl_msg_read(message, PL_WIRE_RANK_TO_DAEMON, &m) < 0 || m.type != PL_MSG_RANK_SPAWNED ||
        m.rank_spawned.rank != (int64_t)rank || m.rank_spawned.pid > INT32_MAX)
        return 0;
    return m.rank_spawned.pid > 1 ? (pid_t)m.rank_spawned.pid : 0;
}

/* The same of what slurmstepd has sent and the daemon has not read yet. */
static pid_t unread_pid(const struct pl_daemon *d, unsigned rank)
{
    _cleanup_(pl_buf_finish) struct pl_buf in = {0};
    char data[16384];
    ssize_t n = recv(d->control_fd, data, sizeof(data), MSG_PEEK | MSG_DONTWAIT);
    pid_t pid = 0;

    if (n <= 0 || pl_buf_add(&in, d->control_in.data, d->control_in.len) < 0 ||
        pl_buf_add(&in, data, (size_t)n) < 0)
        return 0;
    for (char *p = in.data, *newline; !pid && (newline = strchr(p, '\n')); p = newline + 1) {
        _cleanup_(json_decrefp) json_t *message = NULL;

        if (pl_json_parse(p, (size_t)(newline - p), PL_RANK_LINE_MAX, &message, NULL) == 0)
            pid = pid_in(message, rank);
    }
    return pid;
}

/* The process that slurmstepd has named as this rank's, before the rank's hello; 0 = none. */
static pid_t named_pid(const struct pl_daemon *d, unsigned rank)
{
    json_t *message;
    size_t i;

    json_array_foreach (d->early, i, message)
        if (pid_in(message, rank))
            return pid_in(message, rank);
    return unread_pid(d, rank);
}

bool pl_rank_may_start(const struct pl_rank_conn *c, unsigned rank)
{
    const struct pl_daemon *d = c->daemon;
    pid_t named;

    if (c->pid <= 0) /* of another pid namespace: nothing is known */
        return true;
    if (!d->step.plugin)
        return !is_of_a_rank(d, c->pid);
    named = named_pid(d, rank); /* slurmstepd names its tasks before they run */
    return named == 0 || named == c->pid;
}
