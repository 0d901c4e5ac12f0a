/* SPDX-License-Identifier: MIT */
/* plsubmit(1). */
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/site.h"
#include "common/base/term.h"
#include "common/base/trace.h"
#include "launcher/plsubmit/after.h"
#include "launcher/plsubmit/change.h"
#include "launcher/plsubmit/change_sweep.h"
#include "launcher/plsubmit/check.h"
#include "launcher/plsubmit/hints.h"
#include "launcher/plsubmit/hparams.h"
#include "launcher/plsubmit/job_file.h"
#include "launcher/plsubmit/launch.h"
#include "launcher/plsubmit/local.h"
#include "launcher/plsubmit/report.h"
#include "launcher/plsubmit/submission.h"
#include "launcher/plsubmit/trial_env.h"

#include <limits.h>
#include <signal.h>
#include <string.h>

/* Finds the folder of this program, which also has the programs of the runtime. */
static int find_bin_dir(char *path, size_t size, struct pl_error *err)
{
    ssize_t n = readlink("/proc/self/exe", path, size - 1);
    char *slash;

    if (n < 0)
        return pl_error_errno(err, errno, "cannot find the folder of plsubmit");
    path[n] = '\0';
    slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
    return 0;
}

static int check_installed(const char *bin_dir, const char *program, struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(bin_dir, program);

    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (access(path, X_OK) < 0)
        return pl_error_set(err, -ENOENT, "%s is not in plsubmit's folder '%s': build all of Plume",
                            program, bin_dir);
    return 0;
}

/* At most one option may replace the submission: with two, one would be ignored. */
static int check_questions(const struct pl_spec *spec, struct pl_error *err)
{
    const struct {
        const char *name;
        bool wanted;
    } questions[] = {{"--check", spec->check},         {"--dry-run", spec->dry_run},
                     {"--expand", spec->expand},       {"--show-config", spec->show_config},
                     {"--write-job", spec->write_job}, {"--no-submit", spec->no_submit}};
    const char *first = NULL;

    for (size_t i = 0; i < PL_COUNT(questions); i++) {
        if (questions[i].wanted && first)
            return pl_error_set(err, -EINVAL, "%s and %s cannot be combined: omit one of them",
                                first, questions[i].name);
        if (questions[i].wanted)
            first = questions[i].name;
    }
    return 0;
}

/* --check. */
static int check(const struct pl_launch *plan)
{
    struct pl_error err = {0};
    unsigned wrong;

    if (check_installed(plan->bin_dir, "plrun", &err) < 0 ||
        pl_check_run(plan, stdout, &wrong, &err) < 0)
        return pl_report_error(&err, PL_EXIT_FAILED);
    return wrong ? PL_EXIT_FAILED : PL_EXIT_OK;
}

static int
launch(const struct pl_spec *spec, const struct pl_snapshot *snapshot, const char *bin_dir)
{
    _cleanup_(pl_launch_finish) struct pl_launch plan = {0};
    _cleanup_(pl_change_finish) struct pl_change change = PL_CHANGE_UNLOCKED;
    struct pl_submission s = {.change = &change, .after = spec->lists[PL_SPEC_AFTER]};
    struct pl_error err = {0};
    int r;

    if (spec->no_submit && spec->wait) {
        pl_error_set(&err, -EINVAL, "--wait has nothing to wait for with --no-submit: omit one");
        return pl_report_error(&err, PL_EXIT_USAGE);
    }
    if (pl_launch_init(&plan, spec, snapshot, bin_dir, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (spec->dry_run)
        return pl_launch_show(&plan, stdout, &err) < 0 ? pl_report_error(&err, PL_EXIT_FAILED)
                                                       : PL_EXIT_OK;
    if (spec->check)
        return check(&plan);
    if (check_installed(bin_dir, "plrun", &err) < 0 ||
        (spec->bundled && check_installed(bin_dir, "pltrain", &err) < 0))
        return pl_report_error(&err, PL_EXIT_USAGE);
    r = pl_launch_create(&plan, &change.run, &err);
    if (r < 0)
        return pl_report_error(&err, r == -EPERM ? PL_EXIT_FAILED : PL_EXIT_USAGE);
    if (pl_change_lock(plan.dir, change.locks, &err) < 0)
        return pl_report_error(&err, PL_EXIT_TRY_AGAIN);
    s.folder = plan.folder;
    s.shape = plan.shape;
    return pl_submission_send(&s, spec, bin_dir);
}

/* True if the trials may have a module that is not here. */
static bool makes_modules(const struct pl_spec *spec)
{
    static const char name[] = "PLUME_MODULE_PATH";

    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item; item++)
        if (strncmp(*item, name, strlen(name)) == 0)
            return true;
    return spec->lists[PL_SPEC_AFTER] || spec->values[PL_SPEC_DEPENDENCY].text ||
           pl_spec_of_sbatch(spec, "chdir") || pl_spec_sets_path(spec);
}

/* pltrain itself checks its module, options and hyper-parameters, with each value of each axis. */
static int check_hparams(struct pl_spec *spec, const char *bin_dir, struct pl_error *err)
{
    _cleanup_free_ char *pltrain = pl_path_join(bin_dir, "pltrain"), *warning = NULL;
    _cleanup_free_ char *text = NULL;
    int r = pltrain ? 0 : -ENOMEM;

    if (r == 0 && pl_hparams_is_pltrain(spec->argv[0]))
        r = pl_hparams_check(&spec->grid, spec->argv, pltrain, &warning, err);
    if (r == -ENOENT && makes_modules(spec)) {
        warning = strdup(pl_error_text(err));
        r = warning ? 0 : -ENOMEM;
    }
    if (r == -ENOENT && strstr(pl_error_text(err), "no module") &&
        (text = strdup(pl_error_text(err))))
        pl_error_set(err, r, "%s; if only the nodes have it, add --env PLUME_MODULE_PATH=FOLDER",
                     text);
    if (r == 0 && warning && pl_spec_warn(spec, "%s", warning) < 0)
        r = -ENOMEM;
    return r == -ENOMEM ? pl_error_set(err, r, "out of memory") : r;
}

int main(int argc, char **argv)
{
    _cleanup_(pl_spec_finish) struct pl_spec spec = {0};
    _cleanup_(pl_snapshot_finish) struct pl_snapshot snapshot = {0};
    _cleanup_(pl_buf_finish) struct pl_buf job = {0};
    struct pl_error err = {0};
    char bin_dir[PATH_MAX];
    char *const *words;
    bool done;
    int rest;

    pl_std_open();
    pl_child_init();
    signal(SIGXFSZ, SIG_IGN); /* a limit of ulimit -f is an error of a write, with a message */
    pl_log_init("plsubmit");
    pl_trace_init("plsubmit");
    if (pl_site_load(&err) < 0)
        return pl_report_error(&err, PL_EXIT_FAILED);
    if (pl_options_parse(&pl_spec_command, argc, argv, &spec, &rest, &done, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (done)
        return PL_EXIT_OK;
    if (find_bin_dir(bin_dir, sizeof(bin_dir), &err) < 0)
        return pl_report_error(&err, PL_EXIT_FAILED);
    if (spec.change != PL_CHANGE_NONE)
        return pl_change_sweep(&spec, argv + rest, bin_dir);
    if (check_questions(&spec, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (pl_job_files_apply(&spec, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    words = argv[rest] || !spec.command ? argv + rest : spec.command;
    spec.own_words = words == spec.command || (rest > 1 && strcmp(argv[rest - 1], "--") == 0);
    if (spec.write_job && pl_job_file_format(&spec, words, &job, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (pl_spec_resolve(&spec, words, bin_dir, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (pl_local_check(&spec, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (pl_trial_env_check(&spec, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (pl_after_resolve(spec.lists[PL_SPEC_AFTER], &err) < 0)
        return pl_report_error(&err, err.code == -ENOENT ? PL_EXIT_NOT_FOUND : PL_EXIT_USAGE);
    if (check_hparams(&spec, bin_dir, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (!spec.write_job && !spec.expand && !spec.show_config &&
        pl_snapshot_plan(&spec, &snapshot, &err) < 0)
        return pl_report_error(&err, PL_EXIT_USAGE);
    if (!spec.check && pl_hints_show(&spec) < 0)
        return PL_EXIT_USAGE;
    if (spec.write_job)
        return pl_job_file_write(&spec, &job, &err) < 0 ? pl_report_error(&err, PL_EXIT_FAILED)
                                                        : PL_EXIT_OK;
    if (spec.expand)
        return pl_launch_expand(&spec, stdout, &err) < 0 ? pl_report_error(&err, PL_EXIT_FAILED)
                                                         : PL_EXIT_OK;
    if (spec.show_config)
        return pl_spec_show(&spec, stdout) < 0 ? PL_EXIT_FAILED : PL_EXIT_OK;
    return launch(&spec, &snapshot, bin_dir);
}
