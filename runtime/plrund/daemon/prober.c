/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/prober.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrund/daemon/quiet_signals.h"
#include "runtime/plrund/daemon/stack.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define ENVIRON_MAX ((size_t)4 * 1024 * 1024)
#define STACK_BYTES                                                                                \
    ((size_t)192 * 1024) /* as JSON six times as much at most: less than a frame                   \
                          */
#define VALUE_MAX 512    /* bytes of a variable */
#define STACK_MS (PL_STACK_LIMIT_MS + 2000)

const char *const pl_prober_variables[] = {
    "RANK",        "WORLD_SIZE",  "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "MASTER_ADDR", "MASTER_PORT", NULL,
};

/* ---- which processes ---- */

static bool has_entry(const struct pl_buf *env, const char *name, const char *value)
{
    char entry[96];
    size_t len = (size_t)snprintf(entry, sizeof(entry), "%s=%s", name, value) + 1;
    const char *at = memmem(env->data, env->len, entry, len); /* with its NUL */

    return at && (at == env->data || at[-1] == '\0');
}

/* Its environment, which only the user's own processes show, has this job and step. */
static bool read_env_of_step(const struct pl_slurm_step *step, pid_t pid, struct pl_buf *ret)
{
    struct pl_buf env = {0};
    char path[64];
    _cleanup_close_ int fd = -EBADF;
    ssize_t n;

    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    do {
        if (fd < 0 || env.len > ENVIRON_MAX || pl_buf_reserve(&env, 65536) < 0) {
            pl_buf_finish(&env);
            return false;
        }
        n = read(fd, env.data + env.len, 65536);
        env.len += n > 0 ? (size_t)n : 0;
    } while (n > 0);
    *ret = env;
    return env.len && has_entry(&env, "SLURM_JOB_ID", step->id.job) &&
           has_entry(&env, "SLURM_STEP_ID", step->id.step);
}

static bool is_of_step(const struct pl_slurm_step *step, pid_t pid)
{
    _cleanup_(pl_buf_finish) struct pl_buf env = {0};

    return read_env_of_step(step, pid, &env);
}

/* ---- stacks ---- */

static void send_part(int fd, uint32_t rank, const char *text, size_t len)
{
    struct pl_prober_answer answer = {.what = PL_PROBER_STACK, .rank = rank};

    memcpy(answer.part.text, text, len);
    answer.part.len = (uint32_t)len;
    send(fd, &answer, sizeof(answer), MSG_NOSIGNAL);
}

/* Reads the pipe until its end, or until the limit has passed. */
static void read_report(int from, struct pl_buf *text)
{
    uint64_t limit_ns = pl_now_ns() + STACK_MS * 1000000ull, now;
    struct pollfd p = {.fd = from, .events = POLLIN};
    char data[4096];
    ssize_t n = 1;

    while (n > 0 && (now = pl_now_ns()) < limit_ns &&
           poll(&p, 1, (int)((limit_ns - now) / 1000000u) + 1) > 0) {
        n = read(from, data, sizeof(data));
        if (n > 0 && text->len < STACK_BYTES)
            pl_buf_add(text, data, PL_MIN((size_t)n, STACK_BYTES - text->len));
    }
}

/* In a process of its own: one that reports may block for ever, another reads what it wrote. */
static void take_stack(int fd, const struct pl_prober_request *request)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    int ends[2];
    pid_t pid;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGCHLD, SIG_DFL);
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fd);
        pl_stack_report(request->pid, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    if (pid > 0)
        read_report(ends[0], &text);
    if (pid > 0)
        kill(pid, SIGKILL);
    for (size_t at = 0, len; at < text.len; at += len) {
        len = PL_MIN(text.len - at, (size_t)PL_PROBER_PART);
        send_part(fd, request->rank, text.data + at, len);
    }
    send_part(fd, request->rank, "", 0);
}

static void
start_stack(int fd, const struct pl_slurm_step *step, const struct pl_prober_request *request)
{
    pid_t pid = is_of_step(step, request->pid) ? fork() : -1;

    if (pid == 0) {
        take_stack(fd, request);
        _exit(0);
    }
    if (pid < 0) /* the daemon waits for an end */
        send_part(fd, request->rank, "", 0);
}

/* Appends NAME=VALUE and a NUL to the part, the value cut. False if only the name is there: bash
 * writes a NUL over each '=' while it reads its variables. */
static bool
add_variable(struct pl_prober_answer *answer, const struct pl_buf *env, const char *name)
{
    size_t len = strlen(name), left = PL_PROBER_PART - answer->part.len;
    bool half = false;

    for (const char *p = env->data; p < env->data + env->len; p += strlen(p) + 1) {
        if (strncmp(p, name, len) == 0 && p[len] == '=') {
            int n = snprintf(answer->part.text + answer->part.len, left, "%.*s", VALUE_MAX, p);

            answer->part.len += (uint32_t)PL_MIN((size_t)n + 1, left);
            return true;
        }
        half = half || strcmp(p, name) == 0;
    }
    return !half;
}

/* The task's process has another environment until Slurm has run its TaskProlog and begins the
 * program: only that has PLUME_RUNTIME. */
static void
look_at_env(int fd, const struct pl_slurm_step *step, const struct pl_prober_request *request)
{
    _cleanup_(pl_buf_finish) struct pl_buf env = {0};
    struct pl_prober_answer answer = {.what = PL_PROBER_ENV, .rank = request->rank};
    bool whole = true;

    if (read_env_of_step(step, request->pid, &env) && pl_buf_addc(&env, '\0') == 0) {
        add_variable(&answer, &env, "PLUME_RUNTIME");
        for (const char *const *name = pl_prober_variables; answer.part.len && *name; name++)
            whole = add_variable(&answer, &env, *name) && whole;
    }
    if (!whole)
        answer.part.len = 0;
    send(fd, &answer, sizeof(answer), MSG_NOSIGNAL);
}

static void look(int fd, const struct pl_prober_request *request)
{
    struct pl_prober_answer answer = {.what = PL_PROBER_LOOK, .rank = request->rank};

    pl_probe_look(request->pid, &answer.look.probe);
    answer.look.has_place = pl_place_read(answer.look.probe.pid, &answer.look.place) == 0;
    send(fd, &answer, sizeof(answer), MSG_NOSIGNAL);
}

int pl_prober_run(int fd, struct pl_error *err)
{
    struct pl_prober_request request;
    struct pl_slurm_step step;
    int r = pl_slurm_step_from_env(&step, false, err);
    ssize_t n;

    /* The end of the socket would do, but not for a prober that its user has stopped. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pl_ignore_signals_of_step();
    signal(SIGCHLD, SIG_IGN);
    while (r == 0 && (n = recv(fd, &request, sizeof(request), 0)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n != sizeof(request))
            return pl_error_set(err, -EPROTO, "the daemon sends a request that is none");
        if (request.pid <= 1)
            continue;
        if (request.what == PL_PROBER_LOOK)
            look(fd, &request);
        else if (request.what == PL_PROBER_STACK)
            start_stack(fd, &step, &request);
        else if (request.what == PL_PROBER_ENV)
            look_at_env(fd, &step, &request);
    }
    return r;
}
