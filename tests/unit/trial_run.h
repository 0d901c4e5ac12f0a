/* SPDX-License-Identifier: MIT */
/* A run of two trials, and the job script of the first. */
#ifndef PL_TESTS_UNIT_TRIAL_RUN_H
#define PL_TESTS_UNIT_TRIAL_RUN_H

#include "common/base/fs.h"
#include "common/proto/json.h"
#include "runtime/plrun/trial.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <cmocka.h>

static char top[64], dir[80];
/* Of the next run: --signal, --max-fail and --requeue-on. */
static const char *signal_option, *max_fail_option, *requeue_option;
static bool is_local; /* --local */

static inline int one_value(void *ctx, unsigned trial, const char **values)
{
    values[0] = trial ? "b c" : "a";
    return 0;
}

/* Removes what Slurm and Plume set; the test runner's own variables stay. */
static inline void clear_env(void)
{
    for (char **e = environ; *e;) {
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*e, "="), *e);
        if (strncmp(name, "SLURM", 5) == 0 || strncmp(name, "PLUME", 5) == 0)
            unsetenv(name); /* moves the rest up */
        else
            e++;
    }
}

/* A run of two trials, and the environment of the first one's job script. */
static inline int make_run(void **state)
{
    static const char *const argv[] = {"prog", "--x={lr}", NULL}, *const axes[] = {"lr", NULL};
    json_t *options = json_pack("{s:{s:s*}, s:{s:s*}, s:{s:s*}, s:o*}", "signal", "value",
                                signal_option, "max-fail", "value", max_fail_option, "requeue-on",
                                "value", requeue_option, "local", is_local ? json_object() : NULL);
    struct pl_run_desc desc = {.sweep = "s-1",
                               .name = "s",
                               .n_trials = 2,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .values = one_value};
    struct pl_error err = {0};
    int r;

    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    snprintf(dir, sizeof(dir), "%s/run", top);
    r = pl_run_create(dir, &desc, &err);
    json_decref(options);
    clear_env();
    setenv("PATH", top, 1); /* no scontrol */
    setenv("PLUME_RUN_DIR", dir, 1);
    setenv("PLUME_TRIAL", "0", 1);
    setenv("SLURM_JOB_ID", "100", 1);
    return r;
}

static inline int remove_run(void **state)
{
    return tmpdir_remove(top);
}

static inline char *in_run(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    return path;
}

static inline void as_job(const char *job, const char *restart)
{
    setenv("SLURM_JOB_ID", job, 1);
    restart ? setenv("SLURM_RESTART_COUNT", restart, 1) : unsetenv("SLURM_RESTART_COUNT");
}

static inline json_t *result(void)
{
    struct pl_error err = {0};
    json_t *o = NULL;

    if (pl_json_load_file(in_run("trial-0000/result.json"), 1 << 20, &o, &err) < 0)
        fail_msg("%s", err.text);
    return o;
}

static inline void finish_with(int code, int want_code, const char *state, const char *kind)
{
    struct pl_error err = {0};
    int ret = 77;
    json_t *o;
    const char *have;

    setenv("PLUME_ATTEMPT", "0", 1);
    if (pl_trial_finish(code, &ret, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(ret, want_code);
    o = result();
    assert_string_equal(pl_json_string(o, "state"), state);
    have = pl_json_string(json_object_get(o, "cause"), "kind");
    if (kind)
        assert_string_equal(have, kind);
    else
        assert_null(have);
    json_decref(o);
}

static inline void claim(void)
{
    unsigned attempt;

    assert_int_equal(pl_trial_claim(&attempt, NULL), 0);
}

/* A log that the hub last wrote to a minute ago, with this line. */
static inline void begin_log(const char *last)
{
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 60}, {.tv_sec = time(NULL) - 60}};
    static const char log[] =
        "{\"type\":\"attempt\",\"job\":\"7\",\"step\":\"0\",\"world_size\":1}\n"
        "{\"type\":\"node\",\"node_id\":0,\"node\":\"n1\",\"state\":\"joined\"}\n"
        "{\"type\":\"rank\",\"rank\":0,\"state\":\"running\"}\n";
    char path[256];

    snprintf(path, sizeof(path), "%s", in_run("trial-0000/attempt-0/events.jsonl"));
    assert_int_equal(pl_file_append(path, log, strlen(log), 0666, NULL), 0);
    assert_int_equal(pl_file_append(path, last, strlen(last), 0666, NULL), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
}

#define IN_RUN(f) cmocka_unit_test_setup_teardown(f, make_run, remove_run)

#endif
