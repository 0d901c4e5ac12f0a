/* SPDX-License-Identifier: MIT */
/* Two ranks that know the key connect, and clients without it at the same port cannot disturb. */
#include "common/base/fs.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/comm/connect_soon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cmocka.h>

struct pair {
    struct pl_comm_peer peers[2];
    int fd[2];
};

static void listen_both(struct pair *pair)
{
    *pair = (struct pair){0};
    for (unsigned i = 0; i < 2; i++) {
        pair->peers[i] = (struct pl_comm_peer){.world_rank = 10 + i, .address = "127.0.0.1"};
        assert_int_equal(pl_comm_tcp_listen("127.0.0.1", &pair->fd[i], &pair->peers[i].port, NULL),
                         0);
    }
}

/* Starts rank 1 with this key; it exits with 0 if it connected and a sum was right. */
static pid_t start_second(struct pair *pair, const char *key, const char *word)
{
    struct pl_error err = {0};
    struct pl_comm *comm;
    pid_t pid = fork();
    float x = 2;
    int r;

    if (pid != 0) {
        close(pair->fd[1]);
        return pid;
    }
    close(pair->fd[0]);
    r = pl_comm_tcp_create(pair->peers, 2, 1, pair->fd[1], key, strlen(key), &comm, &err);
    if (word)
        _exit(r < 0 && strstr(err.text, word) ? 0 : 1);
    if (r == 0)
        r = pl_comm_allreduce(comm, &x, 1, PL_REAL_F32, 1, &err);
    _exit(r == 0 && x == 5 ? 0 : 1);
}

static int knock(const struct pair *pair, const void *data, size_t len)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)pair->peers[0].port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    if (len)
        assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
    return fd;
}

static void test_strangers_do_no_harm(void **state)
{
    char garbage[4096];
    struct pair pair;
    struct pl_comm *comm;
    float x = 3;
    int silent, loud, short_one, status;
    pid_t pid;

    memset(garbage, 'x', sizeof(garbage));
    listen_both(&pair);
    silent = knock(&pair, NULL, 0);
    loud = knock(&pair, garbage, sizeof(garbage));
    short_one = knock(&pair, "GET", 3);
    close(short_one);
    pid = start_second(&pair, "the key", NULL);
    assert_int_equal(pl_comm_tcp_create(pair.peers, 2, 0, pair.fd[0], "the key", 7, &comm, NULL),
                     0);
    assert_int_equal(pl_comm_allreduce(comm, &x, 1, PL_REAL_F32, 1, NULL), 0);
    assert_true(x == 5);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    pl_comm_destroy(comm);
    close(silent);
    close(loud);
}

static void test_another_key_is_refused(void **state)
{
    struct pair pair;
    struct pl_comm *comm;
    int status;
    pid_t first, second;

    listen_both(&pair);
    first = fork();
    if (first == 0) /* waits for the right key until the test ends it */
        _exit(pl_comm_tcp_create(pair.peers, 2, 0, pair.fd[0], "the key", 7, &comm, NULL));
    second = start_second(&pair, "another", "lost rank 10");
    close(pair.fd[0]);
    assert_int_equal(waitpid(second, &status, 0), second);
    assert_int_equal(status, 0);
    assert_int_equal(waitpid(first, &status, WNOHANG), 0);
    kill(first, SIGKILL);
    waitpid(first, &status, 0);
}

/* Something else listens at the address, e.g. after the rank has died. */
static void test_foreign_listener_is_named(void **state)
{
    static const char banner[] = "220 mail.example.org ESMTP ready, and a few more bytes";
    struct pair pair;
    int status, fd;
    pid_t pid;

    listen_both(&pair);
    pid = start_second(&pair, "the key", "another program listens at the address of rank");
    assert_int_equal(poll(&(struct pollfd){.fd = pair.fd[0], .events = POLLIN}, 1, 10000), 1);
    fd = accept4(pair.fd[0], NULL, NULL, SOCK_CLOEXEC);
    assert_int_equal(send(fd, banner, sizeof(banner), MSG_NOSIGNAL), sizeof(banner));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    close(fd);
    close(pair.fd[0]);
}

static void test_nobody_listens(void **state)
{
    struct pair pair;
    int status;
    pid_t pid;

    listen_both(&pair);
    close(pair.fd[0]);
    pair.fd[0] = -1;
    pid = start_second(&pair, "the key", "cannot connect to rank 10 at 127.0.0.1 port");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_listen_takes_any_where_the_address_is_not_ours(void **state)
{
    unsigned port = 0;
    int fd;

    assert_int_equal(pl_comm_tcp_listen("192.0.2.1", &fd, &port, NULL), 0); /* RFC 5737 */
    assert_in_range(port, 1, 65535);
    close(fd);
}

static void test_listen_in_a_range(void **state)
{
    struct pl_error err = {0};
    int held, fd, other;
    unsigned port, again;
    char range[32];
    int r = -1;

    /* Another process may take the port in between. */
    for (int i = 0; i < 20 && r < 0; i++) {
        unsetenv("PLUME_TCP_PORTS");
        assert_int_equal(pl_comm_tcp_listen("127.0.0.1", &held, &port, NULL), 0);
        close(held);
        snprintf(range, sizeof(range), "%u", port);
        setenv("PLUME_TCP_PORTS", range, 1);
        r = pl_comm_tcp_listen("127.0.0.1", &fd, &again, NULL);
    }
    assert_int_equal(r, 0);
    assert_int_equal(again, port);
    assert_true(pl_comm_tcp_listen("127.0.0.1", &other, &again, &err) < 0);
    assert_non_null(strstr(err.text, range));
    close(fd);
    setenv("PLUME_TCP_PORTS", "9-x", 1);
    assert_int_equal(pl_comm_tcp_listen("127.0.0.1", &other, &again, &err), -EINVAL);
    assert_non_null(strstr(err.text, "PLUME_TCP_PORTS"));
    unsetenv("PLUME_TCP_PORTS");
}

static void nothing(int sig)
{
    (void)sig;
}

/* A listener whose queue is full answers no further connection: like a silent host. */
static void test_a_connection_has_a_limit_and_survives_signals(void **state)
{
    const struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0}, {0}};
    struct sigaction action = {.sa_handler = nothing}, old;
    struct sockaddr_in to = {.sin_family = AF_INET};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), queued[8], fd, one, r = 0;
    socklen_t len = sizeof(to);
    uint64_t begin;

    (void)state;
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    assert_int_equal(bind(listener, (struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&to, &len), 0);
    for (one = 0; one < 8 && r == 0; one++) {
        queued[one] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        r = pl_connect_soon(queued[one], (struct sockaddr *)&to, len, pl_now_ns() + 100000000u);
    }
    assert_int_equal(r, -ETIMEDOUT);
    assert_int_equal(sigaction(SIGALRM, &action, &old), 0);
    assert_int_equal(setitimer(ITIMER_REAL, &often, NULL), 0);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    begin = pl_now_ns();
    r = pl_connect_soon(fd, (struct sockaddr *)&to, len, begin + 50000000u);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    assert_int_equal(r, -ETIMEDOUT); /* not -EINTR */
    assert_true(pl_now_ns() - begin >= 50000000u);
    close(fd);
    close(listener);
    /* Nobody listens now; a socket blocks as before. */
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(pl_connect_soon(fd, (struct sockaddr *)&to, len, pl_now_ns() + 5000000000u),
                     -ECONNREFUSED);
    assert_int_equal(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    close(fd);
    while (one > 0)
        close(queued[--one]);
    assert_int_equal(sigaction(SIGALRM, &old, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_do_no_harm),
        cmocka_unit_test(test_another_key_is_refused),
        cmocka_unit_test(test_foreign_listener_is_named),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_listen_in_a_range),
        cmocka_unit_test(test_a_connection_has_a_limit_and_survives_signals),
        cmocka_unit_test(test_listen_takes_any_where_the_address_is_not_ours),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
