/* SPDX-License-Identifier: MIT */
/* The process that starts ranks on this machine is killed, or has many signals: the ranks end,
 * whatever they do. */
#include "common/base/fs.h"
#include "runtime/pltrain/spawn_local.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#define RANKS 3
#define LIMIT_MS 60000

static char folder[64]; /* of the starter's socket, which it cannot remove */

/* Bytes come through it; its end is that of all who hold it. */
static int readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};

    return poll(&p, 1, LIMIT_MS);
}

/* A rank that hangs, or one that ends at SIGTERM as the default action has it. */
static void be_rank(int fd, bool hangs)
{
    if (hangs)
        signal(SIGTERM, SIG_IGN);
    alarm(2 * LIMIT_MS / 1000); /* should the test fail */
    if (write(fd, "r", 1) == 1)
        for (;;)
            pause();
    _exit(1);
}

/* Waits until `fd` has had a byte from each rank. */
static void hear_all(int fd)
{
    for (int seen = 0; seen < RANKS;) {
        char bytes[RANKS];
        ssize_t n = readable(fd) == 1 ? read(fd, bytes, sizeof(bytes)) : -1;

        assert_true(n > 0);
        seen += (int)n;
    }
}

/* *ret = a pipe that the ranks alone hold, once they run. The child's process id. */
static pid_t start(void (*rank)(int fd, bool hangs), bool hangs, unsigned grace_ms, int *ret)
{
    struct pl_local_options options = {.processes = RANKS, .grace_ms = grace_ms};
    int pair[2], status;
    pid_t starter;

    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    starter = fork();
    assert_true(starter >= 0);
    if (starter == 0) {
        close(pair[0]);
        if (pl_local_run(&options, &status, NULL) == 1)
            rank(pair[1], hangs);
        _exit(status);
    }
    close(pair[1]);
    hear_all(pair[0]);
    *ret = pair[0];
    return starter;
}

/* The starter is killed. */
static int orphans(bool hangs, unsigned grace_ms)
{
    int fd, status;
    pid_t starter = start(be_rank, hangs, grace_ms, &fd);

    kill(starter, SIGKILL);
    assert_int_equal(waitpid(starter, &status, 0), starter);
    return fd;
}

static void check_ended(int fd)
{
    char byte;

    assert_int_equal(readable(fd), 1);
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);
}

static void test_ranks_that_hang_end_after_the_grace(void **state)
{
    check_ended(orphans(true, 100));
    assert_int_equal(rmdir(folder), 0); /* the socket is gone, too */
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void test_ranks_that_obey_end_at_once(void **state)
{
    check_ended(orphans(false, 10 * LIMIT_MS));
}

static int told;

static void tell(int sig)
{
    if (write(told, "t", 1) < 0)
        _exit(1);
}

/* A rank that takes notice of SIGTERM, and does not end. */
static void be_told(int fd, bool hangs)
{
    told = fd;
    signal(SIGTERM, tell);
    be_rank(fd, hangs);
}

/* One signal after the other, to the starter's last moment: ranks have SIGTERM once. */
static void test_more_signals_do_not_lengthen_the_grace(void **state)
{
    static const int signals[] = {SIGTERM, SIGINT};

    for (size_t i = 0; i < 2; i++) {
        int fd, status, heard = 0;
        pid_t starter = start(be_told, false, 200, &fd);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t limit = pl_now_ns() + LIMIT_MS * 1000000ull;
        ssize_t n = 1;

        while (n > 0 && pl_now_ns() < limit) {
            char bytes[RANKS];

            kill(starter, signals[i]);
            if (poll(&p, 1, 0) != 1)
                continue;
            n = read(fd, bytes, sizeof(bytes));
            heard += (int)n;
        }
        assert_int_equal(n, 0);
        assert_in_range(heard, 0, RANKS);
        close(fd);
        assert_int_equal(waitpid(starter, &status, 0), starter);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 130);
    }
}

static int setup(void **state)
{
    int r = tmpdir_make(folder, sizeof(folder));

    return r < 0 ? r : setenv("PLUME_RUNTIME_DIR", folder, 1);
}

static int teardown(void **state)
{
    return tmpdir_remove(folder);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_hang_end_after_the_grace),
        cmocka_unit_test(test_ranks_that_obey_end_at_once),
        cmocka_unit_test(test_more_signals_do_not_lengthen_the_grace),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
