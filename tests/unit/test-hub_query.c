/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plstat/hub_query.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

static const struct pl_session_id session_id = {"123", "0", 1};
static const unsigned char secret[PL_KEY_SIZE + 1] = "a secret of thirty-two bytes....";

/* Answers one client as a hub does. */
static void serve(int fd)
{
    struct pl_session s;
    bool open = pl_session_serve(&s, &session_id, secret) == 0;

    while (open) {
        _cleanup_(json_decrefp) json_t *message = NULL, *answer = NULL;
        char data[4096];
        ssize_t n;
        int r;

        while ((r = pl_session_next(&s, &message, NULL)) == 1) {
            const char *type = pl_json_string(message, "type");

            if (type && strcmp(type, "snapshot") == 0) {
                answer = json_pack("{s:s, s:s, s:i, s:{s:s}}", "type", "snapshot", "epoch", "e",
                                   "seq", 1, "state", "state", "running");
                pl_session_send(&s, answer);
            }
            json_decref(PL_TAKE(message));
        }
        if (r < 0 || pl_write_all(fd, s.out.data, s.out.len) < 0)
            break;
        pl_buf_consume(&s.out, s.out.len);
        n = read(fd, data, sizeof(data));
        open = n > 0 && pl_session_feed(&s, data, (size_t)n) == 0;
    }
    pl_session_finish(&s);
}

/* A listener on a port of the kernel's choice; how: 'h' serves, 's' accepts and stays silent, 'n'
 * talks nonsense. The child is ended by end_child(). */
static pid_t start(char how, uint16_t *ret_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pid_t pid;

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret_port = ntohs(a.sin_port);
    pid = fork();
    assert_true(pid >= 0);
    while (pid == 0) {
        int client = accept(fd, NULL, NULL);

        if (how == 'h')
            serve(client);
        else if (how == 'n' && pl_write_all(client, "HTTP/1.1 400 no\r\n\r\n", 19) < 0)
            how = 's';
        if (how != 's')
            close(client);
    }
    close(fd);
    return pid;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static struct pl_hub_query query(uint16_t port)
{
    struct pl_hub_query q = {.host = "127.0.0.1", .port = port, .id = session_id};

    return q;
}

static void test_init(void **state)
{
    _cleanup_(json_decrefp) json_t *hub =
        json_pack("{s:s, s:i, s:s, s:i, s:i}", "host", "n1", "port", 20001, "job", "123", "step", 0,
                  "attempt", 2);
    struct pl_hub_query q;

    assert_int_equal(pl_hub_query_init(&q, hub), 0);
    assert_string_equal(q.host, "n1");
    assert_string_equal(q.id.step, "0");
    assert_int_equal(q.id.attempt, 2);
    json_object_set_new(hub, "port", json_integer(65536));
    assert_int_equal(pl_hub_query_init(&q, hub), -EINVAL);
    json_object_set_new(hub, "port", json_integer(1));
    json_object_set_new(hub, "job", json_string("a number that is longer than any of Slurm's"));
    assert_int_equal(pl_hub_query_init(&q, hub), -EINVAL);
    assert_int_equal(pl_hub_query_init(&q, NULL), -EINVAL);
}

static void test_query_all(void **state)
{
    struct pl_hub_query queries[40], *list[40];
    uint16_t port;
    pid_t pid = start('h', &port);

    for (size_t i = 0; i < PL_COUNT(queries); i++) {
        queries[i] = query(port);
        list[i] = &queries[i];
    }
    queries[7].port = 1; /* nobody there */
    snprintf(queries[8].id.job, sizeof(queries[8].id.job), "124");
    pl_hub_query_all(list, PL_COUNT(list), secret, 20000);
    for (size_t i = 0; i < PL_COUNT(queries); i++) {
        if (i == 7 || i == 8) {
            assert_null(queries[i].state);
            assert_true(queries[i].err.code < 0 && *queries[i].err.text);
            continue;
        }
        assert_string_equal(pl_json_string(queries[i].state, "state"), "running");
        json_decref(queries[i].state);
    }
    end_child(pid);
}

static void test_query_all_strangers(void **state)
{
    struct pl_hub_query silent, nonsense, *list[2] = {&silent, &nonsense};
    uint16_t port;
    pid_t pids[2];
    uint64_t begin = pl_now_ns();

    pids[0] = start('s', &port);
    silent = query(port);
    pids[1] = start('n', &port);
    nonsense = query(port);
    pl_hub_query_all(list, 2, secret, 300);
    assert_int_equal(silent.err.code, -ETIMEDOUT);
    assert_true(nonsense.err.code < 0);
    assert_null(silent.state);
    assert_null(nonsense.state);
    assert_true(pl_now_ns() - begin < 5000000000u);
    end_child(pids[0]);
    end_child(pids[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init),
        cmocka_unit_test(test_query_all),
        cmocka_unit_test(test_query_all_strangers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
