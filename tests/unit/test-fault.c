/* SPDX-License-Identifier: MIT */
/* Compiled with fault points in every build. */
#include "common/base/fault.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void test_fault_named_call(void **state)
{
    setenv("PLUME_FAIL", "accept:3,write:1", 1);
    errno = 0;
    assert_false(PL_FAULT("accept", EMFILE));
    assert_false(PL_FAULT("accept", EMFILE));
    assert_int_equal(errno, 0);
    assert_true(PL_FAULT("accept", EMFILE));
    assert_int_equal(errno, EMFILE);
    assert_false(PL_FAULT("accept", EMFILE));
    assert_true(PL_FAULT("write", ENOSPC));
    assert_int_equal(errno, ENOSPC);
    assert_false(PL_FAULT("write", ENOSPC));
}

static void test_fault_none(void **state)
{
    static const char *const lists[] = {"",   "malloc", "malloc:",   "malloc:0", "malloc:x",
                                        ":1", "mall:1", "xmalloc:1", ",,,"};

    unsetenv("PLUME_FAIL");
    assert_false(PL_FAULT("malloc", ENOMEM));
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        setenv("PLUME_FAIL", lists[i], 1);
        assert_false(PL_FAULT("malloc", ENOMEM));
    }
    setenv("PLUME_FAIL", "bogus:1", 1);
    assert_false(PL_FAULT("bogus", ENOMEM)); /* not a point */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault_named_call),
        cmocka_unit_test(test_fault_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
