/* SPDX-License-Identifier: MIT */
/* The files of a run folder that a submission reads again, and the index of runs: the first line is
 * sweep.json, the rest is trials.jsonl, and all of it is runs.jsonl. Whatever opens can be read to
 * its end. */
#include "common/base/fs.h"
#include "common/base/strv.h"
#include "common/run/run_folder.h"
#include "common/run/run_index.h"
#include "tests/fuzz/fuzz.h"

#include <sys/stat.h>
#include <unistd.h>

static char top[64], run_dir[80], home[80];

static void put(const char *folder, const char *name, const void *data, size_t len)
{
    _cleanup_free_ char *path = pl_path_join(folder, name);
    FILE *f = path ? fopen(path, "w") : NULL;

    FUZZ_CHECK(f);
    FUZZ_CHECK(fwrite(data, 1, len, f) == len);
    fclose(f);
}

static void remove_all(void)
{
    static const char *const names[] = {
        "run/sweep.json", "run/trials.jsonl", "home/runs.jsonl", "run", "home", ""};

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        _cleanup_free_ char *path = pl_path_join(top, names[i]);

        if (path)
            remove(path);
    }
    rmdir(top);
}

static void make_folders(void)
{
    snprintf(top, sizeof(top), "/tmp/plume-fuzz-XXXXXX");
    FUZZ_CHECK(mkdtemp(top));
    snprintf(run_dir, sizeof(run_dir), "%s/run", top);
    snprintf(home, sizeof(home), "%s/home", top);
    FUZZ_CHECK(mkdir(run_dir, 0700) == 0 && mkdir(home, 0700) == 0);
    setenv("PLUME_HOME", home, 1);
    atexit(remove_all);
}

static int look(void *ctx, const char *sweep, const char *folder, json_t *line)
{
    FUZZ_CHECK(sweep && folder && json_is_object(line));
    return 0;
}

static void read_trial(struct pl_run *run, unsigned trial)
{
    struct pl_error err = {0};
    json_t *params = NULL;
    char **argv = NULL;

    if (pl_run_trial_params(run, trial, &params, &err) < 0) {
        FUZZ_CHECK(err.text[0]);
        return;
    }
    if (pl_run_trial_argv(run, params, &argv, &err) == 0)
        FUZZ_CHECK(argv && argv[0]);
    pl_strv_free(argv);
    json_decref(params);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *newline = size ? memchr(data, '\n', size) : NULL;
    size_t first = newline ? (size_t)(newline - data) : size, rest = newline ? first + 1 : size;
    struct pl_run_ref ref = {0};
    struct pl_error err = {0};
    struct pl_run *run = NULL;
    size_t n;

    if (!top[0])
        make_folders();
    put(run_dir, "sweep.json", data, first);
    put(run_dir, "trials.jsonl", data + rest, size - rest);
    put(home, "runs.jsonl", data, size);
    if (pl_run_open(run_dir, &run, &err) < 0) {
        FUZZ_CHECK(err.code < 0 && err.text[0]);
    } else {
        FUZZ_CHECK(pl_run_sweep(run) && pl_run_name(run) && pl_run_argv(run, &n));
        for (size_t i = 0; i < pl_run_n_axes(run); i++)
            FUZZ_CHECK(pl_run_axis(run, i));
        for (unsigned i = 0; i < 3; i++)
            read_trial(run, i);
        for (size_t i = 0; i < pl_run_n_submissions(run); i++) {
            struct pl_run_submission sub = pl_run_submission(run, i);

            pl_run_submission_has(&sub, 0);
        }
        pl_run_is_cancelled(run, 1, 0);
        pl_run_close(run);
    }
    pl_run_index_each(look, NULL, NULL);
    if (pl_run_index_find("s-1", NULL, &ref, NULL) == 0)
        pl_run_ref_finish(&ref);
    return 0;
}
