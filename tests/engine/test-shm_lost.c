/* SPDX-License-Identifier: MIT */
/* Ranks that share memory, one of which dies: while the others map its memory, or anywhere. */
#include "common/base/fs.h"
#include "tests/engine/ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ENDS_MS 100

/* A process that ends: its descriptors are closed, but it lives for a while. */
static pid_t start_ending(void)
{
    int p[2];
    pid_t pid;
    char c;

    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(p[0]);
        close(p[1]);
        poll(NULL, 0, ENDS_MS);
        _exit(0);
    }
    close(p[1]);
    assert_int_equal(read(p[0], &c, 1), 0); /* it has closed its end */
    close(p[0]);
    return pid;
}

static void test_a_peer_that_ends_while_it_is_mapped_is_lost(void **state)
{
    pid_t pid = start_ending();
    const struct pl_comm_peer peers[] = {{.world_rank = 4, .pid = pid, .fd = 1000},
                                         {.world_rank = 7, .pid = getpid()}};
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    /* Its end is still to come: then it is a process without a parent that has looked. */
    assert_int_equal(pl_comm_shm_create(peers, 2, 1, -1, &comm, &err), -ECONNRESET);
    assert_string_equal(pl_error_text(&err), "lost rank 4: its process ended");
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    /* Now there is no such process at all. */
    err = (struct pl_error){0};
    assert_int_equal(pl_comm_shm_create(peers, 2, 1, -1, &comm, &err), -ECONNRESET);
    assert_string_equal(pl_error_text(&err), "lost rank 4: its process ended");
}

/* The first rank has the control memory: the others hear from it who is lost. */
static void test_the_first_rank_tells_who_is_lost(void **state)
{
    struct pl_comm_peer peers[] = {{.world_rank = 0, .pid = getpid()}, {.world_rank = 1}};
    struct pl_comm *comm = NULL;
    struct pl_error err = {0};

    peers[1].pid = start_ending();
    assert_int_equal(waitpid(peers[1].pid, NULL, 0), peers[1].pid);
    assert_int_equal(pl_comm_shm_control(&peers[0].fd, &err), 0);
    assert_int_equal(pl_comm_shm_create(peers, 2, 0, peers[0].fd, &comm, &err), -ECONNRESET);
    assert_string_equal(pl_error_text(&err), "lost rank 1: its process ended");
    /* Another member, which is late, reads it there. */
    peers[1].pid = getpid();
    err = (struct pl_error){0};
    assert_int_equal(pl_comm_shm_create(peers, 2, 1, -1, &comm, &err), -ECONNRESET);
    assert_string_equal(pl_error_text(&err), "lost rank 1: its process ended");
    close(peers[0].fd);
}

/* The victim's alarm ends it between two instructions of a collective. */
static const char *one_dies_anywhere(struct pl_comm *comm, void *shared)
{
    const unsigned *after_us = shared;
    struct pl_error err = {0};
    float x[100] = {0};
    uint32_t posts = 0;
    char own[200];
    int r = 0;

    if (comm->rank == 2) {
        const struct itimerval alarm = {.it_value.tv_usec = *after_us};

        signal(SIGALRM, SIG_DFL);
        setitimer(ITIMER_REAL, &alarm, NULL);
    }
    while (r == 0) {
        r = pl_comm_barrier(comm, &err);
        if (r == 0)
            r = pl_comm_allreduce(comm, x, 100, PL_REAL_F32, 1, &err);
        if (r == 0)
            r = pl_comm_broadcast(comm, own, sizeof(own), &err);
        if (r == 0) {
            pl_comm_node_post(comm);
            r = pl_comm_node_work(comm, ++posts, NULL, NULL, &err);
        }
    }
    if (r != -ECONNRESET || strcmp(pl_error_text(&err), "lost rank 2: its process ended") != 0) {
        static char text[200];

        snprintf(text, sizeof(text), "%d: %s", r, pl_error_text(&err));
        return text;
    }
    return NULL;
}

static void test_a_rank_may_die_at_any_moment(void **state)
{
    unsigned *after_us = ranks_shared(sizeof(*after_us));
    const char *rounds = getenv("PLUME_TEST_DEATHS");
    long n = rounds ? strtol(rounds, NULL, 10) : 4;

    for (long i = 0; i < n; i++) {
        *after_us = 100 + (unsigned)i * 787 % 5000;
        ranks_run(4, 0, one_dies_anywhere, after_us, 1u << 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_peer_that_ends_while_it_is_mapped_is_lost),
        cmocka_unit_test(test_the_first_rank_tells_who_is_lost),
        cmocka_unit_test(test_a_rank_may_die_at_any_moment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
