/* SPDX-License-Identifier: MIT */
/* Names are resolved beside the loop, and a process without room for a thread lives on. */
#include "common/base/fs.h"
#include "runtime/node/resolve.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#define PLAIN_UID 65534

struct seen {
    unsigned calls;
    bool loopback, none;
};

static void on_resolved(void *ctx, struct addrinfo *list)
{
    struct seen *s = ctx;

    s->calls++;
    s->none = !list;
    for (struct addrinfo *a = list; a; a = a->ai_next)
        if (a->ai_family == AF_INET)
            s->loopback = ntohl(((struct sockaddr_in *)a->ai_addr)->sin_addr.s_addr) >> 24 == 127;
        else if (a->ai_family == AF_INET6)
            s->loopback = IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr);
    if (list)
        freeaddrinfo(list);
}

/* Resolves in a loop of its own, until that has no more to do. Returns pl_resolve_start()'s. */
static int resolve(const char *host, bool cancel, struct seen *ret)
{
    struct pl_resolve *resolve = NULL;
    uv_loop_t loop;
    int r;

    *ret = (struct seen){0};
    assert_int_equal(uv_loop_init(&loop), 0);
    r = pl_resolve_start(&loop, host, on_resolved, ret, &resolve);
    if (cancel)
        pl_resolve_cancel(resolve);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    return r;
}

static void test_resolve_name(void **state)
{
    char long_name[400] = "";
    struct seen seen;

    assert_int_equal(resolve("localhost", false, &seen), 0);
    assert_int_equal(seen.calls, 1);
    assert_true(seen.loopback);
    memset(long_name, 'a', sizeof(long_name) - 1); /* no query leaves this host */
    assert_int_equal(resolve(long_name, false, &seen), 0);
    assert_int_equal(seen.calls, 1);
    assert_true(seen.none);
}

/* The thread may be anywhere in its work: at the end, too, nothing is called and nothing leaks. */
static void test_resolve_cancel(void **state)
{
    struct seen seen;

    for (int i = 0; i < 100; i++) {
        assert_int_equal(resolve("localhost", true, &seen), 0);
        assert_int_equal(seen.calls, 0);
    }
    pl_resolve_cancel(NULL);
}

/* As a user at the limit of processes; root has none. */
static void test_resolve_no_thread(void **state)
{
    const struct rlimit none = {1, 1};
    int status;
    pid_t pid;

#ifdef __SANITIZE_THREAD__
    print_message("# skipped: ThreadSanitizer starts no thread in a child of threads\n");
    return;
#endif
    pid = fork();
    if (pid == 0) {
        struct seen seen;

        if (geteuid() == 0 && setresuid(PLAIN_UID, PLAIN_UID, PLAIN_UID) < 0)
            _exit(2);
        if (setrlimit(RLIMIT_NPROC, &none) < 0)
            _exit(3);
        _exit(resolve("localhost", false, &seen) == -EAGAIN && seen.calls == 0 ? 0 : 4);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resolve_name),
        cmocka_unit_test(test_resolve_cancel),
        cmocka_unit_test(test_resolve_no_thread),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
