/* SPDX-License-Identifier: MIT */
#include "runtime/node/net.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const struct pl_session_id id = {.job = "12", .step = "0", .attempt = 1};
static const unsigned char secret[PL_KEY_SIZE + 1] = "0123456789abcdef0123456789abcdef";

static int bind_to(uint16_t port, int option)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

    if (option)
        setsockopt(fd, SOL_SOCKET, option, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        int r = -errno;

        close(fd);
        return r;
    }
    return fd;
}

static void test_hold_keeps_port(void **state)
{
    struct pl_error err = {0};
    int fd, other;
    uint16_t port;

    assert_int_equal(pl_port_reserve(0, &fd, &port, &err), 0);
    assert_true(port > 0);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(bind_to(port, 0), -EADDRINUSE);
    other = bind_to(port, SO_REUSEADDR); /* as PyTorch's store does */
    assert_true(other >= 0);
    assert_int_equal(listen(other, 1), 0);
    close(other);
    other = bind_to(port, SO_REUSEPORT);
    assert_true(other >= 0);
    close(other);
    close(fd);
    other = bind_to(port, 0);
    assert_true(other >= 0);
    close(other);
}

/* The kernel gives a held port to nobody that asks for any. */
static void test_hold_against_choice(void **state)
{
    struct pl_error err = {0};
    uint16_t held[32], port;
    int fds[32], fd;

    for (int i = 0; i < 32; i++)
        assert_int_equal(pl_port_reserve(0, &fds[i], &held[i], &err), 0);
    for (int n = 0; n < 3000; n++) {
        struct sockaddr_in a;
        socklen_t len = sizeof(a);

        fd = bind_to(0, SO_REUSEADDR);
        assert_true(fd >= 0);
        assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
        port = ntohs(a.sin_port);
        for (int i = 0; i < 32; i++)
            assert_int_not_equal(port, held[i]);
        close(fd);
    }
    for (int i = 0; i < 32; i++)
        close(fds[i]);
}

static void test_listen_shares_only_held(void **state)
{
    struct pl_error err = {0};
    int held, hub, second;
    uint16_t port;

    assert_int_equal(pl_port_reserve(0, &held, &port, &err), 0);
    assert_int_equal(pl_net_listen_alone(NULL, port, &second, &err), -EADDRINUSE);
    assert_int_equal(pl_net_listen(NULL, port, &hub, &err), 0);
    close(held);
    assert_int_equal(pl_net_listen_alone(NULL, port, &second, &err), -EADDRINUSE);
    assert_non_null(strstr(err.text, "port"));
    close(hub);
    assert_int_equal(pl_net_listen_alone(NULL, port, &hub, &err), 0);
    assert_int_equal(pl_net_listen(NULL, port, &second, &err), -EADDRINUSE);
    assert_int_equal(pl_net_listen_alone(NULL, port, &second, &err), -EADDRINUSE);
    close(hub);
}

static void test_reserve_in_range(void **state)
{
    struct pl_error err = {0};
    int first, second, third, hub;
    uint16_t low, a, b, c;
    int r = -1;

    /* Another process may take the port in between. */
    for (int i = 0; i < 20 && r < 0; i++) {
        assert_int_equal(pl_port_reserve(0, &first, &low, &err), 0);
        close(first);
        r = pl_port_reserve_own(low, low, &first, &a, &err);
    }
    assert_int_equal(r, 0);
    assert_int_equal(a, low);
    assert_int_equal(pl_port_reserve_own(low, low, &second, &b, &err), -EADDRINUSE);
    assert_non_null(strstr(err.text, "no free port"));
    assert_int_equal(pl_net_listen_alone(NULL, low, &third, &err), -EADDRINUSE);
    assert_int_equal(pl_net_listen(NULL, low, &hub, &err), 0); /* as the hub does */
    assert_int_equal(pl_port_reserve_own(low, low, &third, &c, &err), -EADDRINUSE);
    close(hub);
    close(first);
}

/* In another user's process: binds and listens with these options. The exit code, 0 = it can. */
static int take_as_another(uint16_t port, bool reuse_addr, bool reuse_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, fd, status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        if (setresuid(65533, 65533, 65533) < 0)
            _exit(2);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (reuse_addr)
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (reuse_port)
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
        _exit(bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 1) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

/* The hub's port, before the hub listens and after. */
static void test_reserve_own_is_for_one_user(void **state)
{
    struct pl_error err = {0};
    int held, hub;
    uint16_t port;

    if (geteuid() != 0) {
        print_message("# skipped: only root acts for another user\n");
        return;
    }
    assert_int_equal(pl_port_reserve_own(0, 0, &held, &port, &err), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(take_as_another(port, i & 1, i & 2), 1);
    assert_int_equal(pl_net_listen(NULL, port, &hub, &err), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(take_as_another(port, i & 1, i & 2), 1);
    close(hub);
    assert_int_equal(pl_net_listen("127.0.0.1", port, &hub, &err), 0);
    close(hub);
    close(held);
}

static void test_interfaces(void **state)
{
    char name[64];

    assert_int_equal(pl_net_interface("127.0.0.1", name, sizeof(name)), 0);
    assert_string_equal(name, "lo");
    assert_int_equal(pl_net_interface("192.0.2.77", name, sizeof(name)), -ENODEV);
    assert_int_equal(pl_net_interface("127.0.0.1", name, 2), -ENODEV);
    assert_true(pl_net_is_loopback("127.1.2.3") && pl_net_is_loopback("::1"));
    assert_false(pl_net_is_loopback("10.0.0.1"));
    pl_net_reachable_address("192.0.2.1", name, sizeof(name));
    assert_true(strcmp(name, "127.0.0.1") == 0 || !pl_net_is_loopback(name));
    pl_net_reachable_address("no address", name, sizeof(name));
    assert_true(*name);
    pl_net_reachable_address(NULL, name, sizeof(name));
    assert_true(*name);
}

static void test_find_free_range(void **state)
{
    struct pl_error err = {0};
    uint16_t port, found;
    int fd;

    assert_int_equal(pl_port_reserve(0, &fd, &port, &err), 0);
    assert_int_equal(pl_net_find_free(port, port, &found, &err), -EADDRINUSE);
    assert_non_null(strstr(err.text, "no free port"));
    close(fd);
    assert_int_equal(pl_net_find_free(port, port, &found, &err), 0);
    assert_int_equal(found, port);
    assert_int_equal(pl_net_find_free(65535, 65535, &found, &err) == 0 || err.code, 1); /* ends */
}

static void test_connect_and_names(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct pl_error err = {0};
    char name[64];
    uint16_t port;
    int held, hub, client, server;
    struct pollfd p = {.events = POLLOUT};

    assert_int_equal(pl_port_reserve(0, &held, &port, &err), 0);
    assert_int_equal(pl_net_listen(NULL, port, &hub, &err), 0);
    a.sin_port = htons(port);
    assert_int_equal(pl_net_connect((struct sockaddr *)&a, sizeof(a), &client), 0);
    assert_true(fcntl(client, F_GETFL) & O_NONBLOCK);
    p.fd = client;
    assert_int_equal(poll(&p, 1, 10000), 1);
    p = (struct pollfd){.fd = hub, .events = POLLIN};
    assert_int_equal(poll(&p, 1, 10000), 1);
    server = accept(hub, NULL, NULL);
    assert_true(server >= 0);
    pl_net_tune(server);
    /* The hub listens on IPv6 too: an IPv4 peer is named as IPv4. */
    assert_int_equal(pl_net_name(server, true, name, sizeof(name)), 0);
    assert_string_equal(name, "127.0.0.1");
    assert_int_equal(pl_net_name(server, false, name, sizeof(name)), 0);
    assert_string_equal(name, "127.0.0.1");
    assert_true(pl_net_name(hub, true, name, sizeof(name)) < 0);
    assert_true(pl_net_name(client, true, name, 4) < 0); /* no room */
    close(server);
    close(client);
    close(hub);
    close(held);
    assert_int_equal(pl_net_own_address(name, sizeof(name), &err), 0);
    assert_true(strlen(name) > 0);
}

static void test_walk_is_keyed(void **state)
{
    struct pl_session_id other[3] = {id, id, id};
    unsigned char key[PL_KEY_SIZE];
    uint16_t a[PL_WALK_PORTS], b[PL_WALK_PORTS];
    struct pl_error err = {0};

    unsetenv("PLUME_HUB_PORTS");
    assert_int_equal(pl_hub_ports_derive(secret, &id, a, &err), 0);
    assert_int_equal(pl_hub_ports_derive(secret, &id, b, &err), 0);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 0; i < PL_WALK_PORTS; i++)
        assert_in_range(a[i], PL_WALK_LOW, PL_WALK_HIGH);
    other[0].attempt = 2;
    snprintf(other[1].job, sizeof(other[1].job), "13");
    snprintf(other[2].step, sizeof(other[2].step), "1");
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pl_hub_ports_derive(secret, &other[i], b, &err), 0);
        assert_memory_not_equal(a, b, sizeof(a));
    }
    memcpy(key, secret, sizeof(key));
    key[31] ^= 1;
    assert_int_equal(pl_hub_ports_derive(key, &id, b, &err), 0);
    assert_memory_not_equal(a, b, sizeof(a));
    /* Once published, never changed: nodes of different releases must meet. */
    assert_int_equal(a[0], 24956);
    assert_int_equal(a[7], 20648);
}

static void test_walk_range(void **state)
{
    uint16_t a[PL_WALK_PORTS];
    struct pl_error err = {0};

    setenv("PLUME_HUB_PORTS", "40000-40001", 1);
    assert_int_equal(pl_hub_ports_derive(secret, &id, a, &err), 0);
    for (int i = 0; i < PL_WALK_PORTS; i++)
        assert_in_range(a[i], 40000, 40001);
    setenv("PLUME_HUB_PORTS", "40001", 1);
    assert_int_equal(pl_hub_ports_derive(secret, &id, a, &err), 0);
    assert_int_equal(a[3], 40001);
    setenv("PLUME_HUB_PORTS", "1-65535", 1);
    assert_int_equal(pl_hub_ports_derive(secret, &id, a, &err), 0);
    setenv("PLUME_HUB_PORTS", "5-4", 1);
    assert_int_equal(pl_hub_ports_derive(secret, &id, a, &err), -ERANGE);
    assert_non_null(strstr(err.text, "PLUME_HUB_PORTS"));
    unsetenv("PLUME_HUB_PORTS");
}

/* In a range that has them, all ports of a walk differ: a busy one costs one try. */
static void test_walk_distinct(void **state)
{
    struct pl_session_id some = id;
    uint16_t a[PL_WALK_PORTS];
    struct pl_error err = {0};

    setenv("PLUME_HUB_PORTS", "40000-40007", 1);
    for (some.attempt = 0; some.attempt < 200; some.attempt++) {
        assert_int_equal(pl_hub_ports_derive(secret, &some, a, &err), 0);
        for (int i = 0; i < PL_WALK_PORTS; i++)
            for (int k = 0; k < i; k++)
                assert_int_not_equal(a[i], a[k]);
    }
    unsetenv("PLUME_HUB_PORTS");
}

static void test_split_forms(void **state)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } good[] = {{"n1:5", "n1", 5},
                {"10.0.0.1:65535", "10.0.0.1", 65535},
                {"[::1]:80", "::1", 80},
                {"::1:80", "::1", 80}};
    static const char *const bad[] = {"",         "n1",    ":5",   "n1:",   "n1:0",
                                      "n1:65536", "n1:5x", "[]:5", "n1:-5", "n1: 5",
                                      "[[]]:5",   "[n1:5", "n]1:5"};
    char host[16], tiny[3];
    uint16_t port = 9;

    for (size_t i = 0; i < PL_COUNT(good); i++) {
        assert_int_equal(pl_net_split(good[i].text, host, sizeof(host), &port), 0);
        assert_string_equal(host, good[i].host);
        assert_int_equal(port, good[i].port);
    }
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_net_split(bad[i], host, sizeof(host), &port), -EINVAL);
    assert_int_equal(pl_net_split("abc:5", tiny, sizeof(tiny), &port), -EINVAL);
    assert_int_equal(pl_net_split("ab:5", tiny, sizeof(tiny), &port), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hold_keeps_port),
        cmocka_unit_test(test_hold_against_choice),
        cmocka_unit_test(test_listen_shares_only_held),
        cmocka_unit_test(test_find_free_range),
        cmocka_unit_test(test_reserve_in_range),
        cmocka_unit_test(test_reserve_own_is_for_one_user),
        cmocka_unit_test(test_interfaces),
        cmocka_unit_test(test_connect_and_names),
        cmocka_unit_test(test_walk_is_keyed),
        cmocka_unit_test(test_walk_range),
        cmocka_unit_test(test_walk_distinct),
        cmocka_unit_test(test_split_forms),
    };

    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
