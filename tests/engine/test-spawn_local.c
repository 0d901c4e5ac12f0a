/* SPDX-License-Identifier: MIT */
/* The process that starts ranks on this machine is killed: they end, whatever they do. */
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

/* Returns a pipe that the ranks alone hold, once they run and who started them was killed. */
static int orphans(bool hangs, unsigned orphan_ms)
{
    struct pl_local_options options = {.processes = RANKS, .orphan_ms = orphan_ms};
    int pair[2], status, seen = 0;
    pid_t starter;

    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    starter = fork();
    assert_true(starter >= 0);
    if (starter == 0) {
        if (pl_local_run(&options, &status, NULL) == 1)
            be_rank(pair[1], hangs);
        _exit(0);
    }
    close(pair[1]);
    while (seen < RANKS) {
        char bytes[RANKS];
        ssize_t n = readable(pair[0]) == 1 ? read(pair[0], bytes, sizeof(bytes)) : -1;

        assert_true(n > 0);
        seen += (int)n;
    }
    kill(starter, SIGKILL);
    assert_int_equal(waitpid(starter, &status, 0), starter);
    return pair[0];
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
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
