/* SPDX-License-Identifier: MIT */
/* The part of cmocka's interface that the engine's tests use, for machines without cmocka: `./dev
 * gpu-bundle` carries it. Output is TAP; the exit code is the number of failures. One thread and
 * one process at a time may be inside a test, as with cmocka. */
#ifndef PL_TESTS_GPU_CMOCKA_H
#define PL_TESTS_GPU_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);

struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

#define PL_TEST_UNUSED __attribute__((unused))

static jmp_buf pl_test_jump;
enum { PL_TEST_RUNS, PL_TEST_FAILED, PL_TEST_SKIPPED };

static PL_TEST_UNUSED _Noreturn void pl_test_fail(const char *file, int line, const char *text)
{
    printf("# %s:%d: %s\n", file, line, text);
    longjmp(pl_test_jump, PL_TEST_FAILED);
}

static PL_TEST_UNUSED void
pl_test_equal(uintmax_t a, uintmax_t b, const char *what, const char *file, int line)
{
    if (a == b)
        return;
    printf("# %s: %#jx, %#jx\n", what, a, b);
    pl_test_fail(file, line, "not equal");
}

static PL_TEST_UNUSED void
pl_test_string(const char *a, const char *b, int equal, const char *file, int line)
{
    if ((strcmp(a, b) == 0) == equal)
        return;
    printf("# \"%s\", \"%s\"\n", a, b);
    pl_test_fail(file, line, equal ? "strings differ" : "strings are the same");
}

#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c))                                                                                  \
            pl_test_fail(__FILE__, __LINE__, #c);                                                  \
    } while (0)
#define assert_false(c) assert_true(!(c))
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_null(p) assert_true((p) == NULL)
#define assert_ptr_equal(a, b) assert_true((const void *)(a) == (const void *)(b))
#define assert_ptr_not_equal(a, b) assert_true((const void *)(a) != (const void *)(b))
#define assert_int_equal(a, b)                                                                     \
    pl_test_equal((uintmax_t)(intmax_t)(a), (uintmax_t)(intmax_t)(b), #a " == " #b, __FILE__,      \
                  __LINE__)
#define assert_int_not_equal(a, b) assert_true((intmax_t)(a) != (intmax_t)(b))
#define assert_return_code(r, error) assert_true((intmax_t)(r) >= 0)
#define assert_in_range(v, low, high)                                                              \
    assert_true((uintmax_t)(v) >= (uintmax_t)(low) && (uintmax_t)(v) <= (uintmax_t)(high))
#define assert_float_equal(a, b, epsilon)                                                          \
    assert_true((a) - (b) <= (epsilon) && (b) - (a) <= (epsilon))
#define assert_string_equal(a, b) pl_test_string((a), (b), 1, __FILE__, __LINE__)
#define assert_string_not_equal(a, b) pl_test_string((a), (b), 0, __FILE__, __LINE__)
#define assert_memory_equal(a, b, size) assert_true(memcmp((a), (b), (size)) == 0)
#define assert_memory_not_equal(a, b, size) assert_true(memcmp((a), (b), (size)) != 0)
#define fail() pl_test_fail(__FILE__, __LINE__, "failed")
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("# " __VA_ARGS__);                                                                  \
        putchar('\n');                                                                             \
        fail();                                                                                    \
    } while (0)
#define test_malloc malloc
#define test_free free
#define skip() longjmp(pl_test_jump, PL_TEST_SKIPPED)
#define print_message(...) printf("# " __VA_ARGS__)

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f, NULL, NULL, NULL                                                                    \
    }
#define cmocka_unit_test_setup(f, setup)                                                           \
    {                                                                                              \
#f, f, setup, NULL, NULL                                                                   \
    }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                        \
    {                                                                                              \
#f, f, setup, teardown, NULL                                                               \
    }
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    pl_test_run_group((tests), sizeof(tests) / sizeof((tests)[0]), (setup), (teardown))
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                  \
    cmocka_run_group_tests(tests, setup, teardown)
#define _cmocka_run_group_tests(name, tests, n, setup, teardown)                                   \
    pl_test_run_group((tests), (n), (setup), (teardown))

static PL_TEST_UNUSED int pl_test_run_group(const struct CMUnitTest *tests,
                                            size_t n,
                                            CMFixtureFunction setup,
                                            CMFixtureFunction teardown)
{
    static const char *const ends[] = {"ok", "not ok", "ok"};
    void *volatile group_state = NULL;
    volatile int failed = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("1..%zu\n", n);
    if (setup) {
        if (setjmp(pl_test_jump) != PL_TEST_RUNS)
            return (int)n;
        if (setup((void **)&group_state) != 0)
            return (int)n;
    }
    for (volatile size_t i = 0; i < n; i++) {
        void *volatile state = tests[i].initial_state ? tests[i].initial_state : group_state;
        volatile int is_set_up = 0, how;

        /* Each step comes once, wherever an assertion jumps from. */
        how = setjmp(pl_test_jump);
        if (how == PL_TEST_RUNS && tests[i].setup_func && tests[i].setup_func((void **)&state) != 0)
            how = PL_TEST_FAILED;
        if (how == PL_TEST_RUNS) {
            is_set_up = 1;
            tests[i].test_func((void **)&state);
        }
        if (is_set_up && tests[i].teardown_func) {
            is_set_up = 0;
            if (tests[i].teardown_func((void **)&state) != 0)
                how = PL_TEST_FAILED;
        }
        failed += how == PL_TEST_FAILED;
        printf("%s %zu - %s%s\n", ends[how], i + 1, tests[i].name,
               how == PL_TEST_SKIPPED ? " # SKIP" : "");
    }
    if (teardown) {
        if (setjmp(pl_test_jump) == PL_TEST_RUNS)
            teardown((void **)&group_state);
    }
    return failed;
}

#endif
