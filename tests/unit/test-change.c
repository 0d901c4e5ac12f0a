/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/change.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* The message of a command of Slurm that ends with 1 and has written this to stderr. */
static void says(const char *text, int want, bool want_ended)
{
    const char *argv[] = {"sh", "-c", "printf %s \"$0\" >&2; exit 1", text, NULL};
    struct pl_error err = {0};
    bool ended = !want_ended;

    assert_int_equal(pl_change_command(argv, &ended, &err), want);
    assert_int_equal(ended, want_ended);
}

static void test_command(void **state)
{
    says("Invalid job id specified for job 12\n", 0, true);
    says("12_0: Job has already finished\n", 0, true);
    says("Access/permission denied for job 12\n", -EREMOTEIO, false);
    /* An array of which some tasks have ended: Slurm has changed the others. */
    says("12_[2-9]: No error\n12_[0-1]: Job has already finished\n", 0, false);
    says("12_[0-1]: Job has already finished\n12_[2-9]: No error\n", 0, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_command)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
