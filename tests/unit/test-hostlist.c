/* SPDX-License-Identifier: MIT */
/* The names are those of `scontrol show hostnames`. */
#include "common/base/hostlist.h"
#include "common/base/macros.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_nth_names(void **state)
{
    static const struct {
        const char *list;
        unsigned index;
        const char *name;
    } rows[] = {
        {"n1", 0, "n1"},
        {"n[1-3,7]", 0, "n1"},
        {"n[1-3,7]", 2, "n3"},
        {"n[1-3,7]", 3, "n7"},
        {"gpu-[08-11].a,login", 1, "gpu-09.a"},
        {"gpu-[08-11].a,login", 2, "gpu-10.a"},
        {"gpu-[08-11].a,login", 4, "login"},
        {"a,b[2],c", 1, "b2"},
        {"a,b[2],c", 2, "c"},
        {"r[1-2]n[09-10]", 0, "r1n09"},
        {"r[1-2]n[09-10]", 1, "r1n10"},
        {"r[1-2]n[09-10]", 2, "r2n09"},
        {"r[1-2]n[09-10]x", 3, "r2n10x"},
        {"n[0-999999999]", 999999999, "n999999999"},
    };

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        _cleanup_free_ char *name = NULL;

        assert_int_equal(pl_hostlist_nth(rows[i].list, rows[i].index, &name), 0);
        assert_string_equal(name, rows[i].name);
    }
}

static void test_nth_bad(void **state)
{
    static const struct {
        const char *list;
        int code;
    } rows[] = {
        {"n[1-3,7],m", -ENOENT},
        {"a,b", -ENOENT},
        {"", -EINVAL},
        {",", -EINVAL},
        {"a,", -EINVAL},
        {"a,,b", -EINVAL},
        {"n[", -EINVAL},
        {"n[]", -EINVAL},
        {"n[1", -EINVAL},
        {"n[1-", -EINVAL},
        {"n[1-]", -EINVAL},
        {"n[1,]", -EINVAL},
        {"n[-2]", -EINVAL},
        {"n[1-2-3]", -EINVAL},
        {"n[3-1]", -EINVAL},
        {"n]1[", -EINVAL},
        {"n[1x]", -EINVAL},
        {"n[0-4294967296]", -EINVAL},
        {"n[0-99999]m[0-99999]", -EINVAL},
        {"[0][0][0][0][0][0][0][0][0]", -EINVAL},
    };
    char *name = NULL;

    for (size_t i = 0; i < PL_COUNT(rows); i++)
        assert_int_equal(pl_hostlist_nth(rows[i].list, 5, &name), rows[i].code);
    assert_null(name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nth_names),
        cmocka_unit_test(test_nth_bad),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
