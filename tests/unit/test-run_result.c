/* SPDX-License-Identifier: MIT */
#include "tests/unit/sample_run.h"

#include <sys/resource.h>
#include <unistd.h>

static void test_result(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("result", argv);
    _cleanup_(json_decrefp) json_t *more = json_pack("{si ss}", "exit_code", 3, "state", "lies");
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_free_ char *dir = pl_run_attempt_path(run, 5, 0, NULL);
    _cleanup_free_ char *file = pl_run_trial_path(run, 5, "result.json");
    enum pl_trial_state trial_state;
    struct pl_error err = {0};
    unsigned n;
    int64_t code;

    assert_non_null(strstr(dir, "/result/trial-0005/attempt-0"));
    assert_int_equal(pl_run_n_attempts(run, 5, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(pl_run_result_read(run, 5, &o, &trial_state, &err), -ENOENT);
    assert_int_equal(pl_mkdir_p(dir, 0700, &err), 0);
    assert_int_equal(pl_run_n_attempts(run, 5, &n), 0);
    assert_int_equal(n, 1);
    assert_int_equal(pl_run_result_write(run, 5, PL_TRIAL_TIMED_OUT, more, &err), 0);
    assert_int_equal(pl_run_result_read(run, 5, &o, &trial_state, &err), 0);
    assert_int_equal(trial_state, PL_TRIAL_TIMED_OUT);
    assert_string_equal(pl_json_string(o, "state"), "timed-out");
    assert_int_equal(pl_json_int(o, "exit_code", &code), 0);
    assert_int_equal(code, 3);
    assert_int_equal(pl_file_write_atomic(file, "{\"schema\":1}", 12, 0600, &err), 0);
    json_decref(PL_TAKE(o));
    assert_int_equal(pl_run_result_read(run, 5, &o, &trial_state, &err), -EINVAL);
}

/* Values that readers hand on have their type, or the result counts as damaged. */
static void test_result_of_other_types(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    static const char *const bad[] = {"\"cause\":7",         "\"cause\":null",
                                      "\"metrics\":[]",      "\"others\":{}",
                                      "\"exit_code\":\"x\"", "\"world_size\":1e300",
                                      "\"attempts\":true",   "\"program\":[\"\\u001b[2J\"]"};
    _cleanup_(pl_run_closep) struct pl_run *run = make("types", argv);
    _cleanup_free_ char *dir = pl_run_attempt_path(run, 5, 0, NULL);
    _cleanup_free_ char *file = pl_run_trial_path(run, 5, "result.json");
    struct pl_error err = {0};

    assert_int_equal(pl_mkdir_p(dir, 0700, &err), 0);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        _cleanup_(json_decrefp) json_t *o = NULL;
        char text[160];

        snprintf(text, sizeof(text),
                 "{\"schema\":\"plume-result/1\",\"trial\":5,\"state\":\"done\",%s}", bad[i]);
        assert_int_equal(pl_file_write_atomic(file, text, strlen(text), 0600, &err), 0);
        assert_int_equal(pl_run_result_read(run, 5, &o, NULL, &err), -EINVAL);
    }
}

/* An attempt that outlives its job leaves the later attempt's result and its room alone. */
static void test_result_of_an_earlier_attempt(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("superseded", argv);
    _cleanup_free_ char *later = pl_run_attempt_path(run, 3, 1, NULL),
                        *claim = pl_run_attempt_path(run, 3, 1, "claim");
    _cleanup_(json_decrefp) json_t *first = json_pack("{si}", "attempt", 0), *o = NULL,
                                   *second = json_pack("{si}", "attempt", 1);
    enum pl_trial_state trial_state;
    struct pl_error err = {0};

    assert_int_equal(pl_mkdir_p(later, 0700, &err), 0);
    assert_int_equal(pl_run_result_write(run, 3, PL_TRIAL_PREEMPTED, first, &err), 0);
    assert_int_equal(pl_run_result_read(run, 3, &o, &trial_state, &err), 0);
    assert_int_equal(trial_state, PL_TRIAL_PREEMPTED);
    json_decref(PL_TAKE(o));
    assert_int_equal(pl_file_write_atomic(claim, "{}", 2, 0600, &err), 0);
    assert_int_equal(pl_run_result_write(run, 3, PL_TRIAL_DONE, second, &err), 0);
    assert_int_equal(pl_run_result_reserve(run, 3, 100, &err), 0);
    assert_int_equal(pl_run_result_write(run, 3, PL_TRIAL_FAILED, first, &err), 0);
    assert_int_equal(pl_run_result_read(run, 3, &o, &trial_state, &err), 0);
    assert_int_equal(trial_state, PL_TRIAL_DONE);
}

static void test_result_reserve(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("reserve", argv);
    _cleanup_(json_decrefp) json_t *o = NULL;
    _cleanup_free_ char *temp = pl_run_trial_path(run, 2, "result.json.tmp");
    struct pl_error err = {0};
    struct stat st;

    for (int again = 0; again < 2; again++) {
        assert_int_equal(pl_run_result_reserve(run, 2, SIZE_MAX, &err), 0);
        assert_int_equal(stat(temp, &st), 0);
        assert_int_equal(st.st_size, PL_RUN_RESULT_MAX);
        assert_int_equal(pl_run_result_write(run, 2, PL_TRIAL_DONE, NULL, &err), 0);
        assert_int_equal(stat(temp, &st), -1); /* it is the result now, and not longer than it */
        assert_int_equal(pl_run_result_read(run, 2, &o, NULL, &err), 0);
        json_decref(PL_TAKE(o));
    }
    assert_int_equal(symlink("/dev/null", temp), 0); /* not followed, and not kept */
    assert_int_equal(pl_run_result_write(run, 2, PL_TRIAL_FAILED, NULL, &err), 0);
    assert_int_equal(lstat(temp, &st), -1);
}

/* A process at its limit of descriptors writes the result all the same, and the file that reserved
 * room for it goes. */
static void test_result_reserve_without_descriptors(void **state)
{
    static const char *const argv[] = {"prog", NULL};
    _cleanup_(pl_run_closep) struct pl_run *run = make("descriptors", argv);
    _cleanup_free_ char *temp = pl_run_trial_path(run, 0, "result.json.tmp");
    _cleanup_(json_decrefp) json_t *o = NULL;
    struct pl_error err = {0};
    struct rlimit limit, one;
    int next, r;

    assert_int_equal(pl_run_result_reserve(run, 0, 100, &err), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    next = dup(0);
    assert_true(next >= 0);
    close(next);
    one = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &one), 0);
    r = pl_run_result_write(run, 0, PL_TRIAL_DONE, NULL, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(r, 0);
    assert_int_equal(access(temp, F_OK), -1);
    assert_int_equal(pl_run_result_read(run, 0, &o, NULL, &err), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_result),
        cmocka_unit_test(test_result_of_other_types),
        cmocka_unit_test(test_result_of_an_earlier_attempt),
        cmocka_unit_test(test_result_reserve),
        cmocka_unit_test(test_result_reserve_without_descriptors),
    };
    int failed;

    if (setup(NULL) != 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (failed == 0)
        teardown(NULL); /* a failure leaves its files */
    return failed;
}
