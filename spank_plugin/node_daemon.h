/* SPDX-License-Identifier: MIT */
/* plrund as a process that slurmstepd starts, feeds and ends (plume-protocol(7), part "control").
 * No Slurm in here. Called by one thread of slurmstepd, which has others. */
#ifndef PL_SPANK_PLUGIN_NODE_DAEMON_H
#define PL_SPANK_PLUGIN_NODE_DAEMON_H

#include "common/base/error.h"
#include "common/base/process.h"

#include <sys/types.h>

/*
 *   (none) --start()--> running --stop()--> (none)
 *
 * start() returns when the daemon has said where it listens; when it says that it failed, ends or
 * is silent, it is killed and there is none. The daemon ends by itself at the end of the control
 * socket; whoever ignores that is killed.
 */
struct pl_node_daemon {
    int control; /* our end; -EBADF when there is no daemon */
    struct pl_process process;
    char *socket;  /* where it listens, as it says */
    int socket_fd; /* that socket file (O_PATH): "/proc/self/fd/N" also reaches it from a mount
                      namespace that has another /tmp (job_container/tmpfs, containers) */
    int said;      /* what it writes to its stderr; see daemon_said.h */
    int end; /* 0 once it has closed its socket, 1 once it has said that it is busy, else < 0 */
};

#define PL_NODE_DAEMON_INIT                                                                        \
    {                                                                                              \
        .control = -EBADF, .process = PL_PROCESS_INIT, .socket_fd = -EBADF, .said = -EBADF,        \
        .end = -EAGAIN                                                                             \
    }

/* Whom the daemon runs as. Applied only where the real user is root, who also makes the folder
 * runtime_dir/UID if runtime_dir (NULL: none) is a folder of root's that others cannot change. */
struct pl_daemon_user {
    const char *runtime_dir;
    const char
        *namespace; /* file of the mount namespace in which the daemon runs; NULL: the node's */
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t n_groups;
    mode_t umask;
};

/* Starts the program `path` (argv: plrund --control-fd 3) with nothing but `env`, fd 3 and a
 * pipe as its stderr, and waits at most timeout_ms until it is ready and its socket is open. The
 * path of the socket is the daemon's word: a child that runs as the user opens it, as it may lie on
 * a file system that does not answer. May be called with the effective user already dropped, as
 * long as the real one is root. -ETIMEDOUT, -EPIPE (it ended), -ECONNABORTED (it said why), -ENOENT
 * and others from execve(2). */
int pl_node_daemon_start(struct pl_node_daemon *daemon,
                         const char *path,
                         char *const *env,
                         const struct pl_daemon_user *user,
                         unsigned timeout_ms,
                         struct pl_error *err);

/* Tells it of a task's start and end (status as from wait(2)). Never blocks; a daemon that does
 * not read loses the message, one that is gone ignores it. */
void pl_node_daemon_spawned(struct pl_node_daemon *daemon, unsigned rank, pid_t pid);
void pl_node_daemon_exited(struct pl_node_daemon *daemon, unsigned rank, int status);

/* After the last task's end: says goodbye, has a stopped daemon go on, and waits at most timeout_ms
 * until the daemon has written what follows and closed its socket, or says that it is busy. 0, also
 * where there is none; -ETIMEDOUT. */
int pl_node_daemon_settle(struct pl_node_daemon *daemon, unsigned timeout_ms);

/* Says goodbye, waits at most timeout_ms for its end, then kills it; but leaves it alone where it
 * answers {"type":"busy"}: a hub that other nodes still need ends by itself, and holds nothing that
 * Slurm waits for. An end is the end of its process, not of its socket. 0, -ETIMEDOUT where it had
 * to be killed, another error where it could not be. Frees everything. */
int pl_node_daemon_stop(struct pl_node_daemon *daemon, unsigned timeout_ms);

/* For a forked task: closes its copies but socket_fd, so that the daemon sees slurmstepd's end. */
void pl_node_daemon_forget(struct pl_node_daemon *daemon);

#endif
