/* SPDX-License-Identifier: MIT */
/* Whole runs: recorded folders, and hubs that are asked. */
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plstat/foreign.h"
#include "launcher/plstat/words.h"
#include "tests/lib/tmpdir.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

static char runs[128];

static int copy_runs(void **state)
{
    const char *argv[] = {"cp", "-r", PL_FIXTURES "/runs", NULL, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    /* A copy is ours whoever the source belongs to, and its age can be set. */
    if (tmpdir_make(runs, sizeof(runs)) < 0)
        return -1;
    argv[3] = runs;
    strncat(runs, "/runs", sizeof(runs) - strlen(runs) - 1);
    return pl_child_run(argv, NULL, 60000, &child, NULL) < 0 || child.status ? -1 : 0;
}

static int remove_runs(void **state)
{
    *strrchr(runs, '/') = '\0';
    return tmpdir_remove(runs);
}

static struct pl_run_status *collect(const char *name,
                                     int64_t trial,
                                     struct pl_slurm_view *view,
                                     struct pl_notes *notes,
                                     struct pl_run **ret_run)
{
    _cleanup_free_ char *dir = pl_path_join(runs, name);
    struct pl_run_status *s = NULL;

    assert_int_equal(pl_run_open(dir, ret_run, NULL), 0);
    assert_int_equal(pl_run_status_collect(*ret_run, trial, true, view, &s, notes, NULL), 0);
    return s;
}

static void test_collect_ended(void **state)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
        collect("mixed", -1, &view, &notes, &run);

    assert_false(notes.partial); /* nothing has to be up */
    assert_int_equal(s->n_trials, 4);
    assert_int_equal(s->state, PL_SWEEP_FAILED);
    assert_string_equal(s->objective, "acc");
    assert_true(s->maximize);
    assert_int_equal(s->best, 1);
    assert_int_equal(s->trials[2].attempts, 2);
    assert_string_equal(s->trials[2].job, "4713_2");
    assert_int_equal(json_array_size(json_object_get(s->trials[2].doc, "ranks")), 12);
    pl_notes_finish(&notes);
}

static void test_collect_waiting_without_slurm(void **state)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
        collect("waiting", -1, &view, &notes, &run);

    assert_true(notes.partial);
    assert_int_equal(s->state, PL_SWEEP_WAITING);
    pl_notes_finish(&notes);
}

static void test_collect_lost(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = json_pack("{s:f, s:[]}", "time", pl_wall_s(), "jobs");
    _cleanup_free_ char *path = pl_path_join(runs, "waiting/sweep.json");
    const struct timespec old[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    struct pl_slurm_view view = {.asked = true, .uid = geteuid()};
    struct pl_notes notes = {0};

    assert_int_equal(pl_slurm_jobs_parse(doc, &view.jobs, NULL), 0);
    for (int i = 0; i < 2; i++) {
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
            collect("waiting", -1, &view, &notes, &run);

        /* Submitted a moment ago, Slurm's answer proves nothing yet. */
        assert_int_equal(s->state, i ? PL_SWEEP_FAILED : PL_SWEEP_WAITING);
        assert_int_equal(s->trials[0].state, i ? PL_TRIAL_LOST : PL_TRIAL_WAITING);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    assert_false(notes.partial);
    pl_notes_finish(&notes);
    pl_slurm_view_finish(&view);
}

/* The clock of the file system's server is slow. */
static void test_collect_new_on_a_slow_server(void **state)
{
    _cleanup_(json_decrefp) json_t *doc = json_pack("{s:f, s:[]}", "time", pl_wall_s(), "jobs");
    _cleanup_(json_decrefp) json_t *sweep = NULL;
    _cleanup_free_ char *path = pl_path_join(runs, "waiting/sweep.json");
    const struct timespec old[2] = {{.tv_sec = 1700000000}, {.tv_sec = 1700000000}};
    struct pl_slurm_view view = {.asked = true, .uid = geteuid()};
    struct pl_notes notes = {0};
    struct pl_run_status *s;
    struct pl_run *run;

    assert_int_equal(pl_slurm_jobs_parse(doc, &view.jobs, NULL), 0);
    assert_int_equal(pl_json_load_file(path, 1 << 20, &sweep, NULL), 0);
    json_object_set_new(sweep, "created", json_real(pl_wall_s()));
    assert_int_equal(json_dump_file(sweep, path, 0), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    s = collect("waiting", -1, &view, &notes, &run);
    assert_int_equal(s->state, PL_SWEEP_WAITING);
    pl_run_status_destroy(s);
    pl_run_close(run);
    pl_notes_finish(&notes);
    pl_slurm_view_finish(&view);
}

/* The hub of a job that Slurm has suspended stands still with its ranks. */
static void test_collect_suspended(void **state)
{
    static const char *const states[] = {"SUSPENDED", "RUNNING"};

    for (size_t i = 0; i < PL_COUNT(states); i++) {
        _cleanup_(json_decrefp) json_t *doc =
            json_pack("{s:f, s:[{s:i, s:i, s:i, s:s}]}", "time", pl_wall_s(), "jobs", "id", 999003,
                      "array", 999002, "task", 0, "state", states[i]);
        struct pl_slurm_view view = {.asked = true, .uid = geteuid()};
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
        _cleanup_free_ char *said = NULL;
        struct pl_notes notes = {0};

        assert_int_equal(pl_slurm_jobs_parse(doc, &view.jobs, NULL), 0);
        s = collect("live", 0, &view, &notes, &run);
        assert_int_equal(s->trials[0].state, PL_TRIAL_RUNNING);
        assert_true(notes.partial); /* status.json may be older than the suspension */
        said = json_dumps(notes.list, 0);
        assert_true(!strstr(said, ": Slurm has suspended the job: shown as of ") == (i == 1));
        pl_notes_finish(&notes);
        pl_slurm_view_finish(&view);
    }
}

static void test_collect_hub_gone(void **state)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
        collect("live", 0, &view, &notes, &run);

    assert_int_equal(s->trials[0].state, PL_TRIAL_RUNNING);
    assert_int_equal(s->trials[0].source, PL_SOURCE_STATUS);
    /* without "written" */
    assert_in_range((long)(pl_wall_s() - s->trials[0].age_s), 1700000029, 1700000099);
    assert_true(notes.partial);
    assert_true(json_array_size(notes.list) >= 1);
    pl_notes_finish(&notes);
}

/* Somebody has set the clock of the hub's node by an hour: the state is as old as it is. */
static void test_the_age_of_a_state_when_the_clock_was_set(void **state)
{
    static const char done[] =
        "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"done\",\"attempt\":0,"
        "\"attempts\":1,\"exit_code\":0,\"time\":1700000031.0}\n";
    _cleanup_free_ char *path = pl_path_join(runs, "live/trial-0000/status.json");
    _cleanup_free_ char *result = pl_path_join(runs, "live/trial-0000/result.json");
    _cleanup_(json_decrefp) json_t *status = NULL, *old = NULL;
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    struct pl_run_status *s;

    assert_int_equal(pl_json_load_file(path, 1 << 20, &status, NULL), 0);
    old = json_deep_copy(status);
    json_object_set_new(status, "written", json_real(pl_wall_s() - 40));
    assert_int_equal(json_dump_file(status, path, 0), 0);
    s = collect("live", 0, &view, &notes, &run);
    assert_int_equal(s->trials[0].source, PL_SOURCE_STATUS);
    assert_in_range((long)s->trials[0].age_s, 39, 1000);
    assert_int_equal((long)pl_trial_status_until(&s->trials[0]), 1700000030);
    pl_run_status_destroy(s);
    pl_notes_finish(&notes);
    /* The trial has ended, and its log is not there. */
    assert_int_equal(pl_file_append(result, done, strlen(done), 0600, NULL), 0);
    for (int without = 0; without < 2; without++) {
        if (without)
            assert_int_equal(json_dump_file(old, path, 0), 0);
        pl_run_close(PL_TAKE(run));
        s = collect("live", 0, &view, &notes, &run);
        assert_int_equal(s->trials[0].source, PL_SOURCE_STATUS);
        if (without)
            assert_in_range((long)(pl_wall_s() - s->trials[0].age_s), 1700000029, 1700000099);
        else
            assert_in_range((long)s->trials[0].age_s, 39, 1000);
        pl_run_status_destroy(s);
        pl_notes_finish(&notes);
    }
    assert_int_equal(unlink(result), 0);
}

/* Whoever may write to a run folder could have the user's key greet an address of his. */
static void test_collect_keeps_the_users_key_from_foreign_folders(void **state)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    _cleanup_free_ char *folder = pl_path_join(runs, "live");
    _cleanup_free_ char *status_path = pl_path_join(folder, "trial-0000/status.json");
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    _cleanup_(json_decrefp) json_t *status = NULL;
    _cleanup_free_ char *text = NULL;
    socklen_t len = sizeof(a);

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(pl_json_load_file(status_path, 1 << 20, &status, NULL), 0);
    json_object_set_new(json_object_get(status, "hub"), "port", json_integer(ntohs(a.sin_port)));
    text = json_dumps(status, JSON_COMPACT);
    assert_int_equal(pl_file_write_atomic(status_path, text, strlen(text), 0600, NULL), 0);
    for (int foreign = 1; foreign >= 0; foreign--) {
        struct pl_slurm_view view = {.never = true};
        struct pl_notes notes = {0};
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;

        assert_int_equal(chmod(folder, foreign ? 0777 : 0755), 0);
        s = collect("live", 0, &view, &notes, &run);
        assert_int_equal(s->trials[0].state, PL_TRIAL_RUNNING);
        assert_int_equal(s->trials[0].source, PL_SOURCE_STATUS);
        assert_true(notes.partial);
        if (foreign)
            assert_non_null(strstr(pl_error_text(&s->trials[0].query->err), "others may write"));
        assert_true((accept4(fd, NULL, NULL, SOCK_NONBLOCK) >= 0) == !foreign);
        pl_notes_finish(&notes);
    }
}

/* Its files may hold more than the host's memory. The last test: the limit stays. */
static void test_collect_of_a_foreign_folder_has_a_limit(void **state)
{
    _cleanup_free_ char *folder = NULL;
    struct rlimit before, after;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("# skipped: a sanitizer maps terabytes, so there is no limit\n");
    return;
#endif
    if (geteuid() != 0) {
        print_message("# skipped: only root makes another user's folder\n");
        return;
    }
    folder = pl_path_join(runs, "live");
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    for (int foreign = 0; foreign < 2; foreign++) {
        struct pl_slurm_view view = {.never = true};
        struct pl_notes notes = {0};
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;

        assert_int_equal(chown(folder, foreign ? 65533 : 0, (gid_t)-1), 0);
        s = collect("live", 0, &view, &notes, &run);
        assert_int_equal(getrlimit(RLIMIT_AS, &after), 0);
        assert_true(after.rlim_cur == (foreign ? PL_FOREIGN_MEMORY_BYTES : before.rlim_cur));
        pl_notes_finish(&notes);
    }
}

/* A hub that is killed leaves a status.json that is up to two seconds old. Its log is newer. */
static void test_collect_killed_hub_by_its_log(void **state)
{
    static const char *const logs[] = {
        "{\"type\":\"attempt\",\"job\":\"999003\",\"attempt\":0,\"world_size\":2}\n"
        "{\"type\":\"node\",\"node_id\":0,\"node\":\"n01\"}\n"
        "{\"type\":\"rank\",\"rank\":1,\"node\":\"n01\",\"pid\":7,\"state\":\"running\"}\n",
        "{\"type\":\"cause\",\"cause\":{\"kind\":\"exit\",\"rank\":1,\"exit\":3},\"others\":[]}\n"};
    _cleanup_free_ char *status_path = pl_path_join(runs, "live/trial-0000/status.json");
    _cleanup_free_ char *log = pl_path_join(runs, "live/trial-0000/attempt-0/events.jsonl");
    _cleanup_(json_decrefp) json_t *status = NULL;

    assert_int_equal(pl_json_load_file(status_path, 1 << 20, &status, NULL), 0);
    for (size_t i = 0; i < 8; i++)
        json_object_set_new(
            json_array_get(json_object_get(json_object_get(status, "state"), "ranks"), i), "state",
            json_string("starting"));
    assert_int_equal(json_dump_file(status, status_path, 0), 0);
    for (size_t i = 0; i < PL_COUNT(logs); i++) {
        _cleanup_(json_decrefp) json_t *doc =
            json_pack("{s:f, s:[{s:i, s:i, s:i, s:s, s:i}]}", "time", pl_wall_s(), "jobs", "id",
                      999003, "array", 999002, "task", 0, "state", "FAILED", "exit", 143);
        struct pl_slurm_view view = {.asked = true, .uid = geteuid()};
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
        struct pl_notes notes = {0};

        assert_int_equal(pl_file_append(log, logs[i], strlen(logs[i]), 0600, NULL), 0);
        assert_int_equal(pl_slurm_jobs_parse(doc, &view.jobs, NULL), 0);
        s = collect("live", 0, &view, &notes, &run);
        assert_int_equal(s->trials[0].state, PL_TRIAL_FAILED);
        assert_int_equal(s->trials[0].source, PL_SOURCE_LOG);
        assert_string_equal(pl_json_string(s->trials[0].cause, "kind"), i ? "exit" : "runtime");
        pl_notes_finish(&notes);
        pl_slurm_view_finish(&view);
    }
    assert_int_equal(unlink(log), 0);
}

/* The hub ends just when it is asked. */
static void test_collect_hub_ends_meanwhile(void **state)
{
    static const char result[] = "{\"schema\":\"plume-result/1\",\"trial\":0,\"state\":\"done\","
                                 "\"attempt\":0,\"time\":1700000040}";
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    _cleanup_free_ char *status_path = pl_path_join(runs, "live/trial-0000/status.json");
    _cleanup_free_ char *result_path = pl_path_join(runs, "live/trial-0000/result.json");
    _cleanup_free_ char *key_path = pl_path_join(runs, "live/key"), *text = NULL;
    _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    _cleanup_(json_decrefp) json_t *status = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    socklen_t len = sizeof(a);
    pid_t pid;

    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    assert_int_equal(pl_json_load_file(status_path, 1 << 20, &status, NULL), 0);
    json_object_set_new(json_object_get(status, "hub"), "port", json_integer(ntohs(a.sin_port)));
    text = json_dumps(status, JSON_COMPACT);
    assert_int_equal(pl_file_write_atomic(status_path, text, strlen(text), 0600, NULL), 0);
    assert_int_equal(pl_secret_create(key_path, "0123456789abcdef0123456789abcdef", 32, NULL), 0);
    pid = fork();
    if (pid == 0) {
        int client = accept(fd, NULL, NULL);

        pl_file_write_atomic(result_path, result, strlen(result), 0600, NULL);
        close(client);
        _exit(0);
    }
    {
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
            collect("live", 0, &view, &notes, &run);

        assert_int_equal(s->trials[0].state, PL_TRIAL_DONE);
        assert_false(notes.partial);
    }
    waitpid(pid, NULL, 0);
    pl_notes_finish(&notes);
}

/* A step of which a full disk has taken no number of its job: nobody can be asked if it runs. */
static void test_collect_without_a_job(void **state)
{
    _cleanup_free_ char *trial = pl_path_join(runs, "unsubmitted/trial-0000");
    _cleanup_free_ char *attempt = pl_path_join(trial, "attempt-0"), *said = NULL;
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};

    assert_int_equal(mkdir(trial, 0700), 0);
    assert_int_equal(mkdir(attempt, 0700), 0);
    s = collect("unsubmitted", 0, &view, &notes, &run);
    assert_true(notes.partial);
    said = json_dumps(notes.list, 0);
    assert_non_null(strstr(said, "whether it still runs is not known"));
    pl_notes_finish(&notes);
}

static void test_collect_step(void **state)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_slurm_view view = {.never = true};
    struct pl_notes notes = {0};
    _cleanup_(pl_run_status_destroyp) struct pl_run_status *s =
        collect("step", -1, &view, &notes, &run);

    assert_string_equal(s->trials[0].job, "4242"); /* no array */
    pl_notes_finish(&notes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collect_ended),
        cmocka_unit_test(test_collect_waiting_without_slurm),
        cmocka_unit_test(test_collect_lost),
        cmocka_unit_test(test_collect_new_on_a_slow_server),
        cmocka_unit_test(test_collect_suspended),
        cmocka_unit_test(test_collect_hub_gone),
        cmocka_unit_test(test_the_age_of_a_state_when_the_clock_was_set),
        cmocka_unit_test(test_collect_keeps_the_users_key_from_foreign_folders),
        cmocka_unit_test(test_collect_killed_hub_by_its_log),
        cmocka_unit_test(test_collect_hub_ends_meanwhile),
        cmocka_unit_test(test_collect_without_a_job),
        cmocka_unit_test(test_collect_step),
        cmocka_unit_test(test_collect_of_a_foreign_folder_has_a_limit),
    };

    return cmocka_run_group_tests(tests, copy_runs, remove_runs);
}
