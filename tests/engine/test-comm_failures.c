/* SPDX-License-Identifier: MIT */
/* Collectives that cannot end: ranks that are lost, late, give up or disagree. */
#include "common/base/fs.h"
#include "tests/engine/ranks.h"
#include "tests/engine/say.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

static const char *one_dies_before_it_joins(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    void *slab;
    int r;

    TRY(pl_comm_alloc(comm, 4096, &slab, &err));
    TRY(pl_comm_allreduce_start(comm, slab, 1024, PL_REAL_F32, 1, &err));
    if (comm->rank == 1)
        raise(SIGKILL);
    r = pl_comm_join(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "lost rank 1: its process ended"))
        return say("%d: %s", r, err.text);
    r = pl_comm_allreduce_start(comm, slab, 1024, PL_REAL_F32, 1, &err);
    return r == -ECONNRESET ? NULL : "a failed communicator starts a sum";
}

static void test_rank_is_lost_before_it_joins(void **state)
{
    ranks_run(3, 0, one_dies_before_it_joins, NULL, 1u << 1);
}

/* The victim dies while it writes its reason: nobody else may write one. */
static const char *one_dies_while_it_gives_up(struct pl_comm *comm, void *unreadable)
{
    struct pl_error err = {0};
    float x = 1;
    int r;

    TRY(pl_comm_allreduce(comm, &x, 1, PL_REAL_F32, 1, &err));
    if (comm->rank == 2) {
        signal(SIGSEGV, SIG_DFL);
        comm->ops->abort(comm, unreadable);
        return "survived";
    }
    r = pl_comm_barrier(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "lost rank 2: its process ended"))
        return say("%d: %s", r, err.text);
    return NULL;
}

static void test_a_rank_may_die_anywhere(void **state)
{
    long page = sysconf(_SC_PAGESIZE);
    void *unreadable = mmap(NULL, (size_t)page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(unreadable, MAP_FAILED);
    ranks_run(4, 0, one_dies_while_it_gives_up, unreadable, 1u << 2);
    munmap(unreadable, (size_t)page);
}

/* Rank 2 does not come to a collective until the others have given up. */
static const char *one_is_late(struct pl_comm *comm, void *shared)
{
    _Atomic unsigned *gone = shared;
    struct pl_error err = {0};
    uint64_t limit = pl_now_ns() + 60000000000ull;
    int r;

    pl_comm_limits.end_s = 0.3;
    if (comm->rank == 2) {
        while (atomic_load(gone) < comm->size - 1)
            if (pl_now_ns() > limit || poll(NULL, 0, 10) < 0)
                return "the others still wait";
        return NULL;
    }
    r = pl_comm_barrier(comm, &err);
    atomic_fetch_add(gone, 1);
    if (r != -ECONNRESET || !strstr(err.text, "has waited"))
        return say("%d: %s", r, err.text);
    if (strcmp(comm->ops->name, "shm") == 0 && !strstr(err.text, "lost rank 2: a collective"))
        return say("%d: %s", r, err.text);
    return NULL;
}

static void test_a_late_rank_is_waited_for_until_the_limit(void **state)
{
    for (unsigned per_node = 0; per_node <= 2; per_node++) {
        _Atomic unsigned *gone = ranks_shared(sizeof(*gone));

        ranks_run(4, per_node, one_is_late, gone, 0);
    }
}

static const char *one_gives_up(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    float x = 1;
    int r;

    TRY(pl_comm_allreduce(comm, &x, 1, PL_REAL_F32, 1, &err));
    if (comm->rank == 2) {
        pl_comm_abort(comm, "the loss is nonsense");
        return NULL;
    }
    do
        r = pl_comm_allreduce(comm, &x, 1, PL_REAL_F32, 1, &err);
    while (r == 0);
    if (r != -ECONNRESET || strcmp(err.text, "rank 2 gave up: the loss is nonsense") != 0)
        return say("%d: %s", r, err.text);
    return NULL;
}

static void test_reason_reaches_the_others(void **state)
{
    ranks_run(6, 0, one_gives_up, NULL, 0);
    ranks_run(6, 1, one_gives_up, NULL, 0);
    ranks_run(6, 4, one_gives_up, NULL, 0);
    ranks_run(6, 2, one_gives_up, NULL, 0);
}

static const char *ranks_disagree(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    float x[3] = {0};
    int r = pl_comm_allreduce(comm, x, comm->rank == 1 ? 2 : 3, PL_REAL_F32, 1, &err);

    if (r == 0) /* the others may see it only in the next collective */
        r = pl_comm_barrier(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "ranks disagree"))
        return say("%d: %s", r, err.text);
    return NULL;
}

/* The same call, but one rank's buffer is in the communicator's memory. */
static const char *memory_disagrees(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    float own[3] = {0};
    void *slab;
    int r;

    TRY(pl_comm_alloc(comm, sizeof(own), &slab, &err));
    r = pl_comm_allreduce(comm, comm->rank == 1 ? own : slab, 3, PL_REAL_F32, 1, &err);
    if (r == 0) /* the others see it in the next collective */
        r = pl_comm_barrier(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "in other memory"))
        return say("%d: %s", r, err.text);
    return NULL;
}

/* A sum of other elements, or one sum less. */
static const char *starts_disagree(struct pl_comm *comm, void *shared)
{
    const bool *fewer = shared;
    struct pl_error err = {0};
    char *slab;
    int r;

    TRY(pl_comm_alloc(comm, 4096, (void **)&slab, &err));
    TRY(pl_comm_allreduce_start(comm, slab, 16, PL_REAL_F32, 1, &err));
    r = *fewer && comm->rank == 1
            ? 0
            : pl_comm_allreduce_start(comm, slab + (*fewer || comm->rank != 1 ? 1024 : 2048), 16,
                                      PL_REAL_F32, 1, &err);
    if (r == 0)
        r = pl_comm_join(comm, &err);
    if (r == 0) /* the others may see it only in the next collective */
        r = pl_comm_barrier(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "ranks disagree: sum of"))
        return say("%d: %s", r, err.text);
    return NULL;
}

static void test_different_calls_are_an_error(void **state)
{
    bool *fewer = ranks_shared(sizeof(*fewer));

    ranks_run(3, 0, starts_disagree, fewer, 0);
    *fewer = true;
    ranks_run(3, 0, starts_disagree, fewer, 0);
    ranks_run(3, 1, ranks_disagree, NULL, 0);
    ranks_run(3, 0, ranks_disagree, NULL, 0);
    ranks_run(4, 3, ranks_disagree, NULL, 0);
    ranks_run(3, 0, memory_disagrees, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rank_is_lost_before_it_joins),
        cmocka_unit_test(test_a_rank_may_die_anywhere),
        cmocka_unit_test(test_a_late_rank_is_waited_for_until_the_limit),
        cmocka_unit_test(test_reason_reaches_the_others),
        cmocka_unit_test(test_different_calls_are_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
