/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/spawn_local.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "common/base/time_limits.h"
#include "common/base/trace.h"
#include "common/proto/rank/minijson.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/engine/util/xxh64.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define TEXTS_MAX 64 /* that ranks are kept from saying twice */

/* Of the ranks together: the texts' hashes; 0 = free. NULL: this process has no ranks. */
static _Atomic uint64_t *said;

struct client {
    int fd; /* -1 once closed */
    int64_t rank;
    struct pl_buf in;
    char *value; /* of the running exchange */
};

struct starter {
    const struct pl_local_options *options;
    char *path;
    int listen_fd;
    int life[2];            /* a pipe of which only the parent keeps the end to write to */
    pid_t *ranks;           /* 0 once reaped */
    struct client *clients; /* in the order of connection */
    unsigned n_clients, n_alive, n_values;
    int signal_fd; /* SIGCHLD (Linux before 5.3 has no pidfd_open), and those that are passed on */
    sigset_t old_mask;
    int status;
    bool failed; /* a rank has: the first one, with its status of waitpid(2) */
    unsigned first;
    int first_status;
    bool by_signal;          /* `status` is that of a rank that died by a signal */
    bool unmet;              /* the first one failed before all ranks had met */
    bool killed;             /* by us */
    uint64_t kill_at;        /* 0 = not */
    uint64_t interrupted_at; /* by the first SIGINT or SIGTERM; 0 = not */
};

static int listen_at(const char *path, int *ret, struct pl_error *err)
{
    _cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un addr = {.sun_family = AF_UNIX};

    if (fd < 0)
        return pl_error_errno(err, errno, "cannot make a socket");
    memcpy(addr.sun_path, path, strlen(path) + 1); /* pl_rank_socket_path() checked its length */
    if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 || listen(fd, 1024) < 0)
        return pl_error_errno(err, errno, "cannot listen at '%s'", path);
    *ret = PL_TAKE_FD(fd);
    return 0;
}

static int set_number(const char *name, unsigned value)
{
    char text[16];

    snprintf(text, sizeof(text), "%u", value);
    return setenv(name, text, 1);
}

static int set_environment(const struct starter *s, unsigned rank)
{
    unsigned n = s->options->processes, per = s->options->per_node ? s->options->per_node : n;
    unsigned node = rank / per, on_node = PL_MIN(per, n - node * per);

    if (set_number("RANK", rank) < 0 || set_number("WORLD_SIZE", n) < 0 ||
        set_number("LOCAL_RANK", rank % per) < 0 || set_number("LOCAL_WORLD_SIZE", on_node) < 0 ||
        set_number("NODE_RANK", node) < 0 || setenv("PLUME_SOCKET", s->path, 1) < 0)
        return -ENOMEM;
    unsetenv("PLUME_NODE_ADDR");
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    return 0;
}

/* ---- in a rank ---- */

/* Of this process, if it is a rank. */
static struct {
    int life; /* becomes readable once the parent is gone */
    unsigned grace_ms;
    char socket[sizeof(((struct sockaddr_un *)NULL)->sun_path)]; /* the parent's */
} orphan;

/* The kernel has sent SIGTERM, as the rank asked for. One that hangs takes no notice of it. */
static void *end_orphan(void *arg)
{
    struct pollfd p = {.fd = orphan.life, .events = POLLIN};
    uint64_t limit;

    while (poll(&p, 1, -1) < 0)
        ;
    unlink(orphan.socket); /* nobody else will */
    for (limit = pl_now_ns() + orphan.grace_ms * 1000000ull; pl_now_ns() < limit;)
        poll(NULL, 0, (int)orphan.grace_ms);
    pl_log_error("train", "the process that started this rank is gone: ending the rank");
    kill(getpid(), SIGKILL);
    return NULL;
}

static unsigned grace_ms(const struct starter *s)
{
    return s->options->grace_ms ? s->options->grace_ms : PL_LOCAL_KILL_GRACE_MS;
}

static void watch_parent(const struct starter *s)
{
    sigset_t all, before;
    pthread_t thread;

    orphan.life = s->life[0];
    orphan.grace_ms = grace_ms(s);
    snprintf(orphan.socket, sizeof(orphan.socket), "%s", s->path);
    pl_signals_of_threads(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, end_orphan, NULL) == 0)
        pthread_detach(thread);
    else
        pl_log_warn(
            "train",
            "cannot start a thread that watches this rank's parent: the rank may outlive it");
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool pl_local_first(const char *text)
{
    uint64_t hash = pl_xxh64(text, strlen(text)) | 1;

    for (size_t i = 0; said && i < TEXTS_MAX; i++) {
        uint64_t other = 0;

        if (atomic_compare_exchange_strong(&said[i], &other, hash))
            return true;
        if (other == hash)
            return false;
    }
    return true;
}

/* ---- the process that starts them ---- */

/* Returns 1 in the child. */
static int fork_rank(struct starter *s, unsigned rank, struct pl_error *err)
{
    pid_t parent = getpid(), pid = fork();

    if (pid < 0)
        return pl_error_errno(err, errno, "cannot start rank %u", rank);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(PL_TAKE_FD(s->life[1]));
        if (getppid() != parent || set_environment(s, rank) < 0)
            return pl_error_set(err, -ECANCELED, "cannot become rank %u", rank);
        watch_parent(s);
        return 1;
    }
    pl_trace("fork", "rank", NULL, pid);
    s->ranks[rank] = pid;
    s->n_alive++;
    return 0;
}

static void kill_all(struct starter *s, int sig)
{
    for (unsigned i = 0; i < s->options->processes; i++)
        if (s->ranks[i] > 0)
            kill(s->ranks[i], sig);
}

/* Collects the exit status of ranks that have ended; flags as for waitpid(2). */
static void reap(struct starter *s, int flags)
{
    for (unsigned i = 0; i < s->options->processes; i++) {
        int status, code;

        if (s->ranks[i] <= 0 || waitpid(s->ranks[i], &status, flags) != s->ranks[i])
            continue;
        s->ranks[i] = 0;
        s->n_alive--;
        code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        /* The others exit because a rank has died: its signal is the cause. */
        if (WIFSIGNALED(status) && !s->killed && !s->interrupted_at && !s->by_signal) {
            s->by_signal = true;
            s->status = code;
            if (WTERMSIG(status) == SIGKILL)
                pl_log_error("train",
                             "rank %u was killed (signal 9), as the kernel does for want of memory",
                             i);
        }
        if (code && !s->status)
            s->status = code;
        if (code && !s->failed) {
            s->failed = true;
            s->first = i;
            s->first_status = status;
            s->kill_at = pl_now_ns() + grace_ms(s) * 1000000ull;
        }
    }
}

/* Ranks wait for the texts of all, and one that has failed will send none. */
static void check_meeting(struct starter *s)
{
    uint64_t soon = pl_now_ns() + PL_LOCAL_MEET_GRACE_MS * 1000000ull;

    if (!s->failed || !s->n_values || s->unmet || !s->kill_at)
        return;
    s->unmet = true;
    s->kill_at = PL_MIN(s->kill_at, soon);
}

static void kill_late(struct starter *s)
{
    bool by_signal = WIFSIGNALED(s->first_status);

    if (s->failed)
        pl_log_error("train", "rank %u ended with %s %d%s: ending the others", s->first,
                     by_signal ? "signal" : "status",
                     by_signal ? WTERMSIG(s->first_status) : WEXITSTATUS(s->first_status),
                     s->unmet ? " before all ranks had met" : ", and others have not ended");
    s->killed = true;
    kill_all(s, SIGKILL);
    s->kill_at = 0;
}

static void take_signal(struct starter *s)
{
    struct signalfd_siginfo info;
    uint64_t now = pl_now_ns();

    if (read(s->signal_fd, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGCHLD) {
        reap(s, WNOHANG);
        return;
    }
    if (info.ssi_signo == SIGUSR1) { /* the ranks save, and one has the job queued again */
        kill_all(s, SIGUSR1);
        return;
    }
    if (s->interrupted_at) { /* more of them neither lengthen the grace nor repeat SIGTERM */
        if (info.ssi_signo == SIGINT &&
            now - s->interrupted_at > PL_INTERRUPT_AGAIN_MS * 1000000ull) {
            pl_log_warn("train", "interrupted twice: killing the ranks");
            s->kill_at = now;
        }
        return;
    }
    /* SIGTERM first: the ranks have the grace to save a checkpoint. */
    s->status = PL_EXIT_INTERRUPTED;
    s->interrupted_at = now;
    if (!s->kill_at) /* else a rank has failed already */
        s->kill_at = now + grace_ms(s) * 1000000ull;
    kill_all(s, SIGTERM);
}

static int watch_signals(struct starter *s, struct pl_error *err)
{
    sigset_t mask;

    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, &s->old_mask);
    s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? pl_error_errno(err, errno, "cannot watch signals") : 0;
}

static void drop(struct client *c)
{
    close(c->fd);
    c->fd = -1;
}

/* All values are complete: sends the list to each rank. */
static int answer(struct starter *s, const char *name)
{
    unsigned n = s->options->processes;
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    struct pl_mini_writer w = {.buf = &out};
    int r;

    pl_mini_open(&w, NULL, '{');
    pl_mini_put_string(&w, "type", "exchanged");
    pl_mini_put_string(&w, "name", name);
    pl_mini_open(&w, "values", '[');
    for (unsigned rank = 0; rank < n; rank++)
        for (unsigned k = 0; k < n; k++)
            if (s->clients[k].rank == rank)
                pl_mini_put_string(&w, NULL, s->clients[k].value);
    pl_mini_close(&w, ']');
    r = pl_mini_close(&w, '}');
    if (r == 0)
        r = pl_buf_addc(&out, '\n');
    s->n_values = 0;
    for (unsigned k = 0; k < n; k++) {
        free(s->clients[k].value);
        s->clients[k].value = NULL;
        if (r == 0 && s->clients[k].fd >= 0 &&
            pl_send_fds(s->clients[k].fd, out.data, out.len, NULL, 0) < 0)
            drop(&s->clients[k]);
    }
    return r;
}

static int take_line(struct starter *s, struct client *c, const char *line)
{
    _cleanup_free_ char *name = NULL;

    if (pl_mini_is(line, "hello"))
        return pl_mini_get_int(line, "rank", &c->rank);
    if (!pl_mini_is(line, "exchange"))
        return 0;
    if (c->value || c->rank < 0 || pl_mini_get_string(line, "name", &name) < 0 ||
        pl_mini_get_string(line, "value", &c->value) < 0)
        return -EPROTO;
    return ++s->n_values == s->options->processes ? answer(s, name) : 0;
}

static void serve(struct starter *s, struct client *c)
{
    ssize_t n;
    char *newline;

    if (pl_buf_reserve(&c->in, 4096) < 0) {
        drop(c);
        return;
    }
    n = recv(c->fd, c->in.data + c->in.len, c->in.cap - c->in.len - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || c->in.len + (size_t)n > PL_RANK_LINE_MAX) {
        drop(c);
        return;
    }
    c->in.len += (size_t)n;
    while (c->fd >= 0 && c->in.len && (newline = memchr(c->in.data, '\n', c->in.len))) {
        *newline = '\0';
        if (take_line(s, c, c->in.data) < 0)
            drop(c);
        pl_buf_consume(&c->in, (size_t)(newline - c->in.data) + 1);
    }
}

static void welcome(struct starter *s)
{
    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    if (s->n_clients == s->options->processes) {
        close(fd);
        return;
    }
    s->clients[s->n_clients++] = (struct client){.fd = fd, .rank = -1};
}

static int loop(struct starter *s, struct pollfd *polls, struct pl_error *err)
{
    while (s->n_alive) {
        uint64_t now = pl_now_ns();
        unsigned clients = s->n_clients;
        int wait_ms = -1;

        check_meeting(s);
        if (s->kill_at && now >= s->kill_at)
            kill_late(s);
        if (s->kill_at)
            wait_ms = (int)((s->kill_at - now) / 1000000u) + 1;
        for (unsigned i = 0; i < clients; i++)
            polls[i] = (struct pollfd){.fd = s->clients[i].fd, .events = POLLIN};
        polls[clients] = (struct pollfd){.fd = s->listen_fd, .events = POLLIN};
        polls[clients + 1] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
        if (poll(polls, clients + 2, wait_ms) < 0) {
            if (errno == EINTR)
                continue;
            return pl_error_errno(err, errno, "cannot wait for the ranks");
        }
        for (unsigned i = 0; i < clients; i++)
            if (polls[i].revents)
                serve(s, &s->clients[i]);
        if (polls[clients].revents)
            welcome(s);
        if (polls[clients + 1].revents)
            take_signal(s);
    }
    return 0;
}

int pl_local_run(const struct pl_local_options *options, int *ret_status, struct pl_error *err)
{
    unsigned n = options->processes;
    _cleanup_free_ pid_t *ranks = calloc(n, sizeof(*ranks));
    _cleanup_free_ struct client *clients = calloc(n, sizeof(*clients));
    _cleanup_free_ struct pollfd *polls = calloc((size_t)n + 2, sizeof(*polls));
    _cleanup_free_ char *path = NULL;
    struct starter s = {
        .options = options,
        .ranks = ranks,
        .clients = clients,
        .listen_fd = -1,
        .signal_fd = -1,
        .life = {-EBADF, -EBADF},
    };
    pid_t parent = getpid();
    char job[32];
    int r;

    if (!ranks || !clients || !polls)
        return pl_error_set(err, -ENOMEM, "out of memory");
    snprintf(job, sizeof(job), "local-%d", (int)getpid());
    r = pl_rank_socket_path(job, "0", 0, 0, &path, err);
    if (r < 0)
        return r;
    if (r > 0)
        pl_log_warn("train", "%s", pl_error_text(err));
    unlink(path); /* of an earlier process with the same pid */
    r = listen_at(path, &s.listen_fd, err);
    if (r < 0)
        return r;
    s.path = path;
    said = mmap(NULL, TEXTS_MAX * sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    if (said == MAP_FAILED)
        said = NULL; /* each rank says all it has to say */
    if (pipe2(s.life, O_CLOEXEC) < 0)
        r = pl_error_errno(err, errno, "cannot make a pipe");
    if (r == 0)
        r = watch_signals(&s, err);
    fflush(NULL); /* or the children print it too */
    for (unsigned i = 0; i < n && r == 0; i++)
        r = fork_rank(&s, i, err);
    if (getpid() != parent) {
        close(s.listen_fd);
        close(s.signal_fd);
        return r;
    }
    if (said)
        munmap((void *)said, TEXTS_MAX * sizeof(*said));
    said = NULL;
    if (r == 0)
        r = loop(&s, polls, err);
    if (r < 0) {
        kill_all(&s, SIGKILL);
        reap(&s, 0);
    }
    close(s.listen_fd);
    pl_closep(&s.life[0]);
    pl_closep(&s.life[1]);
    pl_closep(&s.signal_fd); /* the signals stay blocked: one more must not change the status */
    unlink(path);
    for (unsigned i = 0; i < s.n_clients; i++) {
        if (clients[i].fd >= 0)
            close(clients[i].fd);
        pl_buf_finish(&clients[i].in);
        free(clients[i].value);
    }
    if (r == 0)
        *ret_status = s.status;
    return r;
}
