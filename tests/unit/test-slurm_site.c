/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "launcher/slurm/slurm_conf.h"
#include "launcher/slurm/slurm_site.h"
#include "tests/lib/tmpdir.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* From Slurm 22.05. */
static const char config[] = "Configuration data as of 2026-11-25T19:42:50\n"
                             "AuthAltTypes            = (null)\n"
                             "AuthType                = auth/munge\n"
                             "JobRequeue              = 1\n"
                             "MaxArraySize            = 1001\n"
                             "MaxJobCount             = 10000\n"
                             "PlugStackConfig         = /etc/slurm/plugstack.conf\n"
                             "PreemptMode             = GANG,SUSPEND\n"
                             "PreemptParameters       = x\n"
                             "SchedulerParameters     = bf_continue,max_array_tasks=50\n"
                             "AccountingStorageEnforce = associations,limits\n"
                             "ClusterName             = c1\n"
                             "SLURM_VERSION           = 22.05.8\n";
static const char partitions[] =
    "PartitionName=main Default=YES PreemptMode=OFF State=UP\n"
    "PartitionName=main2 Default=NO PreemptMode=CANCEL State=UP\n"
    "PartitionName=scavenge AllowGroups=ALL Default=NO PreemptMode=REQUEUE State=UP\n";

static void test_site_parse(void **state)
{
    struct pl_slurm_site site;

    assert_int_equal(pl_slurm_site_parse(config, &site), 0);
    assert_string_equal(site.release, "22.05.8");
    assert_string_equal(site.preempt_mode, "GANG,SUSPEND");
    assert_string_equal(site.job_requeue, "1");
    assert_string_equal(site.plugstack, "/etc/slurm/plugstack.conf");
    assert_string_equal(site.auth, "auth/munge");
    assert_string_equal(site.cluster, "c1");
    assert_string_equal(site.enforce, "associations,limits");
    assert_int_equal(site.max_jobs, 10000);
    assert_int_equal(site.limits.max_array_size, 1001);
    assert_int_equal(site.limits.max_array_tasks, 50);
    assert_int_equal(pl_slurm_site_parse("SLURM_VERSION = 22.05.8\n", &site), -EINVAL);
    assert_int_equal(pl_slurm_site_parse("MaxArraySize = 7\nPreemptMode", &site), 0);
    assert_string_equal(site.preempt_mode, "");
    assert_string_equal(site.namespace, "");
    assert_int_equal(site.max_jobs, 0);
}

static void test_site_namespace(void **state)
{
    static const char *const cases[][2] = {
        {"JobContainerType        = job_container/tmpfs\n", "job_container/tmpfs"},
        {"NamespaceType           = namespace/tmpfs\n", "namespace/tmpfs"},
        {"NamespaceType           = namespace/linux\n", "namespace/linux"},
        {"JobContainerType        = job_container/none\n", ""},
        {"JobContainerType        = (null)\n", ""},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_slurm_site site;
        char text[128];

        snprintf(text, sizeof(text), "%sMaxArraySize = 7\n", cases[i][0]);
        assert_int_equal(pl_slurm_site_parse(text, &site), 0);
        assert_string_equal(site.namespace, cases[i][1]);
    }
}

static void mode_is(const char *partition, const char *expected)
{
    char mode[64];

    pl_slurm_site_find(partitions, partition, "PreemptMode", mode, sizeof(mode));
    assert_string_equal(mode, expected);
}

static void test_find(void **state)
{
    mode_is(NULL, "OFF");
    mode_is("scavenge", "REQUEUE");
    mode_is("main2", "CANCEL");
    mode_is("main2,scavenge", "CANCEL"); /* Slurm may choose either */
    mode_is("mai", "");
}

static void test_preempt_requeues(void **state)
{
    assert_true(pl_slurm_preempt_requeues("REQUEUE"));
    assert_true(pl_slurm_preempt_requeues("GANG,SUSPEND"));
    assert_false(pl_slurm_preempt_requeues("CANCEL"));
    assert_false(pl_slurm_preempt_requeues("OFF"));
}

/* Writes a slurm.conf and compares the name in it. */
static void check_cluster(const char *path, const char *text, const char *expected)
{
    _cleanup_free_ char *cluster = NULL;

    unlink(path);
    assert_int_equal(pl_file_append(path, text, strlen(text), 0600, NULL), 0);
    cluster = pl_slurm_conf_cluster();
    if (expected)
        assert_string_equal(cluster, expected);
    else
        assert_null(cluster);
}

static void test_conf_cluster(void **state)
{
    static const struct {
        const char *text, *cluster;
    } rows[] = {
        {"SlurmctldHost=a\nClusterName=Big-1\nAuthType=auth/none\n", "big-1"},
        {"  clustername = \"x\" # ClusterName=y", "x"},
        {"#ClusterName=old\nCLUSTERNAME=new\r\n", "new"},
        {"ClusterNameX=a\nInclude other\n", NULL},
        {"", NULL},
        {"ClusterName=a\nClusterName=b\n", "b"},
        {"AuthType=x  ClusterName = b SlurmctldPort=1\n", "b"},
        {"# ClusterName=a \\\nCluster\\  \nName=b \\", "b"},
        {"AuthInfo=\"ClusterName=b\"\nClusterName=\nClusterName=\"\"\n", NULL},
        {"ClusterName=a\nInclude\tinc \n", "inc"},
        {"iNCLUDE inc2 # two levels\nClusterName=\\\n", "inc"},
        {"Include inc\nClusterName=a", "a"},
        {"Include slurm.conf\nInclude inc", "inc"},
        {"IncludeX inc", NULL},
    };
    static const char included[] = "ClusterName=Inc\n", twice[] = "Include inc\nInclude none\n";
    char dir[64], path[80], inc[80], inc2[80], text[100];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/slurm.conf", dir);
    snprintf(inc, sizeof(inc), "%s/inc", dir);
    snprintf(inc2, sizeof(inc2), "%s/inc2", dir);
    snprintf(text, sizeof(text), "Include %s", inc);
    assert_int_equal(pl_file_append(inc, included, strlen(included), 0600, NULL), 0);
    assert_int_equal(pl_file_append(inc2, twice, strlen(twice), 0600, NULL), 0);
    setenv("SLURM_CONF", path, 1);
    for (size_t i = 0; i < PL_COUNT(rows); i++)
        check_cluster(path, rows[i].text, rows[i].cluster);
    check_cluster(path, text, "inc");
    unlink(path);
    assert_null(pl_slurm_conf_cluster());
    tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_site_parse),   cmocka_unit_test(test_site_namespace),
        cmocka_unit_test(test_find),         cmocka_unit_test(test_preempt_requeues),
        cmocka_unit_test(test_conf_cluster),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
