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

static void test_account(void **state)
{
    /* As sacctmgr -nP prints them: users have their own lines. */
    static const char lines[] = "lab|dept||40\nlab||ada|3\nlab||bob|\nlabor|x||1\n";
    struct pl_slurm_submit_limit limit = {.most = -1};
    char parent[16];

    pl_slurm_read_account(lines, "LAB", &limit, parent, sizeof(parent));
    assert_int_equal(limit.most, 40);
    assert_string_equal(limit.what, "GrpSubmitJobs of account LAB");
    assert_string_equal(parent, "dept");
    pl_slurm_read_account("root|||\n", "root", &limit, parent, sizeof(parent));
    assert_int_equal(limit.most, 40);
    assert_string_equal(parent, "");
    pl_slurm_read_account("", "lab", &limit, parent, sizeof(parent));
    assert_string_equal(parent, "");
}

/* The limit that counts where the default QOS has this line. */
static void ask_is(const char *qos, int64_t most, const char *what)
{
    static const char script[] =
        "#!/bin/sh\n"
        "case $* in\n"
        "*'show user names='*) echo 'lab|lab||50||normal' ;;\n"
        "*'associations accounts=lab format=Account,ParentName,User,GrpSubmitJobs clusters=c1')\n"
        "    printf '%s\\n' 'lab|dept||300' 'lab||ada|7' ;;\n"
        "*'accounts=dept '*) echo 'dept|root||40' ;;\n"
        "*'accounts=root '*) echo 'root||${GRP}|' ;;\n"
        "*'show qos names=normal '*) echo \"$TEST_QOS\" ;;\n"
        "*) echo \"unexpected: $*\" >&2; exit 1 ;;\n"
        "esac\n";
    struct pl_slurm_place place = {.cluster = "c1"};
    struct pl_slurm_submit_limit limit;
    struct pl_error err = {0};
    _cleanup_free_ char *before = strdup(getenv("PATH"));
    char dir[128], path[256], search[512];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/sacctmgr", dir);
    snprintf(search, sizeof(search), "%s:%s", dir, before);
    assert_int_equal(pl_file_write_atomic(path, script, strlen(script), 0755, NULL), 0);
    setenv("PATH", search, 1);
    setenv("TEST_QOS", qos, 1);
    if (pl_slurm_submit_limit_ask(&place, &limit, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    assert_int_equal(limit.most, most);
    assert_string_equal(limit.what, what);
    setenv("PATH", before, 1);
    tmpdir_remove(dir);
}

/* A limit of the QOS replaces the same one of the association and of all accounts, as in Slurm. */
static void test_ask(void **state)
{
    ask_is("normal||", 40, "GrpSubmitJobs of account dept");
    ask_is("normal|100|", 40, "GrpSubmitJobs of account dept");
    ask_is("normal||900", 50, "MaxSubmitJobs of account lab");
    ask_is("normal|100|900", 100, "MaxSubmitJobsPerUser of QOS normal");
    ask_is("normal|1000|900", 900, "GrpSubmitJobs of QOS normal");
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
        cmocka_unit_test(test_account),
        cmocka_unit_test(test_ask),
        cmocka_unit_test(test_qos),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
