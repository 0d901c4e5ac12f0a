/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/helper.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/plrund/daemon/quiet_signals.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#define ANSWER_MS 10000 /* a look through /proc on a busy node with thousands of processes */
#define STOPPED_MS 100  /* then the helper may have been stopped */
/* For processes that are between two programs: slurmstepd waits for the daemon meanwhile, and for
 * the helper alone it does not. */
#define BETWEEN_MS 500
#define BETWEEN_LATE_MS 10000

struct pl_daemon_helper {
    uv_process_t process;
    bool ended;
    int fd;
    uint32_t sequence;
};

/* ---- the helper's side ---- */

struct helper {
    struct pl_slurm_step step;
    pid_t daemon;
    bool none_left; /* all ranks have ended, and all that they had left */
    struct pl_process *guards;
    size_t n_guards;
};

static int32_t end_orphans(struct helper *h, const struct pl_helper_request *request)
{
    bool all;
    int32_t n = (int32_t)pl_kill_orphans(&h->step, request->rank, request->spare, h->daemon,
                                         BETWEEN_MS, &all);

    if (request->rank == UINT_MAX)
        h->none_left = all;
    return n;
}

/* Under plrun each rank's plrun ends it, which one that is stopped cannot do. */
static void add_guard(struct helper *h, pid_t pid)
{
    void *grown = realloc(h->guards, (h->n_guards + 1) * sizeof(*h->guards));

    if (!grown)
        return;
    h->guards = grown;
    h->guards[h->n_guards] = (struct pl_process)PL_PROCESS_INIT;
    pl_process_open(&h->guards[h->n_guards++], pid);
}

/* It has lost its daemon, and sees that once it goes on. */
static void wake_guards(struct helper *h)
{
    struct pl_process_stat stat;

    for (size_t i = 0; i < h->n_guards; i++) {
        if (pl_process_stat(h->guards[i].pid, &stat) == 0 && stat.state == 'T') {
            pl_log_warn("child", "the node daemon is gone, and plrun %d is stopped: plrun goes on",
                        (int)h->guards[i].pid);
            pl_process_signal(&h->guards[i], SIGCONT);
        }
        pl_process_close(&h->guards[i]);
    }
    free(h->guards);
}

static int32_t (*const table[])(struct helper *, const struct pl_helper_request *) = {
    [PL_HELPER_ORPHANS] = end_orphans,
};

/* The daemon has ended; so has its lifeline, which has our socket, too, and so have the ranks. A
 * daemon that was killed has not asked. Under plrun each rank's plrun ends what it has left. */
static void look_again(const struct helper *h)
{
    if (h->step.plugin && !h->none_left)
        pl_kill_orphans(&h->step, UINT_MAX, 0, h->daemon, BETWEEN_LATE_MS, NULL);
}

int pl_helper_run(int fd, struct pl_error *err)
{
    struct helper helper = {.daemon = getppid()};
    struct pl_helper_request request;
    int r = pl_slurm_step_from_env(&helper.step, false, err);
    ssize_t n;

    /* One that its user has stopped goes on, and reads the end of the socket. */
    prctl(PR_SET_PDEATHSIG, SIGCONT);
    pl_ignore_signals_of_step();
    while (r == 0 && (n = recv(fd, &request, sizeof(request), 0)) != 0) {
        struct pl_helper_answer answer = {.result = -EINVAL};

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        if (n != sizeof(request))
            return pl_error_set(err, -EPROTO, "the daemon sends a request that is none");
        if (request.what == PL_HELPER_GUARD) {
            add_guard(&helper, request.spare);
            continue;
        }
        answer.sequence = request.sequence;
        if (request.what < PL_COUNT(table))
            answer.result = table[request.what](&helper, &request);
        send(fd, &answer, sizeof(answer), MSG_NOSIGNAL); /* who has ended does not read it */
    }
    if (r == 0)
        look_again(&helper);
    wake_guards(&helper);
    prctl(PR_SET_PDEATHSIG, 0); /* LeakSanitizer stops a process that exits, and waits for that */
    return r;
}

/* ---- the daemon's side ---- */

static void on_closed(uv_handle_t *handle)
{
    struct pl_daemon_helper *h = handle->data;

    close(h->fd);
    free(h);
}

static void on_exit_of_helper(uv_process_t *process, int64_t status, int term_signal)
{
    struct pl_daemon_helper *h = process->data;

    h->ended = true;
    pl_log_warn("child", "the helper ended: exit %d, signal %d", (int)status, term_signal);
}

int pl_daemon_helper_start(struct pl_daemon *d, struct pl_error *err)
{
    struct pl_daemon_helper *h = calloc(1, sizeof(*h));
    int pair[2], r;

    if (!h || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        r = !h ? -ENOMEM : -errno;
        free(h);
        return pl_error_errno(err, r, "cannot start the helper");
    }
    h->fd = pair[0];
    h->process.data = h;
    r = pl_daemon_spawn(d, &h->process, "--helper", true, pair[1], on_exit_of_helper);
    if (r < 0) {
        uv_close((uv_handle_t *)&h->process, on_closed);
        return pl_error_errno(err, r, "cannot start the helper");
    }
    d->helper = h;
    return 0;
}

/* The daemon waits for the answer and does nothing else meanwhile: a helper that somebody has
 * stopped would keep the end of a step as long as the daemon has patience, once for each rank. It
 * goes on instead. */
int pl_daemon_helper_ask(struct pl_daemon *d, struct pl_helper_request *request)
{
    uint64_t limit_ns = pl_now_ns() + ANSWER_MS * 1000000ull;
    struct pl_daemon_helper *h = d->helper;
    struct pl_helper_answer answer;

    request->sequence = ++h->sequence;
    if (send(h->fd, request, sizeof(*request), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return -errno;
    while (pl_now_ns() < limit_ns) {
        struct pollfd p = {.fd = h->fd, .events = POLLIN};
        int ready = poll(&p, 1, STOPPED_MS);

        if (ready < 0 && errno == EINTR)
            continue;
        if (ready < 0)
            return -errno;
        if (ready == 0) {
            if (!h->ended) /* not reaped, so that the pid is still its own */
                kill(h->process.pid, SIGCONT);
            continue;
        }
        if (recv(h->fd, &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer))
            return -EPIPE;
        if (answer.sequence == request->sequence) /* not a late one */
            return answer.result;
    }
    return -ETIMEDOUT;
}

void pl_daemon_kill_orphans(struct pl_daemon *d, unsigned rank, pid_t spare)
{
    struct pl_helper_request request = {.what = PL_HELPER_ORPHANS, .rank = rank, .spare = spare};
    int r;

    if (!d->helper) {
        pl_kill_orphans(&d->step, rank, spare, getpid(), BETWEEN_MS, NULL);
        return;
    }
    r = pl_daemon_helper_ask(d, &request);
    if (r < 0)
        pl_log_warn("child", "the helper does not end the orphans of ranks: %s", strerror(-r));
}

void pl_daemon_helper_guard(struct pl_daemon *d, pid_t pid)
{
    struct pl_helper_request request = {.what = PL_HELPER_GUARD, .spare = pid};

    if (d->helper) /* one that somebody has stopped goes on with the daemon's end */
        send(d->helper->fd, &request, sizeof(request), MSG_NOSIGNAL | MSG_DONTWAIT);
}

int pl_daemon_helper_socket(const struct pl_daemon *d)
{
    return d->helper ? d->helper->fd : -EBADF;
}

void pl_daemon_helper_close(struct pl_daemon *d)
{
    struct pl_daemon_helper *h = PL_TAKE(d->helper);

    if (h)
        uv_close((uv_handle_t *)&h->process, on_closed); /* the end of the socket is its end */
}
