/* SPDX-License-Identifier: MIT */
/* Ranks of a node sum and update in one pass: who works, and who reads gradients afterwards. */
#include "common/base/fs.h"
#include "common/proto/rank/place.h"
#include "tests/engine/fit_run.h"
#include "tests/engine/say.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_MS 20000 /* for another rank to go on */
#define STEPS 4
#define RANKS 3
#define WIDE 1100 /* 4.8 MB of parameters between layers of this width: a bucket */

/* Shared by the ranks of a run. */
struct seen {
    pid_t pid[RANKS];
    double sum[RANKS][STEPS]; /* of the gradients that a rank has read after a step, by weights */
    double late[640], early[640];
};
static struct seen *seen;

/* A module that may have a reduction of its own: gradients are summed before the update. */
static int keep_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    return 0;
}

static struct pl_trainer *trainer_of(struct plume_context *pl)
{
    return (struct pl_trainer *)(void *)((char *)pl - offsetof(struct pl_trainer, ctx));
}

static struct fit_run *new_run(bool alone)
{
    struct fit_run *run = fit_new_run();

    run->module.configure_ddp = alone ? keep_ddp : NULL;
    run->options.max_steps = STEPS;
    run->options.optimizer = PLUME_ADAM;
    return run;
}

static int expect_shared(struct plume_context *pl)
{
    bool alone = fit_current->module.configure_ddp != NULL;

    return alone == !trainer_of(pl)->node_step.comm ? 0 : plume_fail(pl, -EINVAL, "not so shared");
}

static int sum_gradients(struct plume_context *pl, const struct plume_batch *batch)
{
    uint64_t step = trainer_of(pl)->state.step;
    double grad[640], *sum = &seen->sum[pl->rank][(step - 1) % STEPS];

    if (!step || trainer_of(pl)->accumulated) /* not the end of a step */
        return 0;
    *sum = 0;
    if (plume_read(pl, "w", PLUME_GRADIENT, 640, grad) < 0)
        return -EIO;
    for (size_t i = 0; i < 640; i++)
        *sum += grad[i] * (double)(i + 1);
    if (plume_read(pl, "b", PLUME_GRADIENT, 10, grad) < 0)
        return -EIO;
    for (size_t i = 0; i < 10; i++)
        *sum += grad[i] * (double)(i + 1);
    return 0;
}

static int nothing(struct plume_context *pl)
{
    return 0;
}

static int expect_sums(struct plume_context *pl)
{
    return trainer_of(pl)->node_step.comm ? plume_fail(pl, -EINVAL, "there are no sums") : 0;
}

static void test_gradients_are_read_after_the_step(void **state)
{
    for (int i = 0; i < 4; i++) {
        unsigned ranks = i % 2 ? 3 : 2;
        struct seen *result[2];

        for (int alone = 0; alone < 2; alone++) {
            struct fit_run *run = new_run(alone);

            result[alone] = seen = ranks_shared(sizeof(*seen));
            run->options.accumulate = i > 1 ? 2 : 1;
            run->options.precision = i == 1 ? PL_PRECISION_64 : run->options.precision;
            run->module.on_fit_start = expect_shared;
            run->module.on_train_batch_end = sum_gradients;
            fit_go(run, ranks, 0);
            fit_assert_good(run);
        }
        for (unsigned rank = 0; rank < ranks; rank++)
            for (int step = 0; step < STEPS; step++) {
                assert_true(result[0]->sum[rank][step] != 0);
                assert_true(result[0]->sum[rank][step] == result[1]->sum[rank][step]);
            }
    }
}

static int64_t collectives(pid_t pid)
{
    struct pl_place place;

    return pl_place_read(pid, &place) < 0 ? -1 : place.collectives;
}

static int open_places(struct plume_context *pl)
{
    pl_place_open();
    seen->pid[pl->rank] = getpid();
    return expect_shared(pl);
}

/* Rank 0 is done with the hook at once, and is ahead by a collective when it waits for rank 1 to
 * read. Without that it would go on to the next sums, with other gradients. */
static int read_late(struct plume_context *pl, const struct plume_batch *batch)
{
    double *grad = pl->rank ? seen->late : seen->early;

    if (trainer_of(pl)->state.step != 1)
        return 0;
    if (pl->rank == 0)
        return plume_read(pl, "w", PLUME_GRADIENT, 640, grad);
    for (int i = 0; i < LIMIT_MS && collectives(seen->pid[0]) <= collectives(getpid()); i++)
        poll(NULL, 0, 1);
    if (collectives(seen->pid[0]) <= collectives(getpid()))
        return plume_fail(pl, -ETIMEDOUT, "rank 0 does not go on");
    return plume_read(pl, "w", PLUME_GRADIENT, 640, grad);
}

static void test_a_late_reader_reads_the_same(void **state)
{
    struct fit_run *run = new_run(false);

    seen = ranks_shared(sizeof(*seen));
    run->module.on_fit_start = open_places;
    run->module.on_train_batch_end = read_late;
    fit_go(run, 2, 0);
    fit_assert_good(run);
    assert_memory_equal(seen->early, seen->late, sizeof(seen->late));
}

static unsigned taken(const struct pl_node_step *step)
{
    unsigned n = 0;

    for (unsigned i = 0; i < step->comm->size; i++)
        n += atomic_load((_Atomic uint32_t *)(void *)((char *)step->taken + (size_t)i * 64));
    return n;
}

/* One step more, by hand: rank 1 has posted its gradients, and does not come until rank 0 has
 * updated its own part and rank 1's. */
static int step_by_hand(struct plume_context *pl)
{
    struct pl_trainer *t = trainer_of(pl);
    struct pl_reducer *reducer = &t->stage[PLUME_TRAIN].lanes[0].reducer;
    unsigned before = taken(&t->node_step);
    struct pl_error err = {0};
    bool used;
    int r;

    pl_node_step_release(&t->node_step);
    r = pl_node_step_await(&t->node_step, &err);
    pl_reducer_begin(reducer, 0.5, false);
    reducer->posts = true;
    if (r == 0)
        r = pl_reducer_after_node(reducer, 0, &err);
    for (int i = 0; r == 0 && pl->rank == 1 && i < LIMIT_MS && taken(&t->node_step) < before + 2;
         i++)
        poll(NULL, 0, 1);
    if (r == 0 && pl->rank == 1 && taken(&t->node_step) < before + 2)
        return plume_fail(pl, -ETIMEDOUT, "rank 0 only waits");
    if (r == 0)
        r = pl_node_step_run(&t->node_step, INFINITY, &used, &err);
    return r < 0 ? plume_fail(pl, r, pl_error_text(&err)) : 0;
}

static void test_a_rank_that_waits_works(void **state)
{
    struct fit_run *run = new_run(false);

    run->module.on_fit_end = step_by_hand;
    fit_go(run, 2, 0);
    fit_assert_good(run);
}

static plume_tensor *wide[3];

static int configure_wide(struct plume_context *pl)
{
    wide[0] = plume_param(pl, "first", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDE, 64});
    wide[1] = plume_param(pl, "middle", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDE, WIDE});
    wide[2] = plume_param(pl, "again", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDE, WIDE});
    return fit_configure(pl);
}

/* The first layers use `again` as a constant, so that backward reads it after its gradient is
 * complete. */
static int step_wide(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **loss)
{
    struct fit_net *net = pl->state;
    plume_tensor *x = plume_linear(pl, batch->field[0], wide[0], NULL, PLUME_IDENTITY);

    x = plume_linear(pl, x, plume_detach(pl, wide[2]), NULL, PLUME_RELU);
    x = plume_linear(pl, x, wide[1], NULL, PLUME_RELU);
    x = plume_linear(pl, x, wide[2], NULL, PLUME_RELU);
    x = plume_matmul(pl, x, wide[0], 0, 0);
    *loss = plume_cross_entropy(pl, plume_linear(pl, x, net->w, net->b, PLUME_IDENTITY),
                                batch->field[1]);
    return 0;
}

static const struct pl_bucket *bucket_of(const struct pl_reducer *red, const struct pl_param *p)
{
    for (size_t i = 0; i < red->n; i++)
        if (p->offset >= red->buckets[i].offset &&
            p->offset < red->buckets[i].offset + red->buckets[i].count)
            return &red->buckets[i];
    return NULL;
}

static int check_buckets(struct plume_context *pl)
{
    struct pl_trainer *t = trainer_of(pl);
    const struct pl_reducer *red = &t->stage[PLUME_TRAIN].lanes[0].reducer;
    const struct pl_bucket *again = bucket_of(red, t->ctx.params.list[2]);
    struct pl_reducer next = *red; /* it has come to that bucket */

    next.posts = true;
    next.next = (size_t)(again - red->buckets);
    if (pl_reducer_stop(&next) != again->free_node)
        return plume_fail(pl, -EINVAL, "a bucket is posted at another node");
    if (red->n < 3)
        return plume_fail(pl, -EINVAL, "there are too few buckets");
    if (again->free_node >= again->ready_node || again->free_node > 2)
        return plume_fail(pl, -EINVAL, "a parameter is free while backward reads it");
    return 0;
}

static void test_a_parameter_is_free_when_nobody_reads_it(void **state)
{
    for (unsigned ranks = 2; ranks <= RANKS; ranks++) {
        struct fit_run *run[2];

        for (int alone = 0; alone < 2; alone++) {
            run[alone] = new_run(alone);
            run[alone]->module.configure = configure_wide;
            run[alone]->module.training_step = step_wide;
            run[alone]->module.validation_step = NULL;
            run[alone]->module.on_fit_start = expect_shared;
            run[alone]->module.on_fit_end = check_buckets;
            fit_go(run[alone], ranks, 0);
            fit_assert_good(run[alone]);
        }
        assert_string_equal(run[0]->hash, run[1]->hash);
    }
}

static plume_tensor *rare;

static int configure_rare(struct plume_context *pl)
{
    rare = plume_param(pl, "rare", PLUME_INIT_FAN_IN, 2, (size_t[]){64, 64});
    return fit_configure(pl);
}

/* Every other step only rank 1 uses `rare`. It is late: rank 0 has waited for all to go on, and
 * waits for gradients, before rank 1 has flags of this step. */
static int step_rare(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **loss)
{
    struct fit_net *net = pl->state;
    bool waits = pl->rank == 1 && pl->step > 0 && !fit_current->module.configure_ddp;
    plume_tensor *x = batch->field[0];
    int64_t until = collectives(getpid()) + 2;

    for (int i = 0; waits && i < LIMIT_MS && collectives(seen->pid[0]) < until; i++)
        poll(NULL, 0, 1);
    if (waits && collectives(seen->pid[0]) < until)
        return plume_fail(pl, -ETIMEDOUT, "rank 0 does not go on");
    if (pl->rank == 1 && pl->step % 2)
        x = plume_linear(pl, x, rare, NULL, PLUME_RELU);
    *loss = plume_cross_entropy(pl, plume_linear(pl, x, net->w, net->b, PLUME_IDENTITY),
                                batch->field[1]);
    return 0;
}

static void test_nobody_plans_before_all_flags(void **state)
{
    struct fit_run *run[2];

    for (int alone = 0; alone < 2; alone++) {
        run[alone] = new_run(alone);
        seen = ranks_shared(sizeof(*seen));
        run[alone]->module.configure = configure_rare;
        run[alone]->module.training_step = step_rare;
        run[alone]->module.validation_step = NULL;
        run[alone]->module.on_fit_start = open_places;
        fit_go(run[alone], 2, 0);
        fit_assert_good(run[alone]);
    }
    assert_string_equal(run[0]->hash, run[1]->hash);
}

/* Neighbours of other optimizers and groups. */
static int two_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_optimizer *second = plume_add_optimizer(pl);
    struct plume_group *group = plume_add_group(pl, ret, "mid*");

    second->prefixes = "w, first";
    second->kind = PLUME_SGD;
    second->lr = 0.01;
    second->momentum = 0.9;
    ret->kind = PLUME_RMSPROP;
    ret->lr = 0.001;
    group->lr = 0.01;
    group->weight_decay = 0.1;
    return 0;
}

static void test_optimizers_and_groups(void **state)
{
    struct fit_run *run[2];

    for (int alone = 0; alone < 2; alone++) {
        run[alone] = new_run(alone);
        run[alone]->module.configure = configure_wide;
        run[alone]->module.training_step = step_wide;
        run[alone]->module.validation_step = NULL;
        run[alone]->module.on_fit_start = expect_shared;
        run[alone]->module.configure_optimizers = two_optimizers;
        run[alone]->options.clip_by = PL_CLIP_VALUE;
        run[alone]->options.clip = 0.001;
        run[alone]->options.ema = 0.9;
        fit_go(run[alone], 2, 0);
        fit_assert_good(run[alone]);
    }
    assert_string_equal(run[0]->hash, run[1]->hash);
}

/* Gradients that a hook reads or that are measured are summed before the update. */
static void test_what_needs_sums_has_them(void **state)
{
    for (int i = 0; i < 4; i++) {
        struct fit_run *run = new_run(false);

        run->options.clip = i == 0 ? 1 : 0;
        run->options.precision = i == 1 ? PL_PRECISION_16 : run->options.precision;
        run->module.on_after_backward = i == 2 ? nothing : NULL;
        run->module.on_before_optimizer_step = i == 3 ? nothing : NULL;
        run->module.on_fit_end = expect_sums;
        fit_go(run, 2, 0);
        fit_assert_good(run);
    }
}

/* A rank that dies, or does not come in time, is named by those that wait for its post. */
static const char *one_is_missing(struct pl_comm *comm, void *shared)
{
    _Atomic unsigned *gone = shared;
    struct pl_error err = {0};
    const char *want =
        gone ? "lost rank 1: a collective (sum) has waited" : "lost rank 1: its process";
    int r;

    pl_comm_limits.end_s = gone ? 0.3 : 0;
    TRY(pl_comm_barrier(comm, &err));
    if (comm->rank == 1 && !gone)
        raise(SIGKILL);
    for (int i = 0; comm->rank == 1 && i < LIMIT_MS && atomic_load(gone) + 1 < comm->size; i++)
        poll(NULL, 0, 1);
    if (comm->rank == 1)
        return NULL;
    pl_comm_node_post(comm);
    r = pl_comm_node_work(comm, 1, NULL, NULL, &err);
    if (gone)
        atomic_fetch_add(gone, 1);
    return r == -ECONNRESET && strstr(err.text, want) ? NULL : say("%d: '%s'", r, err.text);
}

static void test_a_missing_rank_is_named(void **state)
{
    ranks_run(3, 0, one_is_missing, NULL, 1u << 1);
    ranks_run(3, 0, one_is_missing, ranks_shared(sizeof(unsigned)), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_read_after_the_step),
        cmocka_unit_test(test_a_late_reader_reads_the_same),
        cmocka_unit_test(test_a_rank_that_waits_works),
        cmocka_unit_test(test_a_parameter_is_free_when_nobody_reads_it),
        cmocka_unit_test(test_nobody_plans_before_all_flags),
        cmocka_unit_test(test_optimizers_and_groups),
        cmocka_unit_test(test_what_needs_sums_has_them),
        cmocka_unit_test(test_a_missing_rank_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
