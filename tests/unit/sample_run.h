/* SPDX-License-Identifier: MIT */
/* A run folder of six trials with two axes, in a temporary folder, for the tests that include this.
 */
#ifndef PL_TESTS_UNIT_SAMPLE_RUN_H
#define PL_TESTS_UNIT_SAMPLE_RUN_H

#include "common/base/fs.h"
#include "common/proto/json.h"
#include "common/run/run_folder.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static char top[64];

static const char *const axes[] = {"lr", "x.y-z", NULL};
static const char *const lrs[] = {"1e-3", "{x.y-z}"};
static const char *const others[] = {"", "a \"b\"\n{lr}", "$(id)"};

static int values(void *ctx, unsigned trial, const char **ret)
{
    ret[0] = lrs[trial / 3];
    ret[1] = others[trial % 3];
    return 0;
}

static const char *const names[] = {"loss"};
static const char *const regexes[] = {"loss=([0-9.]+)"};

static struct pl_run *make(const char *folder, const char *const *argv)
{
    _cleanup_(json_decrefp) json_t *options =
        json_pack("{s{sssi}}", "nodes", "origin", "x", "v", 1);
    _cleanup_free_ char *dir = pl_path_join(top, folder);
    struct pl_error err = {0};
    struct pl_run *run = NULL;
    struct pl_run_desc desc = {
        .sweep = folder,
        .name = "t",
        .n_trials = 6,
        .argv = argv,
        .axes = axes,
        .metric_names = names,
        .metric_regexes = regexes,
        .n_metrics = 1,
        .objective = PL_OBJECTIVE_MIN,
        .objective_metric = "loss",
        .options = options,
        .script = "#!",
        .values = values,
    };

    assert_int_equal(pl_run_create(dir, &desc, &err), 0);
    assert_int_equal(pl_run_create(dir, &desc, &err), -EEXIST);
    assert_int_equal(pl_run_open_own(dir, &run, &err), 0);
    return run;
}

static int setup(void **state)
{
    _cleanup_free_ char *home = NULL;

    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    home = pl_path_join(top, "home");
    return !home || setenv("PLUME_HOME", home, 1);
}

static int teardown(void **state)
{
    return tmpdir_remove(top);
}

#endif
