/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_accounting.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* As sacctmgr -nP prints them. */
static const char associations[] = "lab|lab||500||normal\n"
                                   "lab|lab|gpu|20|100|high\n"
                                   "lab|other||||\n"
                                   "lab|strict|gpu||7|\n"
                                   "lab|bad|||x|normal|\n"
                                   "lab|short\n";

static void limit_is(
    const char *account, const char *partition, int64_t most, const char *what, const char *qos)
{
    struct pl_slurm_place place = {.account = account, .partition = partition};
    struct pl_slurm_submit_limit limit = {.most = -1};
    char own[16];

    pl_slurm_read_associations(associations, &place, &limit, own, sizeof(own));
    assert_int_equal(limit.most, most);
    assert_string_equal(limit.what, what);
    assert_string_equal(own, qos);
}

static void test_associations(void **state)
{
    limit_is(NULL, NULL, 500, "MaxSubmitJobs of account lab", "normal");
    limit_is("", "cpu", 500, "MaxSubmitJobs of account lab", "normal");
    limit_is("lab", "gpu", 20, "MaxSubmitJobs of account lab", "high");
    limit_is("other", "gpu", -1, "", "");
    limit_is("strict", "gpu", 7, "GrpSubmitJobs of account strict", "");
    limit_is("strict", NULL, -1, "", "");
    limit_is("bad", NULL, -1, "", "normal");
    limit_is("short", NULL, -1, "", "");
    limit_is("none", NULL, -1, "", "");
}

static void test_qos(void **state)
{
    struct pl_slurm_submit_limit limit = {.most = -1};

    pl_slurm_read_qos("normal||\n", &limit);
    assert_int_equal(limit.most, -1);
    pl_slurm_read_qos("normal|30|200\n", &limit);
    assert_int_equal(limit.most, 30);
    assert_string_equal(limit.what, "MaxSubmitJobsPerUser of QOS normal");
    pl_slurm_read_qos("gpu|40|\n", &limit); /* a higher one changes nothing */
    assert_int_equal(limit.most, 30);
    pl_slurm_read_qos("gpu||0", &limit);
    assert_int_equal(limit.most, 0);
    assert_string_equal(limit.what, "GrpSubmitJobs of QOS gpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_associations),
        cmocka_unit_test(test_qos),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
