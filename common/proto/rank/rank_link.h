/* SPDX-License-Identifier: MIT */
/* The rank's side of the socket to its node daemon (plume-protocol(7), part "rank"): one JSON
 * object a line over a UNIX socket. Used by plrun (which starts a rank), by the SPANK plugin (in
 * task_init) and by programs: the engine, and whatever reports metrics. libc only; never logs. */
#ifndef PL_COMMON_PROTO_RANK_RANK_LINK_H
#define PL_COMMON_PROTO_RANK_RANK_LINK_H

#include "common/base/buf.h"
#include "common/base/error.h"
#include "common/proto/rank/rank_line.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_RANK_LINE_MAX (64 * 1024)    /* bytes of one line to the daemon, newline included */
#define PL_WORLD_LINE_MAX (1024 * 1024) /* bytes of one line from the daemon */

struct pl_rank_link {
    int fd;           /* -EBADF when closed */
    struct pl_buf in; /* bytes read, not yet a line */
    uint64_t dropped; /* metric lines not sent because the daemon was slow */
};

#define PL_RANK_LINK_INIT                                                                          \
    {                                                                                              \
        .fd = -EBADF                                                                               \
    }

/* The path at which the daemon of this job, step, attempt and node listens: a short one inside the
 * user's private folder ($PLUME_RUNTIME_DIR, else /tmp/plume-UID). The folder is made (0700) or
 * checked. If /tmp/plume-UID is another user's, $XDG_RUNTIME_DIR/plume takes its place, or
 * ~/.plume/sockets: then 1, and err tells it. *ret is freed by the caller. -EPERM: no such folder
 * is ours. */
int pl_rank_socket_path(const char *job,
                        const char *step,
                        unsigned attempt,
                        unsigned node_id,
                        char **ret,
                        struct pl_error *err);

/* True if that is such a path, of this job and step; step NULL: of any step of the job. */
bool pl_rank_socket_is_of(const char *path, const char *job, const char *step);

/* Variables of a rank that a step which it starts must not inherit; ends with NULL. */
extern const char *const pl_rank_own_variables[];

/* False if such a variable has a value that the user has set. master_addr: the rank's MASTER_ADDR,
 * may be NULL. */
bool pl_rank_variable_is_ours(const char *name, const char *value, const char *master_addr);

/* Connects to the socket at `path`. While it does not exist or nobody listens (ENOENT,
 * ECONNREFUSED), tries again until timeout_ms is over: -ETIMEDOUT. The listener must run as the
 * effective user (SO_PEERCRED), or -EPERM. */
int pl_rank_link_open(struct pl_rank_link *link,
                      const char *path,
                      unsigned timeout_ms,
                      struct pl_error *err);
void pl_rank_link_close(struct pl_rank_link *link);

/* Sends the hello line. For a starter, fds are {out_read, out_real, err_read, err_real}: the read
 * ends of the pipes that the rank writes as fds 1 and 2, and what these were before; the daemon
 * copies one to the other. n_fds is 4, or 0 for no capture (a terminal).
 * guarded: the sender stays and will report the rank's end itself (plrun; not the plugin). */
int pl_rank_link_hello(struct pl_rank_link *link,
                       enum pl_rank_role role,
                       unsigned rank,
                       unsigned local_rank,
                       pid_t pid,
                       bool guarded,
                       const int *fds,
                       size_t n_fds,
                       struct pl_error *err);

/* Sends one line; `line` is a whole JSON object without its newline. Blocks. -EPIPE, -EMSGSIZE. */
int pl_rank_link_send(struct pl_rank_link *link, const char *line, struct pl_error *err);

/* As pl_rank_link_send(), but never blocks: a line that a slow daemon does not take is dropped and
 * counted, and 0 is returned. */
int pl_rank_link_offer(struct pl_rank_link *link, const char *line);

/* Receives one line (NUL-terminated, without newline; caller frees). -ETIMEDOUT, -EPIPE at the end
 * of the connection, -EMSGSIZE. timeout_ms 0 does not wait; UINT_MAX waits for ever. */
int pl_rank_link_recv(struct pl_rank_link *link,
                      unsigned timeout_ms,
                      char **ret,
                      struct pl_error *err);

/* A guarding starter reports that its child runs, that it got a signal from this process (0: not
 * known), and that the child ended with this wait status now. term_default: see
 * pl_rank_line_exited(). */
int pl_rank_link_spawned(struct pl_rank_link *link, pid_t pid, struct pl_error *err);
int pl_rank_link_signalled(struct pl_rank_link *link,
                           int signal,
                           pid_t sender,
                           struct pl_error *err);
int pl_rank_link_exited(struct pl_rank_link *link,
                        int status,
                        int term_default,
                        struct pl_error *err);

/* Waits for the daemon's "world" and applies it to the environment through setenv(): entries of
 * "env" always, those of "defaults" if the variable is not set. `set` may be NULL (setenv(3)).
 * -ETIMEDOUT; -ECONNABORTED: the daemon refused, err has its text. */
int pl_rank_link_world(struct pl_rank_link *link,
                       unsigned timeout_ms,
                       int (*set)(void *ctx, const char *name, const char *value, bool overwrite),
                       void *ctx,
                       struct pl_error *err);

/* Gives `value` under `name` to all ranks and receives everybody's, by rank: an all-gather of short
 * strings through the hub, for rendezvous. All ranks must call it with the same name. *ret is one
 * block (array of world_size strings), freed with free(). -ETIMEDOUT, -EPIPE; -EMSGSIZE: more than
 * PL_RANK_EXCHANGE_MAX. */
int pl_rank_link_exchange(struct pl_rank_link *link,
                          const char *name,
                          const char *value,
                          unsigned timeout_ms,
                          char ***ret,
                          size_t *ret_n,
                          struct pl_error *err);

/* Reports metrics of a step (see offer); names[i] as pl_name_valid(), values may be NaN or inf.
 * own_us: of a step, without waiting for other ranks; -1 = not known. */
int pl_rank_link_metrics(struct pl_rank_link *link,
                         int64_t step,
                         int64_t own_us,
                         const char *const *names,
                         const double *values,
                         size_t n);

/* Names what delays the next step; "": nothing any more. Blocks. */
int pl_rank_link_phase(struct pl_rank_link *link, const char *phase, struct pl_error *err);

/* States a fact about this rank, kept with the result (e.g. "param_hash"). Blocks. */
int pl_rank_link_fact(struct pl_rank_link *link,
                      const char *key,
                      const char *value,
                      struct pl_error *err);

#endif
