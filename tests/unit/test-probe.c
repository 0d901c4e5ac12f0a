/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/probe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void release_is(const char *text, const char *expected)
{
    char release[16];

    pl_probe_release(text, release, sizeof(release));
    assert_string_equal(release, expected);
}

static void test_probe_release(void **state)
{
    release_is("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15\n",
               "535.104.05");
    release_is(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n",
        "550.54.15");
    release_is("2.18.3", "2.18.3");
    release_is("2", "");
    release_is("no . number 7 1a.2 .5", "");
    release_is("", "");
    release_is("1111111111.2222222222", "1111111111.2222");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_release),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
