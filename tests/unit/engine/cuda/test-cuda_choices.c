/* SPDX-License-Identifier: MIT */
/* The fastest of cublasLt's answers does a product, and is kept for the next process. */
#include "tests/fakes/fake_cudart.h"
#include "tests/unit/engine/cuda/cublaslt_choices.h"
#include "tests/unit/engine/cuda/said.h"

#include <cuda_runtime_api.h>
#include <sys/stat.h>

static void test_the_fastest_answer_is_taken_and_kept(void **state)
{
    static const unsigned hardly[] = {100, 99, 100}, refused[] = {0, 60, 50}, later[] = {9, 8, 7};
    char home[64], file[192];
    struct stat st;

    new_home(home, file);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    start_timed(false, CARD); /* the next process: nobody is asked, whatever is faster by now */
    assert_int_equal(timed_product(4, false, later, 3), 2);
    assert_int_equal(timed_product(4, true, later, 3), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    assert_int_equal(fake_lt.products, 2);
    assert_int_equal(timed_product(3, false, hardly, 3), 0);
    assert_int_equal(fake_lt.asked, 8);
    assert_int_equal(fake_lt.products, 2 + 3 * 5 + 1);
    assert_int_equal(timed_product(2, false, refused, 3), 2);
    assert_int_equal(timed_product(1, true, later, 3), 0); /* what adds cannot be tried */
    assert_int_equal(fake_lt.asked, 1);
    end();
    start_timed(false, "card 2");
    assert_int_equal(timed_product(4, false, hardly, 3), 0);
    assert_int_equal(fake_lt.heuristics, 1);
    end();
    start(false); /* --deterministic */
    assert_int_equal(timed_product(4, false, third, 9), 0);
    assert_int_equal(fake_lt.asked, 1);
    end();
    end_home(home);
}

/* A product that adds cannot be timed. Its first answer stays, in this run and the next, whatever
 * is found later for the product that writes. */
static void test_what_adds_stays_as_it_was(void **state)
{
    static const unsigned later[] = {9, 8, 7};
    char home[64], file[192];

    new_home(home, file);
    for (int run = 0; run < 2; run++) {
        start_timed(false, CARD);
        assert_int_equal(timed_product(3, true, later, 3), 0);
        assert_int_equal(timed_product(3, false, later, 3), 2);
        assert_int_equal(timed_product(3, true, later, 3), 0);
        assert_int_equal(timed_product(4, true, later, 3), 2); /* whose other was timed before */
        assert_int_equal(fake_lt.heuristics, run ? 0 : 2);
        end();
    }
    end_home(home);
}

/* Two processes that have begun together keep what both have found. */
static void test_choices_of_several_processes_are_kept(void **state)
{
    char home[64], file[192];
    struct pl_cublaslt *one, *other;

    new_home(home, file);
    start_timed(false, CARD);
    one = libs.lt;
    start_timed(false, CARD);
    other = libs.lt;
    libs.lt = one;
    assert_int_equal(timed_product(3, false, third, 9), 2);
    libs.lt = other;
    assert_int_equal(timed_product(2, false, third, 9), 2);
    pl_cublaslt_destroy(one);
    pl_cublaslt_destroy(other);
    start_timed(false, CARD);
    for (size_t m = 2; m <= 4; m++)
        assert_int_equal(timed_product(m, false, third, 9), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

/* Ranks time the same product, and one is a little later: all do as the first, now and in the next
 * run. */
static void test_ranks_take_the_choice_of_the_first(void **state)
{
    static const unsigned second[] = {100, 50, 60};
    char home[64], file[192];
    struct pl_cublaslt *one, *other;

    new_home(home, file);
    start_timed(false, CARD);
    one = libs.lt;
    start_timed(false, CARD);
    other = libs.lt;
    for (size_t m = 2; m <= 3; m++) {
        libs.lt = m == 2 ? one : other;
        assert_int_equal(timed_product(m, false, third, 9), 2);
        libs.lt = m == 2 ? other : one;
        assert_int_equal(timed_product(m, false, second, 3), 2);
        assert_int_equal(timed_product(m, false, second, 3), 2);
    }
    pl_cublaslt_destroy(one);
    pl_cublaslt_destroy(other);
    start_timed(false, CARD);
    for (size_t m = 2; m <= 3; m++)
        assert_int_equal(timed_product(m, false, second, 3), 2);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

/* Changes one byte of a file; returns what it was. */
static char change(const char *file, long at, char to)
{
    FILE *f = fopen(file, "r+");
    char was;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    was = (char)fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_CUR), 0);
    fputc(to ? to : was == '1' ? '2' : '1', f);
    assert_int_equal(fclose(f), 0);
    return was;
}

static void test_damaged_choices_are_timed_again(void **state)
{
    static const unsigned later[] = {9, 8, 7, 6};
    char home[64], file[192];

    for (int how = 0; how < 6; how++) {
        new_home(home, file);
        if (how == 0)
            change(file, -40, 0); /* of the value */
        else if (how == 1)
            change(file, 3, 'x'); /* of the head */
        else if (how == 2)
            assert_int_equal(truncate(file, 100), 0);
        else if (how == 3)
            assert_int_equal(truncate(file, 0), 0);
        else if (how == 4)
            assert_int_equal(chmod(file, 0666), 0);
        else
            change(file, -1, ' ');
        listen_to_stderr();
        start_timed(false, CARD);
        if (!strstr(what_was_said(), "choices of products are timed again: "))
            fail_msg("case %d: nothing is said", how);
        assert_int_equal(timed_product(4, false, later, 4), 3);
        assert_int_equal(fake_lt.heuristics, 1);
        end();
        start_timed(false, CARD); /* it was replaced */
        assert_int_equal(timed_product(4, false, third, 9), 3);
        assert_int_equal(fake_lt.heuristics, 0);
        end();
        end_home(home);
    }
}

/* A choice that the library refuses is asked for again. */
static void test_a_refused_choice_is_asked_for_again(void **state)
{
    static const unsigned later[] = {10, 20, 0, 30};
    char home[64], file[192];

    new_home(home, file);
    start_timed(false, CARD);
    assert_int_equal(timed_product(4, false, later, 4), 0);
    assert_int_equal(fake_lt.heuristics, 1);
    assert_int_equal(atomic_load(&calls.library), 1);
    end();
    start_timed(false, CARD); /* it was replaced */
    assert_int_equal(timed_product(4, false, later, 4), 0);
    assert_int_equal(fake_lt.heuristics, 0);
    end();
    end_home(home);
}

static const unsigned slow[] = {100000, 80000, 90000}; /* at least as long as a variant is worth */

/* Of each variant that suits the product five runs, as of the answers; and the product itself. */
#define RUNS(answers, variants) (5 * ((answers) + (variants)) + 1)

/* The fastest answer's variants are timed, too: all but one gain too little. The choice is kept
 * with the variant, also for the product that adds. */
static void test_the_fastest_variant_is_taken_and_kept(void **state)
{
    static const unsigned later[] = {9, 8, 7};
    char home[64], file[192];

    new_home(home, file);
    start_timed(false, CARD);
    fake_lt.swizzled = 99;
    fake_lt.clusters[3] = 90; /* 2 x 1 */
    fake_lt.clusters[5] = 95; /* 1 x 2 */
    assert_int_equal(timed_product_of(3, 4, false, slow, 3), 1);
    assert_int_equal(fake_lt.products, RUNS(3, 5)); /* k is too short for parts of it */
    assert_int_equal(fake_lt.last_variant.cluster, 3);
    assert_int_equal(fake_lt.last_variant.swizzling, 0);
    fake_lt.swizzled = 80;
    assert_int_equal(timed_product_of(5, 4, false, slow, 3), 1);
    assert_int_equal(fake_lt.last_variant.cluster, 0);
    assert_int_equal(fake_lt.last_variant.swizzling, 1);
    fake_lt.swizzled = fake_lt.clusters[3] = fake_lt.clusters[5] = 99;
    assert_int_equal(timed_product_of(2, 4, false, slow, 3), 1);
    assert_int_equal(fake_lt.last_variant.cluster, 0);
    end();
    start_timed(false, CARD); /* the next process */
    assert_int_equal(timed_product_of(3, 4, false, later, 3), 1);
    assert_int_equal(fake_lt.last_variant.cluster, 3);
    assert_int_equal(timed_product_of(3, 4, true, later, 3), 1);
    assert_int_equal(fake_lt.last_variant.cluster, 3);
    assert_int_equal(timed_product_of(2, 4, false, later, 3), 1);
    assert_int_equal(fake_lt.last_variant.cluster, 0);
    assert_int_equal(fake_lt.heuristics + fake_lt.checked, 0);
    end();
    end_home(home);
}

/* If k is longer than D's sides, its parts may be summed side by side, in f32. */
static void test_long_sums_are_done_in_parts(void **state)
{
    char home[64], file[192];

    new_home(home, file);
    start_timed(false, CARD);
    fake_lt.parts[4] = 70;
    fake_lt.parts[6] = 60;
    assert_int_equal(timed_product_of(3, 600, false, slow, 3), 1);
    assert_int_equal(fake_lt.products, RUNS(3, 9));
    assert_int_equal(fake_lt.last_variant.parts, 6);
    assert_int_equal(fake_lt.last_variant.scheme, 2); /* CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE */
    fake_lt.parts_bytes = sizeof(workspace);
    assert_int_equal(timed_product_of(4, 600, false, slow, 3), 1);
    assert_int_equal(fake_lt.last_variant.parts, 6);
    fake_lt.parts_bytes = sizeof(workspace) + 1; /* which there is not */
    assert_int_equal(timed_product_of(5, 600, false, slow, 3), 1);
    assert_int_equal(fake_lt.last_variant.parts, 1);
    end();
    end_home(home);
}

/* Those that the library does not do; a product that is over before it is worth it. */
static void test_some_products_have_no_variants(void **state)
{
    static const unsigned quick[] = {60000, 49900};
    char home[64], file[192];

    new_home(home, file);
    start_timed(false, CARD);
    fake_lt.no_variants = true;
    fake_lt.swizzled = 50;
    assert_int_equal(timed_product_of(3, 4, false, slow, 3), 1);
    assert_int_equal(fake_lt.checked, 5);
    assert_int_equal(fake_lt.products, RUNS(3, 0));
    assert_int_equal(fake_lt.last_variant.swizzling, 0);
    fake_lt.no_variants = false;
    assert_int_equal(timed_product_of(2, 4, false, quick, 2), 1);
    assert_int_equal(fake_lt.checked, 5);
    assert_int_equal(fake_lt.last_variant.swizzling, 0);
    assert_int_equal(timed_product_of(1, 4, false, quick, 1), 0); /* the only answer */
    assert_int_equal(fake_lt.checked, 5);
    end();
    start(false); /* --deterministic */
    fake_lt.swizzled = 50;
    assert_int_equal(timed_product_of(5, 4, false, slow, 3), 0);
    assert_int_equal(fake_lt.checked, 0);
    end();
    end_home(home);
}

static void test_nothing_is_timed_while_a_graph_is_captured(void **state)
{
    static const unsigned later[] = {10, 5};
    char home[64], file[192];
    cudaGraph_t graph;

    new_home(home, file);
    start_timed(false, CARD);
    fake_cuda_reset(1 << 20);
    assert_int_equal(cudaStreamCreateWithFlags(&stream.stream, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal), 0);
    assert_int_equal(timed_product(3, false, later, 2), 0);
    assert_int_equal(fake_lt.products, 1);
    assert_int_equal(cudaStreamEndCapture(stream.stream, &graph), 0);
    assert_int_equal(cudaGraphDestroy(graph), 0);
    assert_int_equal(cudaStreamDestroy(stream.stream), 0);
    stream.stream = NULL;
    end();
    start_timed(false, CARD);
    assert_int_equal(timed_product(3, false, later, 2), 1);
    end();
    end_home(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fastest_answer_is_taken_and_kept),
        cmocka_unit_test(test_what_adds_stays_as_it_was),
        cmocka_unit_test(test_choices_of_several_processes_are_kept),
        cmocka_unit_test(test_ranks_take_the_choice_of_the_first),
        cmocka_unit_test(test_damaged_choices_are_timed_again),
        cmocka_unit_test(test_a_refused_choice_is_asked_for_again),
        cmocka_unit_test(test_the_fastest_variant_is_taken_and_kept),
        cmocka_unit_test(test_long_sums_are_done_in_parts),
        cmocka_unit_test(test_some_products_have_no_variants),
        cmocka_unit_test(test_nothing_is_timed_while_a_graph_is_captured),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
