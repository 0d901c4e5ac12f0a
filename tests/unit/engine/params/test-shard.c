/* SPDX-License-Identifier: MIT */
/* Shards of the arenas: their ranges, and optimizers that have a part each. */
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/shard.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define RANKS_MAX 9

struct model {
    struct pl_comm *comm;
    struct pl_params params;
};

/* Parameters a and b, of two optimizers that take turns in the arenas. */
static void open_model(struct model *m, size_t count)
{
    struct pl_world world = {.size = 1, .local_size = 1};
    const char *const names[] = {"a1", "b1", "a2", "b2"};
    struct pl_tape tape;
    plume_tensor *t;

    assert_int_equal(pl_comm_create(&world, NULL, &m->comm, NULL), 0);
    pl_params_init(&m->params, pl_device_cpu(), PL_REAL_F32);
    for (size_t i = 0; i < PL_COUNT(names); i++)
        assert_int_equal(pl_params_declare(&m->params, names[i], PLUME_INIT_ZERO, 1,
                                           (size_t[]){count + i * 333}, &t, NULL),
                         0);
    pl_tape_init(&tape, pl_device_cpu(), PL_REAL_F32, true);
    assert_int_equal(pl_params_layout(&m->params, &tape, m->comm, NULL), 0);
    pl_tape_finish(&tape);
    for (size_t i = 0; i < m->params.flags; i++) {
        ((float *)m->params.values)[i] = (float)(i * 7919 % 1009) / 1009;
        ((float *)m->params.grads)[i] = (float)(i * 104729 % 997) / 997 - 0.5f;
    }
}

static void close_model(struct model *m)
{
    pl_params_finish(&m->params);
    pl_comm_destroy(m->comm);
}

static void test_shards_ranges_of_blocks(void **state)
{
    const size_t sizes[] = {0, 1, 1023, 1024, 1025, 7 * 1024, 100003, 123456789, (size_t)1 << 40};

    for (size_t k = 0; k < PL_COUNT(sizes); k++)
        for (unsigned n = 1; n <= RANKS_MAX; n++) {
            struct pl_params params = {.flags = sizes[k]};
            size_t block = pl_shard_block(&params), all[RANKS_MAX + 1], part[RANKS_MAX + 1];

            assert_true(block % PL_SHARD_UNIT == 0 && block > 0);
            assert_true((sizes[k] + block - 1) / block <= PL_SHARD_BLOCKS);
            pl_shard_offsets(&params, n, 0, sizes[k], all);
            assert_true(all[0] == 0 && all[n] == sizes[k]);
            for (unsigned i = 0; i < n; i++) {
                assert_true(all[i] == pl_shard_begin(&params, i, n) && all[i] <= all[i + 1]);
                assert_true(all[i] % block == 0 || all[i] == sizes[k]);
                /* No rank has more than a block above its share. */
                assert_true(all[i + 1] - all[i] <= sizes[k] / n + block);
            }
            pl_shard_offsets(&params, n, sizes[k] / 3, sizes[k] / 2, part);
            assert_true(part[0] == 0 && part[n] == sizes[k] / 2 - sizes[k] / 3);
            for (unsigned i = 0; i <= n; i++)
                if (all[i] >= sizes[k] / 3 && all[i] <= sizes[k] / 2)
                    assert_true(part[i] == all[i] - sizes[k] / 3);
        }
}

/* The norm of elements [from, to) by its definition: blocks in order, optimizer after optimizer. */
static double norm_by_blocks(const struct pl_params *params, size_t from, size_t to)
{
    size_t block = pl_shard_block(params);
    double total = 0;

    for (size_t i = 0; i < 2; i++) {
        double sum = 0;

        for (size_t k = i; k < params->n; k += 2) {
            size_t begin = params->order[k]->offset;
            size_t end = k + 1 < params->n ? params->order[k + 1]->offset : params->flags;

            for (size_t at = PL_MAX(begin, from), next; at < PL_MIN(end, to); at = next) {
                double squares;
                bool finite;

                next = PL_MIN((at / block + 1) * block, PL_MIN(end, to));
                pl_kernels_best(PL_REAL_F32)
                    ->grad_stats(&(struct pl_grad_stats_args){.n = next - at,
                                                              .scale = 1,
                                                              .grad = (float *)params->grads + at,
                                                              .ret_squares = &squares,
                                                              .ret_finite = &finite});
                sum += squares;
            }
        }
        total += sum;
    }
    return sqrt(total);
}

/* One step of Adam by shards, clipped to a norm that is known: the values of one step over all, and
 * squares that add up by blocks. */
static void by_shards(size_t count, unsigned ranks)
{
    const struct plume_optimizer options[] = {
        {.lr = 0.1, .kind = PLUME_ADAM, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .prefixes = "a"},
        {.lr = 0.2, .momentum = 0.5, .prefixes = "b"},
    };
    const struct pl_clip_rule clip = {PL_CLIP_NORM, 1e9};
    const struct pl_kernels *kernels = pl_kernels_best(PL_REAL_F32);
    struct pl_optimizers_result result;
    struct model whole, part;
    struct pl_optimizers o;
    size_t state_count = 0, from, n;
    double norm, squares = 0;

    open_model(&whole, count);
    open_model(&part, count);
    assert_int_equal(pl_optimizers_init(&o, &whole.params, options, 2, NULL), 0);
    assert_int_equal(pl_optimizers_share(&o, NULL, true, NULL), 0);
    assert_int_equal(pl_optimizers_step(&o, kernels, &clip, NULL, &result, NULL), 0);
    norm = result.norm;
    assert_true(norm == norm_by_blocks(&whole.params, 0, whole.params.flags));
    pl_optimizers_finish(&o);
    for (unsigned i = 0; i < ranks; i++) {
        pl_shard_take(&part.params, i, ranks);
        assert_int_equal(pl_optimizers_init(&o, &part.params, options, 2, NULL), 0);
        assert_int_equal(pl_optimizers_share(&o, part.comm, true, NULL), 0);
        assert_int_equal(pl_optimizers_step(&o, kernels, &clip, NULL, &result, NULL), 0);
        assert_true(result.norm ==
                    norm_by_blocks(&part.params, part.params.own_from, part.params.own_to));
        squares += result.norm * result.norm;
        for (size_t k = 0; k < part.params.n; k++) {
            const struct pl_optimizer *own = &o.list[k % 2]; /* a1, b1, a2, b2 */

            assert_true(pl_optimizer_has(own, part.params.list[k]));
            assert_false(pl_optimizer_has(&o.list[1 - k % 2], part.params.list[k]));
            pl_optimizer_state(&o, own, 0, part.params.list[k], &from, &n);
            assert_true(from + n <= part.params.list[k]->tensor->count);
            state_count += n;
        }
        pl_optimizers_finish(&o);
    }
    assert_true(fabs(sqrt(squares) - norm) <= 1e-12 * norm);
    assert_int_equal(state_count, 4 * count + 6 * 333);
    assert_memory_equal(whole.params.values, part.params.values,
                        whole.params.flags * sizeof(float));
    close_model(&whole);
    close_model(&part);
}

static void test_optimizers_step_by_shards(void **state)
{
    by_shards(3001, 1);
    by_shards(3001, 2);
    by_shards(3001, 5);
    by_shards(1, 9); /* two blocks */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_ranges_of_blocks),
        cmocka_unit_test(test_optimizers_step_by_shards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
