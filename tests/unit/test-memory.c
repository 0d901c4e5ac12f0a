/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "common/base/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_alloc_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
