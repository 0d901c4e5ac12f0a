/* SPDX-License-Identifier: MIT */
/* Programs and calls that run in a child of ours for a bounded time. Never through a shell. */
#ifndef PL_COMMON_BASE_CHILD_H
#define PL_COMMON_BASE_CHILD_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <sys/types.h>

#define PL_CHILD_OUTPUT_MAX (64u << 20) /* bytes kept of each stream; more is an error */

struct pl_child {
    int status; /* wait status */
    struct pl_buf out, err;
};

void pl_child_finish(struct pl_child *child);

/* The first line of its stderr that is no warning, as "plstat: warning: ..."; the first one if all
 * are. "" if there is none. Returns its length, without the newline. */
int pl_child_said(const struct pl_child *child, const char **ret);

/* Gives SIGCHLD its default action back. A caller that ignores it, as some daemons do, passes that
 * on: then the kernel takes the ends of our children, and their exit codes with them. A program
 * that waits for children calls this first. */
void pl_child_init(void);

/* Runs argv (argv[0] is looked up in PATH) with stdin from /dev/null and both outputs captured.
 * env         NULL-terminated "NAME=VALUE" list; NULL = ours
 * timeout_ms  then the child's whole process group is killed; when we die, the child gets SIGTERM
 * Returns 0 once it has ended (whatever its status is), -ETIMEDOUT (output so far is in ret),
 * -ENOENT and other errors of exec, -EFBIG. ret is always to be finished. */
int pl_child_run(const char *const *argv,
                 char *const *env,
                 unsigned timeout_ms,
                 struct pl_child *ret,
                 struct pl_error *err);

/* A program that pl_child_start() has started. */
struct pl_child_job {
    pid_t pid;
    const char *name; /* argv[0], the caller's */
    struct pl_child_pipes {
        int out[2], err[2], exec_error[2];
    } pipes;
};

/* pl_child_run() in two calls, so that several programs run at the same time. The caller waits once
 * for each job that it starts. The wait ends the job, whatever it returns. It also returns the
 * errors of exec. timeout_ms begins with the wait. */
int pl_child_start(const char *const *argv,
                   char *const *env,
                   struct pl_child_job *ret,
                   struct pl_error *err);
int pl_child_wait(struct pl_child_job *job,
                  unsigned timeout_ms,
                  struct pl_child *ret,
                  struct pl_error *err);

/* Of the time since a program started. go_on and notice (NULL: none) are called once each. */
struct pl_child_limits {
    unsigned timeout_ms, patience_ms, notice_ms;
    int (*go_on)(struct pl_error *err);
    void (*notice)(const char *err_text); /* what has come from its stderr */
};

/* As pl_child_run(), but where it takes longer than patience_ms, asks `go_on` whether to wait any
 * further: a negative answer kills it and is returned, with the text that go_on set. Where it takes
 * longer than notice_ms, calls `notice`, which tells the user. */
int pl_child_run_patiently(const char *const *argv,
                           char *const *env,
                           const struct pl_child_limits *limits,
                           struct pl_child *ret,
                           struct pl_error *err);

/* Calls f in a child: for libraries that may block or end their process. f writes its answer to fd
 * and returns an exit code; its stdout and stderr are /dev/null. The rest as above; the answer
 * comes in ret->out. */
int pl_child_call(int (*f)(void *ctx, int fd),
                  void *ctx,
                  unsigned timeout_ms,
                  struct pl_child *ret,
                  struct pl_error *err);

#endif
