/* SPDX-License-Identifier: MIT */
/* Ranks of a node share out the optimizer's update: the node's common memory, and runs whose bits
 * are those of ranks that update everything. */
#include "common/proto/rank/place.h"
#include "runtime/engine/optim/node_update.h"
#include "tests/engine/fit_run.h"
#include "tests/engine/say.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_MS 20000 /* for another rank to go on */

/* Each rank writes its part of the common memory, and its number into all peers' memory. */
static const char *all_see_all(struct pl_comm *comm, void *shared)
{
    const struct pl_comm *node = pl_comm_node(comm);
    size_t n = 3 << 20; /* some huge pages, where the system has them */
    struct pl_error err = {0};
    uint32_t *common, *own;
    void *memory;

    if (!node)
        return shared ? "ranks of a node share no memory" : NULL;
    if (!shared)
        return "ranks of other nodes share memory";
    TRY(pl_comm_alloc(comm, node->size * sizeof(*own), &memory, &err));
    own = memory;
    for (int round = 0; round < 2; round++) {
        TRY(pl_comm_alloc_common(comm, n * sizeof(*common), &memory, &err));
        common = memory;
        for (size_t i = 0; i < n; i += 1021)
            if (common[i] != 0)
                return say("common memory begins with %u at %zu", common[i], i);
        TRY(pl_comm_node_barrier(comm, &err));
        for (size_t i = n * node->rank / node->size; i < n * (node->rank + 1) / node->size; i++)
            common[i] = (uint32_t)(i * 7 + node->rank);
        for (unsigned i = 0; i < node->size; i++)
            *(uint32_t *)pl_comm_of_peer(comm, own + node->rank, i) = node->rank + 1;
        TRY(pl_comm_node_barrier(comm, &err));
        for (unsigned rank = 0; rank < node->size; rank++)
            for (size_t i = n * rank / node->size; i < n * (rank + 1) / node->size; i++)
                if (common[i] != (uint32_t)(i * 7 + rank))
                    return say("element %zu, of rank %u, is %u", i, rank, common[i]);
        for (unsigned i = 0; i < node->size; i++)
            if (own[i] != i + 1)
                return say("rank %u has written %u", i, own[i]);
        TRY(pl_comm_node_barrier(comm, &err));
    }
    /* Collectives do not take common memory for a slab. */
    TRY(pl_comm_broadcast(comm, common + node->rank, sizeof(*common), &err));
    TRY(pl_comm_broadcast(comm, own, sizeof(*own), &err));
    return *own == 1 ? NULL : say("a broadcast gave %u", *own);
}

static void test_a_node_has_common_memory(void **state)
{
    bool yes = true;

    ranks_run(1, 0, all_see_all, NULL, 0);
    ranks_run(3, 1, all_see_all, NULL, 0);
    ranks_run(2, 0, all_see_all, &yes, 0);
    ranks_run(5, 0, all_see_all, &yes, 0);
    ranks_run(6, 3, all_see_all, &yes, 0);
}

static int64_t collectives(void)
{
    struct pl_place place;

    return pl_place_read(getpid(), &place) < 0 ? -1 : place.collectives;
}

/* The node daemon takes a rank that has begun fewer collectives than another one for the one that
 * the others wait for. */
static const char *all_count_it(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    int64_t before;

    pl_place_open();
    before = collectives();
    if (before < 0)
        return "this process has no place";
    TRY(pl_comm_node_barrier(comm, &err));
    if (collectives() != before + 1)
        return say("rank %u counts %lld collectives", comm->rank,
                   (long long)(collectives() - before));
    TRY(pl_comm_barrier(comm, &err));
    return NULL;
}

static void test_a_barrier_of_the_node_counts(void **state)
{
    ranks_run(2, 0, all_count_it, NULL, 0);
    ranks_run(3, 2, all_count_it, NULL, 0);
    ranks_run(2, 1, all_count_it, NULL, 0);
}

#define ELEMENTS 1000 /* the last line of memory is not full */

/* Parts follow each other in the order of ranks, and are as large but for a line of 16. */
static const char *parts(struct pl_comm *comm, void *shared)
{
    const struct pl_params params = {.real = PL_REAL_F32, .by_node = comm};
    const struct pl_optimizer o = {.count = ELEMENTS};
    const struct pl_optimizer_range range = {.own_count = ELEMENTS};
    size_t all[8][2] = {0}, offset[9], at = 0;
    struct pl_error err = {0};

    all[comm->rank][1] = ELEMENTS;
    pl_node_update_part(&o, &params, &range, comm->rank, &all[comm->rank][0], &all[comm->rank][1]);
    for (unsigned i = 0; i <= comm->size; i++)
        offset[i] = i * sizeof(all[0]);
    TRY(pl_comm_allgather(comm, all, offset, &err));
    for (unsigned i = 0; i < comm->size; at = all[i++][1]) {
        double far = (double)(all[i][1] - all[i][0]) - (double)ELEMENTS / comm->size;

        if (all[i][0] != at || far < -16 || far > 16)
            return say("rank %u of %u: [%zu, %zu)", i, comm->size, all[i][0], all[i][1]);
    }
    return at == ELEMENTS ? NULL : say("the last part ends at %zu", at);
}

static void test_each_rank_has_its_part(void **state)
{
    for (unsigned n = 2; n <= 5; n++)
        ranks_run(n, 0, parts, NULL, 0);
}

/* A peer that dies is named, also to ranks of other nodes. */
static const char *one_dies(struct pl_comm *comm, void *shared)
{
    struct pl_error err = {0};
    void *memory;
    int r;

    TRY(pl_comm_alloc_common(comm, 64, &memory, &err));
    TRY(pl_comm_barrier(comm, &err));
    if (comm->rank == 1)
        raise(SIGKILL);
    r = comm->rank < 2 ? pl_comm_node_barrier(comm, &err) : pl_comm_barrier(comm, &err);
    if (r != -ECONNRESET || !strstr(err.text, "lost rank 1"))
        return say("%d: '%s'", r, err.text);
    return NULL;
}

static void test_a_lost_peer_is_named(void **state)
{
    ranks_run(2, 0, one_dies, NULL, 1 << 1);
    ranks_run(4, 2, one_dies, NULL, 1 << 1);
}

static const struct plume_optimizer kinds[] = {
    {.kind = PLUME_SGD},
    {.kind = PLUME_SGD, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.01},
    {.kind = PLUME_ADAM, .weight_decay = 0.01},
    {.kind = PLUME_ADAMW, .weight_decay = 0.1},
    {.kind = PLUME_RMSPROP, .momentum = 0.5, .centered = 1},
    {.kind = PLUME_ADAGRAD},
};
static const struct plume_optimizer *kind;

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->momentum = kind->momentum;
    ret->nesterov = kind->nesterov;
    ret->centered = kind->centered;
    ret->weight_decay = kind->weight_decay;
    ret->lr = 0.01;
    return 0;
}

/* A module that may have a reduction of its own: each rank updates everything. */
static int keep_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    return 0;
}

static struct fit_run *new_run(bool alone)
{
    struct fit_run *run = fit_new_run();

    run->module.configure_optimizers = configure_optimizers;
    run->module.configure_ddp = alone ? keep_ddp : NULL;
    run->options.optimizer = kind->kind;
    run->options.max_steps = 6;
    return run;
}

static void
assert_same_bits(struct fit_run *shared, struct fit_run *alone, unsigned ranks, unsigned per_node)
{
    fit_go(shared, ranks, per_node);
    fit_go(alone, ranks, per_node);
    fit_assert_good(shared);
    fit_assert_good(alone);
    assert_string_equal(shared->hash, alone->hash);
}

static void test_the_bits_are_those_of_whole_updates(void **state)
{
    for (size_t i = 0; i < PL_COUNT(kinds); i++) {
        kind = &kinds[i];
        assert_same_bits(new_run(false), new_run(true), 2, 0);
        assert_same_bits(new_run(false), new_run(true), 5, 0);
        assert_same_bits(new_run(false), new_run(true), 4, 2);
    }
}

/* With all that comes between the gradients and the update, or behind it. */
static void test_options_go_with_it(void **state)
{
    static const enum pl_clip clips[] = {PL_CLIP_NORM, PL_CLIP_VALUE};

    kind = &kinds[2];
    for (int i = 0; i < 4; i++) {
        struct fit_run *run[2];

        for (int alone = 0; alone < 2; alone++) {
            struct pl_train_options *o = &(run[alone] = new_run(alone))->options;

            o->clip_by = clips[i % 2];
            o->clip = 0.05;
            o->accumulate = 1 + (uint64_t)i;
            o->ema = i > 1 ? 0.9 : 0;
            o->precision = i == 3 ? PL_PRECISION_64 : o->precision;
            o->strategy = i == 1 ? PL_STRATEGY_HOROVOD : PL_STRATEGY_DDP;
        }
        assert_same_bits(run[0], run[1], 3, 0);
    }
}

/* Their gradients differ until the parameters are averaged. */
static void test_ranks_that_train_alone_update_alone(void **state)
{
    struct fit_run *run[2];

    kind = &kinds[2];
    for (unsigned apart = 0; apart < 2; apart++) {
        run[apart] = new_run(false);
        run[apart]->options.average_every = 3;
        fit_go(run[apart], 2, apart); /* on a node, and on two nodes, which share no memory */
        fit_assert_good(run[apart]);
    }
    assert_string_equal(run[0]->hash, run[1]->hash);
}

static pid_t pids[2]; /* of the ranks */

static int open_places(struct plume_context *pl)
{
    pid_t mine = getpid();

    pl_place_open();
    return plume_all_gather(pl, &mine, sizeof(mine), pids);
}

/* Rank 0 is done with the hook at once. Rank 1 waits until rank 0 is in the next barrier: if that
 * is the one after the update, rank 0 has updated parameters that rank 1 still reads. */
static int read_twice(struct plume_context *pl)
{
    double before[640], now[640];
    struct pl_place place = {0};
    char word = 0;

    if (plume_read(pl, "w", PLUME_VALUE, 640, before) < 0 ||
        plume_broadcast(pl, &word, sizeof(word)) < 0)
        return -EIO;
    if (pl->rank == 0)
        return 0;
    for (int i = 0; i < LIMIT_MS && place.collectives <= collectives(); i++) {
        if (pl_place_read(pids[0], &place) < 0)
            return plume_fail(pl, -EINVAL, "rank 0 has no place");
        poll(NULL, 0, 1);
    }
    if (place.collectives <= collectives())
        return plume_fail(pl, -ETIMEDOUT, "rank 0 does not go on");
    if (plume_read(pl, "w", PLUME_VALUE, 640, now) < 0)
        return -EIO;
    return memcmp(before, now, sizeof(now)) == 0
               ? 0
               : plume_fail(pl, -EINVAL, "another rank has updated 'w' already");
}

static void test_hooks_read_values_before_the_update(void **state)
{
    kind = &kinds[0];
    for (int i = 0; i < 2; i++) {
        struct fit_run *run = new_run(false);

        run->options.max_steps = 1;
        run->module.on_fit_start = open_places;
        *(i ? &run->module.on_after_backward : &run->module.on_before_optimizer_step) = read_twice;
        fit_go(run, 2, 0);
        fit_assert_good(run);
    }
}

static int open_place(struct plume_context *pl)
{
    pl_place_open();
    return 0;
}

static int compare_places(struct plume_context *pl)
{
    int64_t mine = collectives(), all[8];

    if (plume_all_gather(pl, &mine, sizeof(mine), all) < 0)
        return -EIO;
    for (unsigned i = 0; i < pl->world_size; i++)
        if (all[i] != mine || mine < (int64_t)fit_current->options.max_steps)
            return plume_fail(pl, -EINVAL, "ranks have begun other numbers of collectives");
    return 0;
}

static void test_all_ranks_count_alike(void **state)
{
    kind = &kinds[0];
    for (int hook = 0; hook < 2; hook++) {
        struct fit_run *run = new_run(false);

        run->module.on_fit_start = open_place;
        run->module.on_fit_end = compare_places;
        run->module.on_after_backward = hook ? open_place : NULL;
        fit_go(run, 3, 2); /* the last one is alone on its node */
        fit_assert_good(run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_has_common_memory),
        cmocka_unit_test(test_a_barrier_of_the_node_counts),
        cmocka_unit_test(test_each_rank_has_its_part),
        cmocka_unit_test(test_a_lost_peer_is_named),
        cmocka_unit_test(test_the_bits_are_those_of_whole_updates),
        cmocka_unit_test(test_options_go_with_it),
        cmocka_unit_test(test_ranks_that_train_alone_update_alone),
        cmocka_unit_test(test_hooks_read_values_before_the_update),
        cmocka_unit_test(test_all_ranks_count_alike),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
