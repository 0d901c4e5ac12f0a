/* SPDX-License-Identifier: MIT */
#include "tests/unit/sample_run.h"

#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_create_open(void **state)
{
    static const char *const argv[] = {"/bin/prog", "--a={lr}", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("parent/t-abc", argv);
    _cleanup_free_ char *key = pl_run_key_path(run);
    const char *name, *regex;
    char data[PL_RUN_KEY_BYTES];
    struct pl_error err = {0};
    unsigned trial;
    size_t n;

    assert_string_equal(pl_run_sweep(run), "parent/t-abc");
    assert_string_equal(pl_run_name(run), "t");
    assert_int_equal(pl_run_n_trials(run), 6);
    assert_int_equal(pl_run_n_axes(run), 2);
    assert_string_equal(pl_run_axis(run, 1), "x.y-z");
    assert_string_equal(pl_run_argv(run, &n)[1], "--a={lr}");
    assert_int_equal(n, 2);
    assert_int_equal(pl_run_n_metrics(run), 1);
    pl_run_metric(run, 0, &name, &regex);
    assert_string_equal(regex, regexes[0]);
    assert_int_equal(pl_run_objective(run, &name), PL_OBJECTIVE_MIN);
    assert_string_equal(name, "loss");
    assert_int_equal(pl_secret_read(key, data, sizeof(data), &err), 0);
    assert_true(pl_run_created_s(run) > 1e9);
    assert_int_equal(pl_run_n_submissions(run), 0);

    assert_int_equal(pl_run_add_submission(run, "12", 0, 4, &err), 0);
    assert_int_equal(pl_run_add_submission(run, "13", 4, 2, &err), 0);
    assert_int_equal(pl_run_find_trial(run, "13", 1, &trial), 0);
    assert_int_equal(trial, 5);
    assert_int_equal(pl_run_find_trial(run, "13", 2, &trial), -ENOENT);
    assert_int_equal(pl_run_find_trial(run, "1", 0, &trial), -ENOENT);
}

/* Of several clients with one folder at one instant, one has it, and whole. */
static void test_create_at_one_instant(void **state)
{
    static const char *const argv[] = {"/bin/prog", NULL};
    _cleanup_free_ char *dir = pl_path_join(top, "instant/t-abc");
    _cleanup_free_ char *parent = pl_path_join(top, "instant");
    _cleanup_(json_decrefp) json_t *options = json_object(), *params = NULL;
    struct pl_run_desc desc = {.sweep = "t-abc",
                               .name = "t",
                               .n_trials = 6,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .script = "#!",
                               .values = values};
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_error err = {0};
    struct dirent *entry;
    int go[2], created = 0, there = 0, status, n = 8;
    DIR *list;

    assert_int_equal(pipe(go), 0);
    for (int i = 0; i < n; i++)
        if (fork() == 0) {
            char byte;

            close(go[1]);
            if (read(go[0], &byte, 1) < 0) /* its end is the start */
                _exit(2);
            status = pl_run_create(dir, &desc, NULL);
            _exit(status == 0 ? 0 : status == -EEXIST ? 1 : 2);
        }
    close(go[0]);
    close(go[1]);
    for (int i = 0; i < n; i++) {
        assert_true(wait(&status) > 0 && WIFEXITED(status));
        created += WEXITSTATUS(status) == 0;
        there += WEXITSTATUS(status) == 1;
    }
    assert_int_equal(created, 1);
    assert_int_equal(there, n - 1);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    assert_int_equal(pl_run_trial_params(run, 5, &params, &err), 0);
    list = opendir(parent);
    assert_non_null(list);
    n = 0;
    while ((entry = readdir(list)))
        n++;
    closedir(list);
    assert_int_equal(n, 3); /* ".", ".." and the folder: nothing is left */
}

static mode_t mode_of(const char *dir, const char *name)
{
    _cleanup_free_ char *path = pl_path_join(dir, name);
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 07777;
}

/* The group cannot write with any umask; nobody reads a folder with values of --env. */
static void test_create_modes(void **state)
{
    static const char *const argv[] = {"prog", NULL}, *const two[] = {"lr", "x", NULL};
    mode_t before = umask(0);

    for (int secret = 0; secret < 2; secret++) {
        _cleanup_(json_decrefp) json_t *options = json_object();
        _cleanup_free_ char *dir = pl_path_join(top, secret ? "modes/secret" : "modes/open");
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        _cleanup_close_ int fd = -EBADF;
        struct pl_run_desc desc = {.sweep = "s",
                                   .name = "s",
                                   .n_trials = 1,
                                   .argv = argv,
                                   .axes = two,
                                   .options = options,
                                   .values = values,
                                   .script = "#!",
                                   .secret = secret};
        struct pl_error err = {0};
        mode_t folder = secret ? 0700 : 0755, file = secret ? 0600 : 0644;

        assert_int_equal(pl_run_create(dir, &desc, &err), 0);
        assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
        assert_int_equal(pl_run_check_script(run, &err), 0);
        assert_int_equal(pl_run_make_attempt(run, 0, 0, &fd, &err), 0);
        assert_int_equal(pl_run_result_write(run, 0, PL_TRIAL_DONE, NULL, &err), 0);
        assert_int_equal(pl_run_add_submission(run, "1", 0, 1, &err), 0);
        assert_int_equal(mode_of(dir, "."), folder);
        assert_int_equal(mode_of(dir, "trial-0000/attempt-0"), folder);
        assert_int_equal(mode_of(dir, "job.sh"), folder);
        assert_int_equal(mode_of(dir, "sweep.json"), file);
        assert_int_equal(mode_of(dir, "trials.jsonl"), file);
        assert_int_equal(mode_of(dir, "trial-0000/result.json"), file);
        assert_int_equal(mode_of(dir, "key"), 0600);
    }
    umask(before);
    assert_int_equal(mode_of(top, "modes"), 0755);
}

/* Only a run of one's own is written to, and sbatch gets no script that others may change. */
static void test_foreign_write(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("foreign", argv), *reader = NULL;
    _cleanup_free_ char *script = pl_path_join(pl_run_dir(run), "job.sh");
    struct pl_error err = {0};

    assert_int_equal(pl_run_open(pl_run_dir(run), &reader, &err), 0);
    assert_int_equal(pl_run_result_write(reader, 0, PL_TRIAL_DONE, NULL, &err), -EACCES);
    assert_int_equal(pl_run_add_submission(reader, "1", 0, 1, &err), -EACCES);
    assert_int_equal(chmod(script, 0775), 0);
    assert_int_equal(pl_run_check_script(run, &err), -EPERM);
    assert_non_null(strstr(err.text, "job.sh"));
    assert_int_equal(chmod(pl_run_dir(run), 0775), 0);
    pl_run_close(PL_TAKE(reader));
    assert_int_equal(pl_run_open(pl_run_dir(run), &reader, &err), 0); /* anybody's may be read */
    pl_run_close(PL_TAKE(reader));
    assert_int_equal(pl_run_open_own(pl_run_dir(run), &reader, &err), -EPERM);
}

/* A retry is recorded before it is submitted, and survives a crash in between. */
static void test_retry(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("retry", argv), *again = NULL;
    struct pl_run_submission sub;
    struct pl_error err = {0};
    unsigned trial = 99;

    assert_int_equal(pl_run_add_submission(run, "12", 0, 6, &err), 0);
    assert_int_equal(pl_run_n_planned(run), 0);
    assert_int_equal(pl_run_plan_add(run, 1, 4, "0,2-3"), 0);
    assert_int_equal(pl_run_plan_add(run, 5, 1, "0"), 0);
    assert_int_equal(pl_run_plan_write(run, &err), 0);
    assert_int_equal(pl_run_open_own(pl_run_dir(run), &again, &err), 0);
    assert_int_equal(pl_run_n_planned(again), 2);
    sub = pl_run_planned(again, 0);
    assert_null(sub.job);
    assert_int_equal(sub.retry, 1);
    assert_true(pl_run_submission_has(&sub, 3));
    assert_false(pl_run_submission_has(&sub, 2));
    assert_false(pl_run_submission_has(&sub, 0));

    assert_int_equal(pl_run_plan_done(again, "20", &err), 0);
    assert_int_equal(pl_run_n_planned(again), 1);
    assert_int_equal(pl_run_find_trial(again, "20", 2, &trial), 0);
    assert_int_equal(trial, 3);
    assert_int_equal(pl_run_find_trial(again, "20", 1, &trial), -ENOENT);
    assert_int_equal(pl_run_plan_done(again, NULL, &err), 0);
    assert_int_equal(pl_run_n_planned(again), 0);
    assert_int_equal(pl_run_n_submissions(again), 2);
    assert_int_equal(pl_run_plan_add(again, 0, 1, "0"), 0);
    assert_int_equal(pl_run_planned(again, 0).retry, 2);
}

/* A record that nobody could read is not written. */
static void test_retry_too_large(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("large", argv), *again = NULL;
    _cleanup_free_ char *tasks = calloc(1, PL_RUN_SWEEP_MAX + 1);
    struct pl_error err = {0};

    memset(tasks, '1', PL_RUN_SWEEP_MAX);
    assert_int_equal(pl_run_plan_add(run, 0, 1, tasks), 0);
    assert_int_equal(pl_run_plan_write(run, &err), -EFBIG);
    assert_int_equal(pl_run_open_own(pl_run_dir(run), &again, &err), 0);
    assert_int_equal(pl_run_n_planned(again), 0);
}

static void test_cancelled(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    char *jobs[] = {(char[]){"12_[1,4-5]"}, (char[]){"13"}, NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("cancelled", argv), *again = NULL;
    struct pl_error err = {0};

    assert_false(pl_run_is_cancelled(run, 12, 4));
    assert_int_equal(pl_run_add_cancelled(run, jobs, &err), 0);
    assert_int_equal(pl_run_open_own(pl_run_dir(run), &again, &err), 0);
    assert_true(pl_run_is_cancelled(again, 12, 4));
    assert_false(pl_run_is_cancelled(again, 12, 3));
    assert_false(pl_run_is_cancelled(again, 1, 4));
    assert_false(pl_run_is_cancelled(again, 13, -1));
}

static void test_trial_params(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("params", argv);
    _cleanup_(json_decrefp) json_t *params = NULL;
    _cleanup_(pl_strv_freep) char **env = NULL;
    struct pl_error err = {0};

    assert_int_equal(pl_run_trial_params(run, 4, &params, &err), 0);
    assert_string_equal(pl_json_string(params, "lr"), lrs[1]);
    assert_string_equal(pl_json_string(params, "x.y-z"), others[1]);
    assert_int_equal(pl_run_trial_env(params, &env, &err), 0);
    assert_string_equal(env[0], "PLUME_PARAM_lr={x.y-z}");
    assert_string_equal(env[1], "PLUME_PARAM_x_y_z=a \"b\"\n{lr}");
    assert_string_equal(env[2],
                        "PLUME_PARAMS={\"lr\":\"{x.y-z}\",\"x.y-z\":\"a \\\"b\\\"\\n{lr}\"}");
    assert_null(env[3]);
    assert_int_equal(pl_run_trial_params(run, 6, &params, &err), -ENOENT);
}

/* argv of trial 4: lr = "{x.y-z}", x.y-z = "a \"b\"\n{lr}" */
static void check_argv(const char *folder, const char *const *argv, const char *const *expected)
{
    _cleanup_(pl_run_closep) struct pl_run *run = make(folder, argv);
    _cleanup_(json_decrefp) json_t *params = NULL;
    _cleanup_(pl_strv_freep) char **list = NULL;
    struct pl_error err = {0};
    size_t i;

    assert_int_equal(pl_run_trial_params(run, 4, &params, &err), 0);
    assert_int_equal(pl_run_trial_argv(run, params, &list, &err), 0);
    for (i = 0; expected[i]; i++)
        assert_string_equal(list[i], expected[i]);
    assert_null(list[i]);
}

static void test_trial_argv(void **state)
{
    static const char *const none[] = {"{lr}", "{other}", "{", "{}", "{lr", "lr}", NULL};
    const char *const none_out[] = {"{lr}", "{other}", "{",       "{}",      "{lr", "lr}",
                                    "--lr", "{x.y-z}", "--x.y-z", others[1], NULL};
    static const char *const used[] = {"p", "{{lr}}", "{lr}{x.y-z}{l{lr}", "", NULL};
    static const char *const used_out[] = {"p", "{{x.y-z}}", "{x.y-z}a \"b\"\n{lr}{l{x.y-z}", "",
                                           NULL};

    check_argv("argv-none", none, none_out);
    check_argv("argv-used", used, used_out);
}

/* A link in the place of a trial's folder leads nowhere. */
static void test_write_through_a_link(void **state)
{
    static const char *const argv[] = {"./train", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("linked", argv);
    char strange[128], link[160], room[160];
    struct pl_error err = {0};

    (void)state;
    snprintf(strange, sizeof(strange), "%s/strange", top);
    snprintf(room, sizeof(room), "%s/result.json.tmp", strange);
    snprintf(link, sizeof(link), "%s/linked/trial-0000", top);
    assert_int_equal(mkdir(strange, 0700), 0);
    assert_int_equal(pl_file_append(room, "x", 1, 0600, NULL), 0);
    assert_int_equal(symlink("../strange", link), 0);
    assert_int_equal(pl_run_write_file(run, "trial-0000/status.json", "{}", 2, 0666, false, &err),
                     -ELOOP);
    assert_non_null(strstr(err.text, "cannot write 'trial-0000/status.json'"));
    assert_int_equal(pl_run_result_write(run, 0, PL_TRIAL_DONE, NULL, &err), -ELOOP);
    assert_int_equal(unlink(room), 0);
    assert_int_equal(rmdir(strange), 0); /* nothing else is in it */
}

static void test_open_bad(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("bad", argv), *other = NULL;
    _cleanup_free_ char *file = pl_path_join(pl_run_dir(run), "sweep.json");
    _cleanup_(json_decrefp) json_t *good = NULL;
    struct pl_error err = {0};
    const char *key;
    json_t *value;
    void *next;

    assert_int_equal(pl_run_open("/nonexistent", &other, &err), -ENOENT);
    assert_int_equal(pl_run_open("/tmp", &other, &err), -ENOENT);
    assert_int_equal(pl_json_load_file(file, 1 << 20, &good, &err), 0);
    json_object_foreach_safe(good, next, key, value)
    {
        _cleanup_(json_decrefp) json_t *broken = json_copy(good);
        _cleanup_(pl_buf_finish) struct pl_buf out = {0};

        if (strcmp(key, "created") == 0)
            continue;
        json_object_set_new(broken, key, json_integer(-1));
        assert_int_equal(pl_json_dump_line(broken, &out), 0);
        assert_int_equal(pl_file_write_atomic(file, out.data, out.len, 0600, &err), 0);
        if (strcmp(key, "objective") != 0)
            assert_int_equal(pl_run_open(pl_run_dir(run), &other, &err), -EINVAL);
    }
    assert_null(other);
}

/* Every value that plsubmit lets through reaches the program byte for byte. */
static char random_value[64];
static int random_values(void *ctx, unsigned trial, const char **ret)
{
    unsigned *seed = ctx;
    size_t len = 0, n = (size_t)rand_r(seed) % 12;

    for (size_t i = 0; i < n; i++) {
        static const unsigned limits[] = {0x20, 0x7f, 0x800, 0x10000, 0x110000};
        unsigned c = 1 + (unsigned)rand_r(seed) % (limits[rand_r(seed) % 5] - 1);

        if (c >= 0xd800 && c <= 0xdfff)
            c = '{';
        if (c < 0x80) {
            random_value[len++] = (char)c;
        } else if (c < 0x800) {
            random_value[len++] = (char)(0xc0 | c >> 6);
            random_value[len++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            random_value[len++] = (char)(0xe0 | c >> 12);
            random_value[len++] = (char)(0x80 | (c >> 6 & 0x3f));
            random_value[len++] = (char)(0x80 | (c & 0x3f));
        } else {
            random_value[len++] = (char)(0xf0 | c >> 18);
            random_value[len++] = (char)(0x80 | (c >> 12 & 0x3f));
            random_value[len++] = (char)(0x80 | (c >> 6 & 0x3f));
            random_value[len++] = (char)(0x80 | (c & 0x3f));
        }
    }
    random_value[len] = '\0';
    ret[0] = random_value;
    return 0;
}

static void test_random_values(void **state)
{
    static const char *const one_axis[] = {"v", NULL}, *const argv[] = {"p", "<{v}>", NULL};
    _cleanup_(json_decrefp) json_t *options = json_object();
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_free_ char *dir = pl_path_join(top, "random");
    unsigned seed = 42, same = 42;
    struct pl_error err = {0};
    struct pl_run_desc desc = {.sweep = "r",
                               .name = "r",
                               .n_trials = 10000,
                               .argv = argv,
                               .axes = one_axis,
                               .options = options,
                               .values = random_values,
                               .ctx = &seed};

    assert_int_equal(pl_run_create(dir, &desc, &err), 0);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    for (unsigned i = 0; i < desc.n_trials; i++) {
        _cleanup_(json_decrefp) json_t *params = NULL;
        _cleanup_(pl_strv_freep) char **list = NULL, **env = NULL;
        const char *value;

        random_values(&same, i, &value);
        assert_int_equal(pl_run_trial_params(run, i, &params, &err), 0);
        assert_int_equal(pl_run_trial_argv(run, params, &list, &err), 0);
        assert_int_equal(pl_run_trial_env(params, &env, &err), 0);
        assert_int_equal(strlen(list[1]), strlen(value) + 2);
        assert_memory_equal(list[1] + 1, value, strlen(value));
        assert_string_equal(env[0] + strlen("PLUME_PARAM_v="), value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create_modes),         cmocka_unit_test(test_create_at_one_instant),
        cmocka_unit_test(test_foreign_write),        cmocka_unit_test(test_create_open),
        cmocka_unit_test(test_trial_params),         cmocka_unit_test(test_trial_argv),
        cmocka_unit_test(test_write_through_a_link), cmocka_unit_test(test_open_bad),
        cmocka_unit_test(test_random_values),        cmocka_unit_test(test_retry),
        cmocka_unit_test(test_retry_too_large),      cmocka_unit_test(test_cancelled),
    };
    int failed;

    if (setup(NULL) != 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed == 0)
        teardown(NULL); /* a failure leaves its files */
    return failed;
}
