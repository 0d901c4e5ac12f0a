/* SPDX-License-Identifier: MIT */
/* The daemon's side of the lifeline (lifeline.h). */
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/plrund/daemon/daemon.h"
#include "runtime/plrund/daemon/lifeline.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#define STARTS_MAX 4 /* of a daemon: who kills it again and again has his way */

struct pl_daemon_lifeline {
    struct pl_daemon *daemon;
    uv_process_t process;
    int fd;
};

static void send_packet(const struct pl_daemon_lifeline *l, char type, int pidfd)
{
    if (pl_send_fds(l->fd, &type, 1, &pidfd, pidfd >= 0 ? 1 : 0) < 0 && pidfd >= 0)
        pl_log_warn("child", "a rank is not guarded: its process cannot be handed over");
}

static void send_socket(const struct pl_daemon_lifeline *l, const char *path)
{
    char packet[160];
    int len = snprintf(packet, sizeof(packet), "%c%s", PL_LIFELINE_SOCKET, path);

    if (len < (int)sizeof(packet))
        pl_send_fds(l->fd, packet, (size_t)len, NULL, 0);
}

static void send_helper(const struct pl_daemon_lifeline *l)
{
    int fd = pl_daemon_helper_socket(l->daemon);

    if (fd >= 0)
        pl_send_fds(l->fd, &(char){PL_LIFELINE_HELPER}, 1, &fd, 1);
}

static void on_closed(uv_handle_t *handle)
{
    struct pl_daemon_lifeline *l = handle->data;

    close(l->fd);
    free(l);
}

/* Ended by somebody else: another one takes over. */
static void on_exit_of_lifeline(uv_process_t *process, int64_t status, int term_signal)
{
    struct pl_daemon_lifeline *l = process->data;
    struct pl_daemon *d = l->daemon;

    uv_close((uv_handle_t *)process, on_closed);
    if (d->lifeline != l)
        return;
    d->lifeline = NULL;
    pl_log_warn("child", "the lifeline ended: exit %d, signal %d", (int)status, term_signal);
    if (!d->finished)
        pl_daemon_lifeline_start(d);
}

void pl_daemon_lifeline_start(struct pl_daemon *d)
{
    struct pl_daemon_lifeline *l = NULL;
    int pair[2], r;

    if (d->n_lifelines++ == STARTS_MAX ||
        socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    l = calloc(1, sizeof(*l));
    if (!l) {
        close(pair[0]);
        close(pair[1]);
        return;
    }
    l->daemon = d;
    l->fd = pair[0];
    l->process.data = l;
    fcntl(pair[0], F_SETFL, O_NONBLOCK); /* a lifeline that is stopped holds nothing up */
    d->lifeline = l;
    send_socket(l, d->socket_path);
    send_helper(l);
    for (unsigned i = 0; i < d->n_present; i++) /* it reads them even if we die meanwhile */
        pl_daemon_lifeline_hold(d, &d->ranks[i]);
    r = pl_daemon_spawn(d, &l->process, "--lifeline", true, pair[1], on_exit_of_lifeline);
    if (r < 0) {
        d->lifeline = NULL;
        pl_log_warn("child", "cannot start the lifeline: %s", uv_strerror(r));
        uv_close((uv_handle_t *)&l->process, on_closed);
        return;
    }
}

void pl_daemon_lifeline_hold(struct pl_daemon *d, const struct pl_rank *rank)
{
    if (d->lifeline && rank->pidfd >= 0 && !rank->ended)
        send_packet(d->lifeline, PL_LIFELINE_RANK, rank->pidfd);
}

void pl_daemon_lifeline_beat(struct pl_daemon *d)
{
    if (d->lifeline)
        send_packet(d->lifeline, PL_LIFELINE_BEAT, -EBADF);
}

void pl_daemon_lifeline_obey(const struct pl_daemon *d)
{
    char packet = 0;

    if (!d->lifeline || recv(d->lifeline->fd, &packet, 1, MSG_DONTWAIT) != 1 ||
        packet != PL_LIFELINE_GIVEN_UP)
        return;
    pl_log_error("child", "this daemon was silent for too long: its ranks are ended, and so is it");
    kill(getpid(), SIGKILL);
}

/* The end of the socket is its order to end what is left, and itself; also if somebody has stopped
 * it. */
void pl_daemon_lifeline_close(struct pl_daemon *d)
{
    struct pl_daemon_lifeline *l = PL_TAKE(d->lifeline);

    if (!l || uv_is_closing((uv_handle_t *)&l->process))
        return;
    uv_process_kill(&l->process, SIGCONT);
    uv_close((uv_handle_t *)&l->process, on_closed);
}
