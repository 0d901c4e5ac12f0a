/* SPDX-License-Identifier: MIT */
/* A trial's line is found without reading trials.jsonl, and is the one that reading it all gives.
 */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_end.h"
#include "common/run/run_folder.h"
#include "tests/lib/tmpdir.h"
#include "tests/unit/bad_close.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char top[64];
static char value[70000];

struct sizes {
    unsigned seed, most;
};

/* A text of a random length, without a place for it in memory. */
static int values(void *ctx, unsigned trial, const char **ret)
{
    const struct sizes *s = ctx;
    unsigned hash = (trial + s->seed) * 2654435761u;
    size_t len = s->most ? (hash >> 8) % s->most : 0;

    memset(value, 'a' + (int)(hash >> 28), sizeof(value));
    value[len] = '\0';
    snprintf(value + len, sizeof(value) - len, "\n%u", trial);
    ret[0] = value;
    return 0;
}

static struct pl_run *make(const char *name, unsigned n_trials, struct sizes sizes)
{
    static const char *const argv[] = {"/bin/true", NULL}, *const axes[] = {"x", NULL};
    _cleanup_free_ char *dir = pl_path_join(top, name);
    _cleanup_(json_decrefp) json_t *options = json_object();
    struct pl_run_desc desc = {.sweep = name,
                               .name = name,
                               .n_trials = n_trials,
                               .argv = argv,
                               .axes = axes,
                               .options = options,
                               .script = "#!",
                               .values = values,
                               .ctx = &sizes};
    struct pl_run *run = NULL;
    struct pl_error err = {0};

    assert_int_equal(pl_run_create(dir, &desc, &err), 0);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    return run;
}

static void test_one_is_that_of_all(void **state)
{
    static const struct {
        unsigned n_trials;
        struct sizes sizes;
    } cases[] = {{1, {0, 0}},     {1, {3, 60000}},  {2, {1, 60000}}, {9, {2, 9000}},
                 {300, {3, 300}}, {40, {4, 65000}}, {2000, {5, 30}}, {101, {6, 4096}}};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        _cleanup_free_ char *name = pl_strf("alike-%zu", i);
        struct pl_run *all = make(name, cases[i].n_trials, cases[i].sizes), *one = NULL;
        struct pl_error err = {0};

        assert_int_equal(pl_run_open_own(pl_run_dir(all), &one, &err), 0);
        for (unsigned trial = 0; trial < cases[i].n_trials; trial++) {
            _cleanup_(json_decrefp) json_t *a = NULL, *b = NULL;

            assert_int_equal(pl_run_trial_params(all, trial, &a, &err), 0);
            assert_int_equal(pl_run_one_trial_params(one, trial, &b, &err), 0);
            assert_true(json_equal(a, b));
        }
        assert_int_equal(pl_run_one_trial_params(one, cases[i].n_trials, &(json_t *){0}, &err),
                         -ENOENT);
        pl_run_close(one);
        pl_run_close(all);
    }
}

/* Bytes that this process has read. */
static long long bytes_read(void)
{
    _cleanup_free_ char *text = NULL;
    size_t len;

    assert_int_equal(pl_file_read("/proc/self/io", 4096, &text, &len, NULL), 0);
    return strtoll(strstr(text, "rchar: ") + 7, NULL, 10);
}

static void test_one_reads_little(void **state)
{
    struct pl_run *run = make("large", 10000, (struct sizes){7, 400});
    _cleanup_(json_decrefp) json_t *params = NULL;
    struct pl_error err = {0};
    long long before = bytes_read();

    assert_int_equal(pl_run_one_trial_params(run, 6789, &params, &err), 0);
    assert_true(bytes_read() - before < 200000); /* of some 2,000,000 */
    pl_run_close(run);
}

/* Replaces the file by text that is not as Plume writes it. */
static void write_trials(const struct pl_run *run, const char *text)
{
    _cleanup_free_ char *path = pl_path_join(pl_run_dir(run), "trials.jsonl");
    int fd = open(path, O_WRONLY | O_TRUNC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

static void test_one_of_a_damaged_file(void **state)
{
    struct pl_run *run = make("damaged", 3, (struct sizes){0, 9});
    _cleanup_(json_decrefp) json_t *params = NULL;
    struct pl_error err = {0};

    /* another program's JSON is as good */
    write_trials(run, "{\"params\": {\"x\": \"1\"}, \"trial\": 0}\n"
                      "{\"params\": {\"x\": \"2\"}, \"trial\": 1}\n"
                      "{ \"trial\" : 2, \"params\": {\"x\": \"3\"}}\n");
    assert_int_equal(pl_run_one_trial_params(run, 1, &params, &err), 0);
    assert_string_equal(pl_json_string(params, "x"), "2");
    pl_run_close(run);

    run = make("damaged-2", 3, (struct sizes){0, 9});
    write_trials(run, "{\"trial\":0,\"params\":{\"x\":\"1\"}}\n"
                      "{\"trial\":2,\"params\":{\"x\":\"2\"}}\n"
                      "{\"trial\":1,\"params\":{\"x\":\"3\"}}\n");
    json_decref(PL_TAKE(params));
    assert_int_equal(pl_run_one_trial_params(run, 1, &params, &err), -EINVAL);
    assert_non_null(strstr(pl_error_text(&err), "line 2 of"));
    pl_run_close(run);

    run = make("damaged-3", 3, (struct sizes){0, 9});
    write_trials(run, "{\"trial\":0,\"params\":{\"x\":\"1\"}}\n{\"trial\":1,\"par");
    assert_int_equal(pl_run_one_trial_params(run, 2, &params, &err), -EINVAL);
    assert_non_null(strstr(pl_error_text(&err), "has 1 lines instead of 3"));
    pl_run_close(run);
}

/* A limit of files' sizes stands for the full disk. */
static void test_end_claim_on_a_full_disk(void **state)
{
    struct pl_run *run = make("full", 1, (struct sizes){0, 9});
    struct rlimit before, none;
    struct pl_error err = {0};

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){0, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    assert_int_equal(pl_run_end_claim(run, 1, &err), -EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    bad_close = "/ends/1.json";
    assert_int_equal(pl_run_end_claim(run, 1, &err), -EDQUOT);
    bad_close = NULL;
    assert_int_equal(pl_run_end_claim(run, 1, &err), 0); /* nobody has it */
    assert_int_equal(pl_run_end_claim(run, 1, &err), -EEXIST);
    pl_run_close(run);
}

static int setup(void **state)
{
    return tmpdir_make(top, sizeof(top));
}

static int teardown(void **state)
{
    return tmpdir_remove(top);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_is_that_of_all),
        cmocka_unit_test(test_one_reads_little),
        cmocka_unit_test(test_one_of_a_damaged_file),
        cmocka_unit_test(test_end_claim_on_a_full_disk),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
