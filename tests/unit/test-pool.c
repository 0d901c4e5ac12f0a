/* SPDX-License-Identifier: MIT */
/* The pool: every chunk once, the same chunks whatever the threads, devices side by side. */
#include "common/base/macros.h"
#include "kernels/pool/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define N 1000

static atomic_uint seen[N];

static void count(void *ctx, size_t begin, size_t end)
{
    size_t grain = *(size_t *)ctx;

    if (begin % grain != 0 || (end - begin != grain && end != N) || pl_pool_threads() != 1)
        return; /* its elements are found missing */
    for (size_t i = begin; i < end; i++)
        atomic_fetch_add(&seen[i], 1);
}

static void test_parallel_runs_every_element_once(void **state)
{
    static size_t grains[] = {1, 7, 100, 999, 1000, 5000};

    for (unsigned threads = 1; threads <= 4; threads++) {
        pl_pool_resize(threads);
        for (size_t g = 0; g < PL_COUNT(grains); g++) {
            for (int round = 0; round < 20; round++) {
                memset(seen, 0, sizeof(seen));
                pl_pool_parallel(N, grains[g], count, &grains[g]);
                for (size_t i = 0; i < N; i++)
                    assert_int_equal(atomic_load(&seen[i]), 1);
            }
        }
        assert_int_equal(pl_pool_threads(), threads);
    }
    pl_pool_parallel(0, 1, count, &grains[0]);
}

struct sum {
    const float *x;
    float partial[N / 30 + 1];
};

static void add_up(void *ctx, size_t begin, size_t end)
{
    struct sum *s = ctx;
    float sum = 0;

    for (size_t i = begin; i < end; i++)
        sum += s->x[i];
    s->partial[begin / 30] = sum;
}

static void test_parallel_reductions_by_chunk_repeat(void **state)
{
    static float x[N];
    float first = 0;

    for (size_t i = 0; i < N; i++)
        x[i] = 1.0f / (float)(i + 1);
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct sum s = {.x = x};
        float total = 0;

        pl_pool_resize(threads);
        pl_pool_parallel(N, 30, add_up, &s);
        for (size_t i = 0; i < PL_COUNT(s.partial); i++)
            total += s.partial[i];
        if (threads == 1)
            first = total;
        assert_memory_equal(&total, &first, sizeof(total));
    }
}

static void nested_inner(void *ctx, size_t begin, size_t end)
{
    size_t *next = ctx;

    /* In order, on one thread. */
    if (*next == begin)
        *next = end;
}

static void nested_outer(void *ctx, size_t begin, size_t end)
{
    size_t next = 0;

    pl_pool_parallel(10, 3, nested_inner, &next);
    if (next == 10)
        atomic_fetch_add((atomic_uint *)ctx, 1);
}

static void test_parallel_nested_runs_inline(void **state)
{
    atomic_uint good = 0;

    pl_pool_resize(3);
    pl_pool_parallel(50, 1, nested_outer, &good);
    assert_int_equal(atomic_load(&good), 50);
}

struct device {
    float x[N];
    unsigned threads;
};

static void scale(void *ctx, size_t begin, size_t end)
{
    struct device *d = ctx;

    for (size_t i = begin; i < end; i++)
        d->x[i] = 2 * d->x[i] + 1;
}

static int on_device(void *ctx, unsigned device)
{
    struct device *d = (struct device *)ctx + device;

    d->threads = pl_pool_threads();
    for (int round = 0; round < 10; round++)
        pl_pool_parallel(N, 10, scale, d);
    return device % 2 ? -(int)device : 0;
}

static void test_devices_have_disjoint_groups(void **state)
{
    static struct device d[5];

    for (unsigned threads = 1; threads <= 5; threads++) {
        pl_pool_resize(threads);
        for (unsigned k = 2; k <= 5; k += 3) {
            memset(d, 0, sizeof(d));
            assert_int_equal(pl_pool_devices(k, on_device, d), -1);
            for (unsigned i = 0; i < k; i++)
                assert_float_equal(d[i].x[N - 1], 1023, 0);
            if (k == 2)
                assert_int_equal(d[0].threads + d[1].threads, PL_MAX(threads, 2u));
        }
    }
}

static int which(void *ctx, unsigned device)
{
    return device == 3 ? 7 : 0;
}

static int fine(void *ctx, unsigned device)
{
    return 0;
}

static void test_devices_return_the_failure(void **state)
{
    pl_pool_resize(2);
    assert_int_equal(pl_pool_devices(4, which, NULL), 7);
    assert_int_equal(pl_pool_devices(4, fine, NULL), 0);
    assert_int_equal(pl_pool_devices(0, which, NULL), 0);
}

#ifndef __SANITIZE_THREAD__ /* its run-time library ends a child that starts threads */
static void test_fork_leaves_the_child_a_pool(void **state)
{
    size_t grain = 10;
    int status;
    pid_t pid;

    pl_pool_resize(2);
    pl_pool_parallel(N, grain, count, &grain);
    memset(seen, 0, sizeof(seen));
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        bool good = true;

        pl_pool_parallel(N, grain, count, &grain);
        for (size_t i = 0; i < N; i++)
            good &= atomic_load(&seen[i]) == 1;
        _exit(good ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

static int finish(void **state)
{
    pl_pool_resize(1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parallel_runs_every_element_once),
        cmocka_unit_test(test_parallel_reductions_by_chunk_repeat),
        cmocka_unit_test(test_parallel_nested_runs_inline),
        cmocka_unit_test(test_devices_have_disjoint_groups),
        cmocka_unit_test(test_devices_return_the_failure),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(test_fork_leaves_the_child_a_pool),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, finish);
}
