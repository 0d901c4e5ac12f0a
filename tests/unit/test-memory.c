/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "common/base/memory.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* All of it can be written, at the place that was asked for, whether in huge pages or not. */
static void test_memory_alloc_sizes(void **state)
{
    static const size_t sizes[] = {
        0, 1, 63, 4096, ((size_t)4 << 20) - 1, (size_t)4 << 20, ((size_t)7 << 20) + 5};

    for (size_t i = 0; i < PL_COUNT(sizes); i++) {
        for (size_t align = 8; align <= 4096; align *= 8) {
            void *p = NULL;

            assert_int_equal(pl_memory_alloc(align, sizes[i], &p), 0);
            assert_int_equal((uintptr_t)p % align, 0);
            memset(p, 0xff, sizes[i]);
            free(p);
        }
    }
}

static void put(const char *top, const char *name, const char *text)
{
    char path[256], *slash;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", top, name);
    for (slash = path + strlen(top) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0755);
    }
    f = fopen(path, "we");
    assert_non_null(f);
    assert_int_not_equal(fputs(text, f), EOF);
    assert_int_equal(fclose(f), 0);
}

static uint64_t of_groups(const char *top, const char *self)
{
    char path[256];

    put(top, "self", self);
    snprintf(path, sizeof(path), "%s/self", top);
    return pl_memory_of_groups(path, top);
}

static void test_the_lowest_limit_of_groups_counts(void **state)
{
    char top[64];

    assert_int_equal(tmpdir_make(top, sizeof(top)), 0);
    assert_true(of_groups(top, "0::/\n") == UINT64_MAX);
    put(top, "job/memory.max", "5000\n");
    put(top, "job/step/memory.max", "max\n");
    put(top, "job/step/task/memory.current", "1\n");
    assert_int_equal(of_groups(top, "0::/job/step/task\n"), 5000);
    assert_true(of_groups(top, "0::/other\n") == UINT64_MAX);
    put(top, "job/step/memory.max", "4000\n");
    assert_int_equal(of_groups(top, "0::/job/step/task\n"), 4000);
    assert_int_equal(of_groups(top, "0::/job\n"), 5000);
    /* In a container: the group's own limit is at the top, and its path another one's. */
    put(top, "memory.max", "3000\n");
    assert_int_equal(of_groups(top, "0::/\n"), 3000);
    assert_int_equal(of_groups(top, "0::/docker/abc\n"), 3000);
    put(top, "memory/slurm/job/memory.limit_in_bytes", "2000\n");
    put(top, "memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(of_groups(top, "5:cpuset:/x\n4:memory:/slurm/job/step\n0::/\n"), 2000);
    assert_int_equal(of_groups(top, "4:memory:/a/b\n"), 9223372036854771712ull);
    assert_int_equal(tmpdir_remove(top), 0);
    assert_true(pl_memory_of_groups("/nowhere", top) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_alloc_sizes),
        cmocka_unit_test(test_the_lowest_limit_of_groups_counts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
