/* SPDX-License-Identifier: MIT */
/* The samples of a rank: against lists recorded from torch's DistributedSampler, and by the rule,
 * because the permutation is our own. */
#include "runtime/engine/data/sampler.h"
#include "tests/golden/optim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void start(struct pl_sampler *s, struct pl_sampler_options options)
{
    assert_int_equal(pl_sampler_init(s, &options, NULL), 0);
}

static void test_unshuffled_lists_are_torchs(void **state)
{
    size_t at = 0;

    for (size_t i = 0; i + 4 < PL_COUNT(golden_sampler_cases); i += 5) {
        const int *c = &golden_sampler_cases[i];
        struct pl_sampler s;
        struct pl_sampler_options options = {.n = (size_t)c[0],
                                             .world_size = (unsigned)c[1],
                                             .drop_tail = c[2],
                                             .rank = (unsigned)c[3],
                                             .train = true};

        if (c[4] == 0) { /* torch gives an empty epoch, we refuse to train on nothing */
            assert_int_equal(pl_sampler_init(&s, &options, NULL), -EINVAL);
            continue;
        }
        start(&s, options);
        assert_int_equal(s.count, c[4]);
        for (size_t k = 0; k < s.count; k++)
            assert_int_equal(s.index[k], golden_sampler_indices[at++]);
        pl_sampler_finish(&s);
    }
    assert_int_equal(at, PL_COUNT(golden_sampler_indices));
}

/* Given the permutation of one rank, every other layout follows by the rule. */
static void test_shuffled_lists_follow_the_rule(void **state)
{
    struct pl_sampler all, s;

    for (size_t n = 1; n < 30; n++) {
        for (unsigned world = 1; world < 8; world++) {
            for (unsigned rank = 0; rank < world; rank++) {
                start(&all,
                      (struct pl_sampler_options){
                          .n = n, .world_size = 1, .train = true, .shuffle = true, .seed = 9});
                start(&s, (struct pl_sampler_options){.n = n,
                                                      .world_size = world,
                                                      .rank = rank,
                                                      .train = true,
                                                      .shuffle = true,
                                                      .seed = 5});
                pl_sampler_set_epoch(&all, 1);
                pl_sampler_set_epoch(&s, 5); /* seed + epoch is the same */
                assert_int_equal(s.count, (n + world - 1) / world);
                for (size_t i = 0; i < s.count; i++)
                    assert_int_equal(s.index[i], all.index[(rank + i * world) % n]);
                pl_sampler_finish(&all);
                pl_sampler_finish(&s);
            }
        }
    }
}

static void test_a_shuffle_is_a_permutation(void **state)
{
    size_t seen[1000] = {0}, fixed = 0, before[1000];
    struct pl_sampler s;

    start(&s, (struct pl_sampler_options){
                  .n = 1000, .world_size = 1, .train = true, .shuffle = true, .seed = 3});
    memcpy(before, s.index, sizeof(before));
    pl_sampler_set_epoch(&s, 1);
    for (size_t i = 0; i < 1000; i++) {
        seen[s.index[i]]++;
        fixed += s.index[i] == i;
    }
    for (size_t i = 0; i < 1000; i++)
        assert_int_equal(seen[i], 1);
    assert_true(fixed < 20); /* one is expected */
    assert_memory_not_equal(before, s.index, sizeof(before));
    pl_sampler_set_epoch(&s, 0);
    assert_memory_equal(before, s.index, sizeof(before));
    pl_sampler_finish(&s);
}

/* A list is divided in its own order, as by DistributedSamplerWrapper. */
static void test_a_list_is_shared_in_its_order(void **state)
{
    static const size_t list[] = {7, 7, 0, 3, 9}, want[2][3] = {{7, 0, 9}, {7, 3, 7}};
    struct pl_sampler_options options = {
        .n = 10, .world_size = 2, .train = true, .shuffle = true, .list = list, .n_list = 5};
    struct pl_error err = {0};
    struct pl_sampler s;

    for (unsigned rank = 0; rank < 2; rank++) {
        options.rank = rank;
        start(&s, options);
        pl_sampler_set_epoch(&s, 4);
        assert_int_equal(s.count, 3);
        assert_memory_equal(s.index, want[rank], sizeof(want[rank]));
        pl_sampler_finish(&s);
    }
    options.train = false; /* rank 1 */
    start(&s, options);
    assert_int_equal(s.count, 2);
    pl_sampler_finish(&s);
    options.n = 9;
    assert_int_equal(pl_sampler_init(&s, &options, &err), -EINVAL);
    assert_string_equal(err.text, "the list of samples names 9, but there are 9 (from 0 on)");
}

static void test_validation_counts_each_sample_once(void **state)
{
    for (size_t n = 0; n < 20; n++) {
        size_t seen[20] = {0};

        for (unsigned rank = 0; rank < 6; rank++) {
            struct pl_sampler s;

            start(&s, (struct pl_sampler_options){.n = n, .rank = rank, .world_size = 6});
            for (size_t i = 0; i < s.count; i++)
                seen[s.index[i]]++;
            pl_sampler_finish(&s);
        }
        for (size_t i = 0; i < 20; i++)
            assert_int_equal(seen[i], i < n);
    }
}

static void test_training_needs_samples(void **state)
{
    struct pl_sampler_options options = {.world_size = 1, .train = true};
    struct pl_sampler s;

    assert_int_equal(pl_sampler_init(&s, &options, NULL), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unshuffled_lists_are_torchs),
        cmocka_unit_test(test_shuffled_lists_follow_the_rule),
        cmocka_unit_test(test_a_shuffle_is_a_permutation),
        cmocka_unit_test(test_a_list_is_shared_in_its_order),
        cmocka_unit_test(test_validation_counts_each_sample_once),
        cmocka_unit_test(test_training_needs_samples),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
