/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_tasks.h"
#include "launcher/slurm/slurm_jobs_private.h"
#include "launcher/slurm/slurm_squeue.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define ANSWER_MS 300 /* until the answer is here */

static bool answers; /* Slurm; its answer is under way for a while */
int __real_pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err);
int __wrap_pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err);

int __wrap_pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err)
{
    if (!answers)
        return __real_pl_slurm_query_jobs(uid, ret, err);
    *ret = json_array();
    poll(NULL, 0, ANSWER_MS);
    return *ret ? 0 : -ENOMEM;
}

/* The answer lacks all that happened while it was under way. */
static void test_get_time(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    struct pl_error err = {0};
    char home[64];

    assert_int_equal(tmpdir_make(home, sizeof(home)), 0);
    assert_int_equal(setenv("PLUME_HOME", home, 1), 0);
    assert_int_equal(setenv("SLURM_CONF", PL_FIXTURES "/runs/done/sweep.json", 1), 0);
    answers = true;
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0);
    answers = false;
    assert_true(jobs->time_s <= pl_wall_s() - ANSWER_MS / 1000.0);
    unsetenv("SLURM_CONF");
    unsetenv("PLUME_HOME");
    tmpdir_remove(home);
}

static json_t *make_doc(double time_s)
{
    return json_pack("{s:f, s:[{s:i,s:i,s:s,s:s,s:s}, {s:i,s:i,s:i,s:s}, {s:i,s:s}, "
                     "{s:i,s:i,s:i,s:s,s:b}]}",
                     "time", time_s, "jobs",                                                    //
                     "id", 100, "array", 100, "tasks", "5-7,9%2", "state", "PENDING", "reason", //
                     "Resources",                                                               //
                     "id", 103, "array", 100, "task", 3, "state", "RUNNING",                    //
                     "id", 55, "state", "TIMEOUT",                                              //
                     "id", 101, "array", 100, "task", 0, "state", "COMPLETED", "completing", 1);
}

static void test_tasks_contain(void **state)
{
    assert_true(pl_tasks_contain("5", 5));
    assert_false(pl_tasks_contain("5", 6));
    assert_true(pl_tasks_contain("0-3,7-9%4", 8));
    assert_false(pl_tasks_contain("0-3,7-9%8", 5));
    assert_true(pl_tasks_contain("0-10:5", 10));
    assert_false(pl_tasks_contain("0-10:5", 4));
    assert_false(pl_tasks_contain("", 0));
    assert_false(pl_tasks_contain("x", 0));
    assert_false(pl_tasks_contain("1-", 7));
    assert_false(pl_tasks_contain("0-4:0", 3));
    assert_false(pl_tasks_contain("1,...", 7));
}

/* As the plain search, in lists of any length. */
static void test_tasks_contain_sorted(void **state)
{
    unsigned seed = 1;

    for (int turn = 0; turn < 300; turn++) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        int64_t tasks[400], next = 0;
        size_t n = (size_t)turn + 1;

        for (size_t i = 0; i < n; i++) {
            seed = seed * 1103515245 + 12345;
            tasks[i] = next += 1 + (seed / 65536) % (1 + (unsigned)turn % 7);
        }
        assert_int_equal(pl_tasks_format(tasks, n, &text), 0);
        assert_int_equal(pl_buf_adds(&text, turn % 3 == 0 ? "%4" : turn % 3 == 1 ? "]" : ""), 0);
        for (int64_t task = 0; task < next + 3; task++)
            assert_true(pl_tasks_contain_sorted(pl_buf_str(&text), task) ==
                        pl_tasks_contain(pl_buf_str(&text), task));
    }
}

static void test_find(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_(json_decrefp) json_t *doc = make_doc(1);
    char id[32];

    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    assert_int_equal(jobs->n_jobs, 4);
    assert_int_equal(pl_slurm_jobs_find(jobs, 100, 3)->id, 103);
    assert_int_equal(pl_slurm_jobs_find(jobs, 100, 0)->id, 101);
    assert_string_equal(pl_slurm_jobs_find(jobs, 100, 9)->reason, "Resources");
    assert_null(pl_slurm_jobs_find(jobs, 100, 8));
    assert_null(pl_slurm_jobs_find(jobs, 99, 0));
    assert_int_equal(pl_slurm_jobs_find(jobs, 55, -1)->id, 55);
    assert_int_equal(pl_slurm_jobs_find(jobs, 55, 0)->id, 55); /* no array: its own task 0 */
    assert_null(pl_slurm_jobs_find(jobs, 55, 1));
    assert_int_equal(pl_slurm_jobs_find(jobs, 103, -1)->task, 3); /* by Slurm's own number */
    assert_null(pl_slurm_jobs_find(NULL, 55, -1));
    pl_slurm_job_id(pl_slurm_jobs_find(jobs, 100, 5), id, sizeof(id));
    assert_string_equal(id, "100_[5-7,9%2]");
    assert_int_equal(pl_slurm_trial_state(pl_slurm_jobs_find(jobs, 55, -1)), PL_TRIAL_TIMED_OUT);
}

/* Slurm keeps one record for the tasks that scancel took from a pending array by a filter: it has
 * no task id (NO_VAL) and no list of tasks. */
static void test_find_rest(void **state)
{
    static const char text[] =
        "{\"time\":1,\"jobs\":["
        "{\"id\":100,\"array\":100,\"task\":4294967294,\"state\":\"CANCELLED\",\"ended\":9},"
        "{\"id\":101,\"array\":100,\"task\":0,\"state\":\"COMPLETED\"},"
        "{\"id\":200,\"array\":200,\"state\":\"CANCELLED\",\"ended\":9},"
        "{\"id\":201,\"array\":200,\"tasks\":\"3-5\",\"state\":\"PENDING\"}]}";
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_(json_decrefp) json_t *doc = NULL;
    char id[32];

    assert_int_equal(pl_json_parse(text, strlen(text), 65536, &doc, NULL), 0);
    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    assert_string_equal(pl_slurm_jobs_find(jobs, 100, 0)->state, "COMPLETED");
    assert_non_null(pl_slurm_jobs_find(jobs, 100, 4000));
    assert_string_equal(pl_slurm_jobs_find(jobs, 100, 4000)->state, "CANCELLED");
    assert_string_equal(pl_slurm_jobs_find(jobs, 200, 4)->state, "PENDING");
    assert_string_equal(pl_slurm_jobs_find(jobs, 200, 6)->state, "CANCELLED");
    assert_true(pl_slurm_job_is_rest(pl_slurm_jobs_find(jobs, 200, 6)));
    assert_false(pl_slurm_job_is_rest(pl_slurm_jobs_find(jobs, 200, 4)));
    pl_slurm_job_id(pl_slurm_jobs_find(jobs, 200, 6), id, sizeof(id));
    assert_string_equal(id, "200");
}

static void test_parse_damaged(void **state)
{
    _cleanup_(json_decrefp) json_t *no_state = json_pack("{s:[{s:i}]}", "jobs", "id", 1);
    _cleanup_(json_decrefp) json_t *no_id = json_pack("{s:[{s:s}]}", "jobs", "state", "PENDING");
    _cleanup_(json_decrefp) json_t *none = json_object();
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;

    assert_int_equal(pl_slurm_jobs_parse(no_state, &jobs, NULL), -EINVAL);
    assert_int_equal(pl_slurm_jobs_parse(no_id, &jobs, NULL), -EINVAL);
    assert_int_equal(pl_slurm_jobs_parse(none, &jobs, NULL), 0);
    assert_int_equal(jobs->n_jobs, 0);
}

static void test_remember(void **state)
{
    static const char before_text[] =
        "{\"time\":1000000,\"jobs\":["
        "{\"id\":101,\"array\":100,\"task\":0,\"state\":\"FAILED\",\"ended\":999000},"
        "{\"id\":201,\"array\":200,\"task\":1,\"state\":\"CANCELLED\",\"ended\":999000},"
        "{\"id\":202,\"array\":200,\"task\":2,\"state\":\"RUNNING\"},"
        "{\"id\":300,\"state\":\"COMPLETED\",\"ended\":999000}],\"past\":["
        "{\"id\":5,\"array\":5,\"task\":0,\"state\":\"TIMEOUT\",\"ended\":999000},"
        "{\"id\":6,\"array\":6,\"task\":0,\"state\":\"TIMEOUT\",\"ended\":1000}]}";
    _cleanup_(json_decrefp) json_t *doc = make_doc(1000010), *before = NULL, *first = NULL;
    const json_t *past;

    assert_int_equal(pl_json_parse(before_text, strlen(before_text), 65536, &before, NULL), 0);
    assert_int_equal(pl_slurm_jobs_keep_ended(doc, before, NULL), 0);
    past = json_object_get(doc, "past");
    assert_int_equal(json_array_size(past), 2); /* the one Slurm still has, the old one: not */
    assert_int_equal(json_integer_value(json_object_get(json_array_get(past, 0), "id")), 201);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(past, 1), "id")), 5);

    first = make_doc(1);
    assert_int_equal(pl_slurm_jobs_keep_ended(first, NULL, NULL), 0);
    assert_null(json_object_get(first, "past"));
}

/* The record of several cancelled tasks is kept until Slurm lists its number again. */
static void test_remember_several_tasks(void **state)
{
    static const char before_text[] =
        "{\"time\":1000000,\"jobs\":["
        "{\"id\":300,\"array\":300,\"state\":\"CANCELLED\",\"ended\":999000},"
        "{\"id\":400,\"array\":400,\"tasks\":\"0-9\",\"state\":\"CANCELLED\",\"ended\":999000},"
        "{\"id\":100,\"array\":100,\"state\":\"CANCELLED\",\"ended\":999000},"
        "{\"id\":500,\"state\":\"COMPLETED\",\"ended\":999000}]}";
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_(json_decrefp) json_t *doc = make_doc(1000010), *before = NULL;

    assert_int_equal(pl_json_parse(before_text, strlen(before_text), 65536, &before, NULL), 0);
    assert_int_equal(pl_slurm_jobs_keep_ended(doc, before, NULL), 0);
    assert_int_equal(json_array_size(json_object_get(doc, "past")), 2); /* Slurm still has 100 */
    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
    assert_true(pl_slurm_jobs_find(jobs, 300, 17)->past);
    assert_true(pl_slurm_jobs_find(jobs, 400, 9)->past);
    assert_null(pl_slurm_jobs_find(jobs, 400, 10));
}

/* ---- the shared file ---- */

static char home[64], cache[512];

/* The cache file that belongs to this SLURM_CONF: the only one in the folder, once a first call has
 * made it. */
static void find_cache(void)
{
    _cleanup_free_ char *dir = pl_path_join(home, "cache");
    DIR *d = opendir(dir);
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)))
        if (strncmp(e->d_name, "jobs-", 5) == 0)
            snprintf(cache, sizeof(cache), "%s/%s", dir, e->d_name);
    closedir(d);
    assert_true(*cache);
}

static void write_cache(const char *text)
{
    find_cache();
    assert_int_equal(truncate(cache, 0), 0);
    assert_int_equal(pl_file_append(cache, text, strlen(text), 0600, NULL), 0);
}

static int setup_home(void **state)
{
    /* A slurm.conf that names no controller anybody runs. */
    static const char conf_text[] = "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\n"
                                    "SlurmctldPort=1\n";
    _cleanup_free_ char *conf = NULL;

    if (tmpdir_make(home, sizeof(home)) < 0)
        return -1;
    conf = pl_path_join(home, "slurm.conf");
    setenv("PLUME_HOME", home, 1);
    setenv("SLURM_CONF", conf, 1);
    return pl_file_write_atomic(conf, conf_text, strlen(conf_text), 0600, NULL);
}

static int teardown_home(void **state)
{
    return tmpdir_remove(home);
}

static void test_get_remembers(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_free_ char *young = NULL, *failure = NULL;
    struct pl_error err = {0};
    _cleanup_(json_decrefp) json_t *first = NULL, *second = NULL;

    assert_true(pl_slurm_jobs_get(geteuid(), &jobs, &err) < 0); /* nobody there; remembered */
    find_cache();
    assert_int_equal(pl_json_load_file(cache, 65536, &first, &err), 0);
    assert_true(pl_slurm_jobs_get(geteuid(), &jobs, &err) < 0);
    assert_int_equal(pl_json_load_file(cache, 65536, &second, &err), 0);
    assert_true(json_equal(first, second)); /* not asked again */

    young = pl_strf("{\"time\":%.3f,\"jobs\":[{\"id\":7,\"state\":\"RUNNING\"}]}\n", pl_wall_s());
    write_cache(young);
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0);
    assert_int_equal(jobs->n_jobs, 1);

    failure = pl_strf("{\"time\":%.3f,\"error\":\"no answer\",\"errno\":-110}\n", pl_wall_s());
    write_cache(failure);
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), -ETIMEDOUT);
    assert_string_equal(err.text, "no answer");
}

/* A job that Slurm has forgotten is kept after an answer and after a failure. */
static void test_get_keeps_ends(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_(json_decrefp) json_t *doc = NULL;
    _cleanup_free_ char *young = NULL;
    struct pl_error err = {0};

    write_cache("{\"time\":1,\"past\":[{\"id\":9,\"array\":8,\"task\":1,\"state\":\"CANCELLED\"}],"
                "\"jobs\":[{\"id\":8,\"array\":8,\"task\":0,\"state\":\"TIMEOUT\"},"
                "{\"id\":10,\"array\":8,\"task\":2,\"state\":\"RUNNING\"}]}");
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0); /* nobody there */
    assert_non_null(jobs->stale);
    assert_int_equal(jobs->n_jobs, 2); /* not the one that ran */
    assert_string_equal(pl_slurm_jobs_find(jobs, 8, 0)->state, "TIMEOUT");
    assert_int_equal(jobs->time_s, 0); /* proves no absence */
    pl_slurm_jobs_destroy(PL_TAKE(jobs));
    assert_int_equal(pl_json_load_file(cache, 65536, &doc, &err), 0);
    assert_non_null(pl_json_string(doc, "error"));
    assert_int_equal(json_array_size(json_object_get(doc, "past")), 1);
    assert_int_equal(json_array_size(json_object_get(doc, "jobs")), 2);

    young = pl_strf("{\"time\":%.3f,\"jobs\":[],\"past\":[{\"id\":9,\"array\":8,\"task\":1,"
                    "\"state\":\"CANCELLED\"}]}",
                    pl_wall_s());
    write_cache(young);
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0);
    assert_true(pl_slurm_jobs_find(jobs, 8, 1)->past);
}

static void test_get_distrusts(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    struct pl_error err = {0};

    write_cache("{\"time\":1,\"jobs\":[]}"); /* old */
    assert_true(pl_slurm_jobs_get(geteuid(), &jobs, &err) < 0);
    write_cache("{\"time\":99999999999,\"jobs\":[]}"); /* of the future */
    assert_true(pl_slurm_jobs_get(geteuid(), &jobs, &err) < 0);
    write_cache("{torn");
    assert_true(pl_slurm_jobs_get(geteuid(), &jobs, &err) < 0);
    assert_null(jobs);
}

static void test_get_without_conf(void **state)
{
    struct pl_slurm_jobs *jobs = NULL;
    struct pl_error err = {0};

    setenv("SLURM_CONF", "/nonexistent", 1);
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), -ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent"));
}

/* A change of the jobs makes a recent file old, and keeps its ended jobs. */
static void test_expire(void **state)
{
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_free_ char *young = pl_strf("{\"time\":%.3f,\"jobs\":[{\"id\":8,\"array\":8,"
                                         "\"task\":0,\"state\":\"CANCELLED\"},{\"id\":9,"
                                         "\"array\":8,\"task\":1,\"state\":\"PENDING\"}]}",
                                         pl_wall_s());
    struct pl_error err = {0};

    write_cache(young);
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0);
    assert_string_equal(pl_slurm_jobs_find(jobs, 8, 1)->state, "PENDING");
    pl_slurm_jobs_destroy(PL_TAKE(jobs));
    pl_slurm_jobs_expire(geteuid());
    assert_int_equal(pl_slurm_jobs_get(geteuid(), &jobs, &err), 0); /* nobody there */
    assert_non_null(jobs->stale);
    assert_int_equal(jobs->n_jobs, 1);
    assert_string_equal(pl_slurm_jobs_find(jobs, 8, 0)->state, "CANCELLED");
}

/* squeue's lines (of Slurm 22.05), among which a job's name with line breaks and bars. */
static void test_squeue_parse(void **state)
{
    static const char text[] =
        "70|70|N/A|CANCELLED|1|1795633932|1795633932|1795633940|1:00:00|JobHeldUser||victim\n"
        "12|12|0-5|PENDING|1|1795633932|N/A|N/A|1-00:00:00|JobHeldUser||na|me\n"
        "99|not a record|\n\n|\n"
        "21|20|0|EXPEDITING|1|5|N/A|N/A|5:00|BeginTime||again\n" /* from 25.11 on */
        "19|18|3|COMPLETING|2|1795633932|1795633933|1795637532|UNLIMITED|None|n[1-2]|arr\377\n"
        "18|18|0|RUNNING|1|5|6|7|5:00|None|n1|last";
    _cleanup_(pl_slurm_jobs_destroyp) struct pl_slurm_jobs *jobs = NULL;
    _cleanup_(json_decrefp) json_t *list = NULL, *doc = NULL;
    const struct pl_slurm_job *job;
    struct pl_error err = {0};

    assert_int_equal(pl_slurm_squeue_parse(text, &list), 0);
    doc = json_pack("{s:f, s:O}", "time", 5e9, "jobs", list);
    assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, &err), 0);
    assert_int_equal(jobs->n_jobs, 5);
    assert_string_equal(pl_slurm_jobs_find(jobs, 20, 0)->state, "PENDING");
    job = pl_slurm_jobs_find(jobs, 70, 3000); /* as one of an array's tasks */
    assert_true(job && pl_slurm_job_is_rest(job));
    assert_int_equal(job->ended, 1795633940);
    assert_ptr_equal(pl_slurm_jobs_find(jobs, 70, -1), job);
    job = pl_slurm_jobs_find(jobs, 12, 5);
    assert_non_null(job);
    assert_string_equal(job->name, "na|me");
    assert_string_equal(job->reason, "JobHeldUser");
    assert_int_equal(job->limit_s, 86400);
    assert_int_equal(job->started, 0);
    assert_null(pl_slurm_jobs_find(jobs, 12, 6));
    job = pl_slurm_jobs_find(jobs, 18, 3);
    assert_true(job && job->completing && !job->reason);
    assert_string_equal(job->state, "RUNNING");
    assert_string_equal(job->nodes, "n[1-2]");
    assert_string_equal(job->name, "arr?");
    assert_int_equal(job->n_nodes, 2);
    assert_int_equal(job->limit_s, 0);
    assert_int_equal(job->exit, -1);
    job = pl_slurm_jobs_find(jobs, 18, 0);
    assert_true(job && job->id == 18 && job->started == 6);
}

/* Any text is read or left out. */
static void test_squeue_parse_random(void **state)
{
    static const char bytes[] = "|||||||||||||0123456789\n\n\n N/A%[]-,:\377\303a";
    unsigned seed = 1;

    for (int turn = 0; turn < 2000; turn++) {
        char text[200];
        struct pl_slurm_jobs *jobs = NULL;
        json_t *list = NULL, *doc;
        size_t len;

        seed = seed * 1103515245 + 12345;
        len = seed / 65536 % (sizeof(text) - 1);
        for (size_t i = 0; i < len; i++) {
            seed = seed * 1103515245 + 12345;
            text[i] = bytes[seed / 65536 % (sizeof(bytes) - 1)];
        }
        text[len] = '\0';
        assert_int_equal(pl_slurm_squeue_parse(text, &list), 0);
        doc = json_pack("{s:o}", "jobs", list);
        assert_int_equal(pl_slurm_jobs_parse(doc, &jobs, NULL), 0);
        pl_slurm_jobs_destroy(jobs);
        json_decref(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tasks_contain),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_tasks_contain_sorted),
        cmocka_unit_test(test_find_rest),
        cmocka_unit_test(test_remember_several_tasks),
        cmocka_unit_test(test_parse_damaged),
        cmocka_unit_test(test_get_remembers),
        cmocka_unit_test(test_get_keeps_ends),
        cmocka_unit_test(test_remember),
        cmocka_unit_test(test_get_distrusts),
        cmocka_unit_test(test_expire),
        cmocka_unit_test(test_get_time),
        cmocka_unit_test(test_squeue_parse),
        cmocka_unit_test(test_squeue_parse_random),
        cmocka_unit_test(test_get_without_conf),
    };

    return cmocka_run_group_tests(tests, setup_home, teardown_home);
}
