/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "launcher/slurm/slurm_accounting.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* As sacctmgr -nP prints them. */
static const char associations[] = "lab|lab||500||normal\n"
                                   "lab|lab|gpu|20|100|high\n"
                                   "lab|other||||\n"
                                   "lab|strict|gpu||7|\n"
                                   "lab|bad|||x|normal|\n"
                                   "lab|short\n";

/* The lowest limit; NULL: there is none. */
static const struct pl_slurm_cap *lowest(const struct pl_slurm_caps *caps)
{
    const struct pl_slurm_cap *low = NULL;

    for (size_t i = 0; i < caps->n; i++)
        if (!low || caps->cap[i].most < low->most)
            low = &caps->cap[i];
    return low;
}

static void limit_is(
    const char *account, const char *partition, int64_t most, const char *what, const char *qos)
{
    struct pl_slurm_place place = {.account = account, .partition = partition};
    struct pl_slurm_caps caps = {0};
    const struct pl_slurm_cap *low;
    char own[16];

    pl_slurm_read_associations(associations, &place, &caps, own, sizeof(own));
    low = lowest(&caps);
    assert_int_equal(low ? low->most : -1, most);
    assert_string_equal(low ? low->what : "", what);
    assert_string_equal(own, qos);
    if (low) /* of a partition's own association, the jobs there */
        assert_string_equal(low->partition, most == 500 ? "" : "gpu");
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

static void test_account(void **state)
{
    /* As sacctmgr -nP prints them: users have their own lines. */
    static const char lines[] = "lab|dept||40\nlab||ada|3\nlab||bob|\nlabor|x||1\n";
    struct pl_slurm_caps caps = {0};
    char parent[16];

    pl_slurm_read_account(lines, "LAB", &caps, parent, sizeof(parent));
    assert_int_equal(caps.n, 1);
    assert_int_equal(caps.cap[0].most, 40);
    assert_int_equal(caps.cap[0].scope, PL_SLURM_CAP_ACCOUNT);
    assert_string_equal(caps.cap[0].what, "GrpSubmitJobs of account LAB");
    assert_string_equal(parent, "dept");
    pl_slurm_read_account("root|||\n", "root", &caps, parent, sizeof(parent));
    assert_int_equal(caps.n, 1);
    assert_string_equal(parent, "");
    pl_slurm_read_account("", "lab", &caps, parent, sizeof(parent));
    assert_string_equal(parent, "");
    for (int i = 0; i < 2 * PL_SLURM_CAPS_MAX; i++)
        pl_slurm_read_account(lines, "lab", &caps, parent, sizeof(parent));
    assert_int_equal(caps.n, PL_SLURM_CAPS_MAX);
}

/* The limit that counts, and the jobs that it counts, where the default QOS and the partition's
 * have these lines; the user has 5 jobs in the account, of which 3 have the QOS normal, and 4 in
 * the partition, where the account has 6: no job has the partition's QOS as its own. The
 * controller counts 38 for dept and 20 for the QOS normal; of others squeue shows 7. */
static void
ask_is(const char *qos, const char *of_partition, int64_t most, int64_t there, const char *what)
{
    static const char script[] =
        "#!/bin/sh\n"
        "case ${0##*/}' '$* in\n"
        "*'show user names='*) echo 'lab|lab||50||normal' ;;\n"
        "*'associations accounts=lab format=Account,ParentName,User,GrpSubmitJobs clusters=c1')\n"
        "    printf '%s\\n' 'lab|dept||300' 'lab||ada|7' ;;\n"
        "*'accounts=dept '*) echo 'dept|root||40' ;;\n"
        "*'accounts=root '*) echo 'root||${GRP}|' ;;\n"
        "*'show qos names=normal '*) echo \"$TEST_QOS\" ;;\n"
        "*'show qos names=part '*) echo \"$TEST_PARTITION_QOS\" ;;\n"
        "'scontrol -o show assoc_mgr'*) printf '%s\\n' 'Association Records' \\\n"
        "    'ClusterName=c1 Account=dept UserName=ada(7) Partition= GrpSubmitJobs=N(1)' \\\n"
        "    'ClusterName=c1 Account=dept UserName= Partition= ID=3 GrpSubmitJobs=40(38) "
        "GrpWall=N(0)' \\\n"
        "    'QOS=normal(1) GrpJobs=N(0) GrpSubmitJobs=N(20) x' ;;\n"
        "'squeue '*--user=*--account=lab) seq 5 ;;\n"
        "'squeue '*--user=*--qos=normal) seq 3 ;;\n"
        "'squeue '*--user=*' --partition=gpu') seq 4 ;;\n"
        "'squeue '*' --account=lab --partition=gpu') seq 6 ;;\n"
        "'squeue --noheader --array --format=%i '*) seq 7 ;;\n"
        "*) echo \"unexpected: $*\" >&2; exit 1 ;;\n"
        "esac\n";
    static const char *const names[] = {"sacctmgr", "scontrol", "squeue"};
    struct pl_slurm_place place = {.cluster = "c1",
                                   .partition = of_partition ? "gpu" : NULL,
                                   .partition_qos = of_partition ? "part" : NULL};
    struct pl_slurm_cap limit;
    struct pl_error err = {0};
    _cleanup_free_ char *before = strdup(getenv("PATH"));
    char dir[128], path[256], search[512];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(search, sizeof(search), "%s:%s", dir, before);
    for (size_t i = 0; i < PL_COUNT(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        assert_int_equal(pl_file_write_atomic(path, script, strlen(script), 0755, NULL), 0);
    }
    setenv("PATH", search, 1);
    setenv("TEST_QOS", qos, 1);
    setenv("TEST_PARTITION_QOS", of_partition ? of_partition : "", 1);
    if (pl_slurm_caps_ask(&place, &limit, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    assert_string_equal(limit.what, what);
    assert_int_equal(limit.most, most);
    assert_int_equal(limit.there, there);
    setenv("PATH", before, 1);
    tmpdir_remove(dir);
}

/* A limit of the QOS replaces the same one of the association and of all accounts, as in Slurm. The
 * one that leaves the least room counts, which need not be the lowest. */
static void test_ask(void **state)
{
    ask_is("normal||||", NULL, 40, 38, "GrpSubmitJobs of account dept");
    ask_is("normal|100|||", NULL, 40, 38, "GrpSubmitJobs of account dept");
    ask_is("normal||900||", NULL, 50, 5, "MaxSubmitJobs of account lab");
    ask_is("normal|1000|900||", NULL, 900, 20, "GrpSubmitJobs of QOS normal");
    ask_is("normal|100|900||", NULL, 100, 3, "MaxSubmitJobsPerUser of QOS normal");
    ask_is("normal|100|900|60|", NULL, 60, 7, "MaxSubmitJobsPerAccount of QOS normal");
    ask_is("normal||900|60|", NULL, 60, 7, "MaxSubmitJobsPerAccount of QOS normal");
}

/* A limit of the partition's QOS holds, not the job's, unless that one is over it. */
static void test_ask_partition(void **state)
{
    ask_is("normal|10|900||", "part|60|||", 60, 4, "MaxSubmitJobsPerUser of QOS part");
    ask_is("normal|10|900||OverPartQOS", "part|60|||", 10, 3, "MaxSubmitJobsPerUser of QOS normal");
    ask_is("normal|10|30||DenyOnLimit,OverPartQOS", "part|8|9|900|", 10, 3,
           "MaxSubmitJobsPerUser of QOS normal");
    ask_is("normal|1000|30||", "part||2000|900|", 900, 6, "MaxSubmitJobsPerAccount of QOS part");
    ask_is("normal||900||", "part||||", 50, 5, "MaxSubmitJobs of account lab");
}

static void test_qos(void **state)
{
    struct pl_slurm_caps caps = {0};

    pl_slurm_read_qos("normal||||\n", "lab", &caps);
    assert_int_equal(caps.n, 0);
    pl_slurm_read_qos("normal|30|||\n", "lab", &caps);
    pl_slurm_read_qos("gpu|20|200|x|\n", "lab", &caps); /* the first one counts */
    assert_int_equal(caps.n, 2);
    assert_string_equal(caps.cap[0].what, "MaxSubmitJobsPerUser of QOS normal");
    assert_int_equal(caps.cap[0].scope, PL_SLURM_CAP_USER_QOS);
    assert_string_equal(caps.cap[1].what, "GrpSubmitJobs of QOS gpu");
    assert_int_equal(caps.cap[1].scope, PL_SLURM_CAP_QOS);
    pl_slurm_read_qos("gpu|||0", "lab", &caps);
    assert_string_equal(caps.cap[2].what, "MaxSubmitJobsPerAccount of QOS gpu");
    assert_string_equal(caps.cap[2].account, "lab");
}

static void test_find_group(void **state)
{
    static const char text[] =
        "ClusterName=c Account=labor UserName= Partition= GrpSubmitJobs=3(1)\n"
        "ClusterName=c Account=lab UserName= Partition=gpu GrpSubmitJobs=3(2)\n"
        "ClusterName=c Account=lab UserName= Partition= GrpSubmitJobs=N(4) x\n"
        "QOS=lab(7) GrpSubmitJobs=3(8)\nQOS=odd(7) GrpSubmitJobs=3";

    assert_int_equal(pl_slurm_find_group(text, "LAB", NULL), 4);
    assert_int_equal(pl_slurm_find_group(text, NULL, "lab"), 8);
    assert_int_equal(pl_slurm_find_group(text, "other", NULL), -1);
    assert_int_equal(pl_slurm_find_group(text, NULL, "odd"), -1);
    assert_int_equal(pl_slurm_find_group("", NULL, "lab"), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_associations), cmocka_unit_test(test_account),
        cmocka_unit_test(test_ask),          cmocka_unit_test(test_ask_partition),
        cmocka_unit_test(test_qos),          cmocka_unit_test(test_find_group),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
