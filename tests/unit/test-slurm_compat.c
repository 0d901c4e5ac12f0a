/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_compat_private.h"

#include <setjmp.h>
#include <slurm/slurm.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void test_reason_name_usual(void **state)
{
    assert_null(pl_slurm_reason_name(WAIT_NO_REASON));
    assert_string_equal(pl_slurm_reason_name(WAIT_PRIORITY), "Priority");
    assert_string_equal(pl_slurm_reason_name(WAIT_HELD_USER), "JobHeldUser");
}

/* Slurm has about a hundred reasons that name a limit. Jobs wait for them on sites that enforce
 * limits. */
static void test_reason_name_limits(void **state)
{
    assert_string_equal(pl_slurm_reason_name(WAIT_QOS_MAX_NODE_PER_JOB), "QOSMaxNodePerJobLimit");
    assert_string_equal(pl_slurm_reason_name(WAIT_QOS_GRP_CPU), "QOSGrpCpuLimit");
    assert_string_equal(pl_slurm_reason_name(WAIT_ASSOC_MAX_CPU_PER_JOB), "AssocMaxCpuPerJobLimit");
    assert_string_equal(pl_slurm_reason_name(WAIT_ACCOUNT), "AccountNotAllowed");
}

/* A newer slurmctld may have reasons of its own. */
static void test_reason_name_unknown(void **state)
{
    const char *name = pl_slurm_reason_name(60000);

    assert_non_null(name);
    assert_true(*name && strlen(name) < 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reason_name_usual),
        cmocka_unit_test(test_reason_name_limits),
        cmocka_unit_test(test_reason_name_unknown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
