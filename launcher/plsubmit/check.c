/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/check.h"
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/term.h"
#include "common/run/requeue_rule.h"
#include "launcher/plsubmit/advice.h"
#include "launcher/plsubmit/on_end.h"
#include "launcher/plsubmit/submit.h"
#include "launcher/slurm/slurm_accounting.h"
#include "launcher/slurm/slurm_site.h"

#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ASK_MS 20000u
#define LINE_MAX_ 1200

struct checks {
    struct pl_buf text;
    unsigned wrong;
    int r; /* the first failure of ours */
};

static void add(struct checks *c, bool ok, const char *fmt, ...) PL_PRINTF(3, 4);

static void add(struct checks *c, bool ok, const char *fmt, ...)
{
    char line[LINE_MAX_];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    c->wrong += !ok;
    if (c->r == 0)
        c->r = pl_buf_adds(&c->text, ok ? "ok     " : "wrong  ");
    if (c->r == 0)
        c->r = pl_term_escape(&c->text, line, strlen(line));
    if (c->r == 0)
        c->r = pl_buf_addc(&c->text, '\n');
}

/* ---- without Slurm ---- */

static void check_warnings(struct checks *c, const struct pl_spec *spec)
{
    for (char **line = spec->warnings; line && *line; line++)
        add(c, false, "%s", *line);
}

/* The nearest folder above `dir` that exists; the caller frees it. NULL when out of memory. */
static char *existing_parent(const char *dir)
{
    char *path = strdup(dir);

    while (path && access(path, F_OK) < 0 && strrchr(path, '/') > path)
        *strrchr(path, '/') = '\0';
    return path;
}

static int make_and_remove(void *ctx, int answer)
{
    const char *path = ctx;

    return mkdir(path, 0700) < 0 || rmdir(path) < 0 ? errno : 0;
}

/* Permissions tell nothing of quotas and full file systems. A child tries: whoever writes to a file
 * system that does not answer cannot be ended. */
static int try_folder(const char *parent)
{
    _cleanup_free_ char *name = pl_path_join(parent, ".plume-check");
    _cleanup_free_ char *path = name ? pl_temp_name(name) : NULL;
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    int r = path ? pl_child_call(make_and_remove, path, PL_SUBMIT_WRITE_MS, &child, NULL) : -ENOMEM;

    if (r == 0 && child.status != 0)
        r = WIFEXITED(child.status) ? -WEXITSTATUS(child.status) : -EIO;
    return r;
}

static void check_folder(struct checks *c, const struct pl_launch *launch, bool local)
{
    const char *runs = launch->spec->values[PL_SPEC_RUNS].text;
    _cleanup_free_ char *parent = existing_parent(launch->dir), *advice = NULL;
    struct stat st;
    int r;

    if (!parent) {
        c->r = -ENOMEM;
        return;
    }
    r = stat(parent, &st) < 0             ? -errno
        : !S_ISDIR(st.st_mode)            ? -ENOTDIR
        : access(parent, W_OK | X_OK) < 0 ? -errno
                                          : try_folder(parent);
    if (r < 0) {
        add(c, false, "cannot make run folders in '%s': %s: choose another with --runs", parent,
            r == -ETIMEDOUT ? "its file system does not answer" : strerror(-r));
        return;
    }
    advice = local ? NULL : pl_advice_folder(parent, runs);
    if (advice)
        add(c, false, "%s", advice);
    else
        add(c, true, "run folders can be made in '%s'", parent);
}

/* The nodes' run-time is another matter: nothing runs there. */
static void check_container(struct checks *c, const struct pl_spec *spec, bool local)
{
    bool later = spec->lists[PL_SPEC_LOAD] || spec->lists[PL_SPEC_SETUP];

    if (!spec->values[PL_SPEC_CONTAINER].text)
        return;
    if (spec->container_runtime)
        add(c, true, "containers by '%s'%s", spec->container_runtime,
            local ? "" : "; plstat doctor compares the nodes'");
    else
        add(c, later, "neither apptainer nor singularity is in PATH here%s",
            later   ? ", unless the set-up brings it"
            : local ? ""
                    : ": add --load MODULE, or see with plstat doctor whether the nodes have it");
}

/* ---- with Slurm ---- */

/* Copies the text after `prefix`, to the end of its line. NULL: there is none. */
static char *after(const char *text, const char *prefix)
{
    const char *s = strstr(text, prefix);

    s = s ? s + strlen(prefix) : NULL;
    return s ? strndup(s, strcspn(s, "\n")) : NULL;
}

/* sbatch itself says whether Slurm takes and can start one trial. */
static void check_start(struct checks *c, const struct pl_launch *launch)
{
    static const char failure[] = "allocation failure: ";
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_(pl_strv_freep) char **argv = NULL, **env = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    _cleanup_free_ char *text = NULL;
    struct pl_error err = {0};
    const char *said;
    int r = pl_strv_append(&argv, "sbatch");

    if (r == 0)
        r = pl_strv_append(&argv, "--test-only");
    for (char **arg = launch->sbatch_args; *arg && r == 0; arg++)
        r = pl_strv_append(&argv, *arg);
    if (r == 0)
        r = pl_strv_append(&argv, "--array=0");
    if (r == 0)
        r = pl_strv_append(&argv, "--wrap=true");
    if (r == 0)
        r = pl_submit_env(environ, &env);
    if (r < 0) {
        c->r = r;
        return;
    }
    if (pl_child_run((const char *const *)argv, env, ASK_MS, &child, &err) < 0) {
        add(c, false, "%s", err.text);
        return;
    }
    said = pl_buf_str(&child.err);
    text = after(said, "to start at ");
    if (child.status == 0) {
        add(c, true, "sbatch takes a trial%s%s", text ? ", which could start at " : "",
            text ? text : "");
        return;
    }
    if (pl_submit_join(said, &line) < 0) {
        c->r = -ENOMEM;
        return;
    }
    said = pl_buf_str(&line);
    if (strncmp(said, failure, strlen(failure)) == 0)
        said += strlen(failure);
    add(c, false, "sbatch: %s", *said ? said : "refused without a word");
}

static void
check_arrays(struct checks *c, const struct pl_launch *launch, const struct pl_slurm_site *site)
{
    unsigned n = pl_grid_n_trials(&launch->spec->grid), max = site->limits.max_array_size;

    if (site->limits.max_array_tasks)
        max = PL_MIN(max, site->limits.max_array_tasks);
    if (max == 0)
        add(c, false,
            "this Slurm accepts no job arrays (MaxArraySize=0): ask its "
            "administrator, or write --local");
    else
        add(c, true, "%u trial%s, %u array%s of at most %u", n, n == 1 ? "" : "s",
            (n + max - 1) / max, n <= max ? "" : "s", max);
}

/* A requeue that was asked for, and that this Slurm does not do. */
static void
check_requeue(struct checks *c, const struct pl_spec *spec, const struct pl_slurm_site *site)
{
    const char *on = spec->values[PL_SPEC_REQUEUE_ON].text;
    struct pl_requeue_rule rule;
    char mode[64];

    if (!on || pl_requeue_parse(on, &rule, NULL) < 0 || rule.most[PL_REQUEUE_PREEMPT] == 0)
        return;
    pl_slurm_site_partition(spec->values[PL_SPEC_PARTITION].text, "PreemptMode", mode,
                            sizeof(mode));
    if (!*mode)
        snprintf(mode, sizeof(mode), "%s", site->preempt_mode);
    if (pl_slurm_preempt_requeues(mode))
        add(c, true, "a preempted trial starts again (PreemptMode=%s)", mode);
    else if (strstr(mode, "CANCEL"))
        add(c, false,
            "--requeue-on preempt: this Slurm cancels what it preempts (PreemptMode=%s), and does "
            "not start it again: omit it, and use --retry",
            mode);
    else
        add(c, true, "no job is preempted here (PreemptMode=%s)", *mode ? mode : "?");
}

/* MaxJobCount is for the jobs of all users, and those that have ended lately. */
static bool exceeds_slurm(struct checks *c, int64_t n, const struct pl_slurm_site *site)
{
    if (!site->max_jobs || n < site->max_jobs)
        return false;
    add(c, false,
        "%lld jobs of this sweep: Slurm has at most %u of all users (MaxJobCount): submit fewer at "
        "a time, as with --trials and --where",
        (long long)n, site->max_jobs);
    return true;
}

/* A submission beyond the limit of jobs is refused: each trial is one. */
static void
check_limit(struct checks *c, const struct pl_spec *spec, const struct pl_slurm_site *site)
{
    int64_t n = pl_grid_n_trials(&spec->grid) + (spec->values[PL_SPEC_ON_END].text != NULL);
    struct pl_slurm_place place = {.cluster = site->cluster,
                                   .account = spec->values[PL_SPEC_ACCOUNT].text,
                                   .partition = spec->values[PL_SPEC_PARTITION].text,
                                   .qos = spec->values[PL_SPEC_QOS].text};
    struct pl_slurm_cap limit;
    struct pl_error err = {0};
    char partition[64], qos[64];

    if (exceeds_slurm(c, n, site))
        return;
    if (!strstr(site->enforce, "limits") && !strstr(site->enforce, "safe") &&
        !strstr(site->enforce, "all")) {
        add(c, true,
            "no limit of a user's jobs: this Slurm enforces none (AccountingStorageEnforce=%s)",
            *site->enforce ? site->enforce : "?");
        return;
    }
    pl_slurm_site_partition(place.partition, "PartitionName", partition, sizeof(partition));
    pl_slurm_site_partition(place.partition, "QoS", qos, sizeof(qos));
    place.partition = partition;
    place.partition_qos = strcmp(qos, "N/A") != 0 ? qos : NULL;
    if (pl_slurm_caps_ask(&place, &limit, &err) < 0)
        add(c, true, "the limit of jobs is not known: %s", pl_error_text(&err));
    else if (limit.most < 0)
        add(c, true, "no MaxSubmitJobs or GrpSubmitJobs of this user, and none of the QOS");
    else
        add(c, limit.there + n <= limit.most,
            "%lld job%s of this sweep and %lld that %s there: Slurm takes %lld (%s)%s",
            (long long)n, n == 1 ? "" : "s", (long long)limit.there,
            limit.there == 1 ? "is" : "are", (long long)limit.most, limit.what,
            limit.there + n <= limit.most
                ? ""
                : ": submit fewer at a time, as with --trials and --where");
}

/* The small job of --on-end goes to the same partition, for which it may be too small. */
static void check_on_end(struct checks *c, const struct pl_launch *launch)
{
    struct pl_error err = {0};

    if (!launch->spec->values[PL_SPEC_ON_END].text)
        return;
    if (pl_on_end_test((const char *const *)launch->sbatch_args, launch->sweep, launch->dir,
                       launch->bin_dir, &err) < 0)
        add(c, false, "%s", err.text);
    else
        add(c, true, "sbatch takes the job that runs the command of --on-end");
}

static void check_slurm(struct checks *c, const struct pl_launch *launch)
{
    struct pl_slurm_site site = {0};
    struct pl_error err = {0};

    if (pl_slurm_site_ask(&site, &err) < 0) {
        add(c, false, "%s", err.text);
        return;
    }
    add(c, true, "Slurm %s answers", site.release);
    check_arrays(c, launch, &site);
    check_limit(c, launch->spec, &site);
    check_requeue(c, launch->spec, &site);
    check_start(c, launch);
    check_on_end(c, launch);
}

int pl_check_run(const struct pl_launch *launch,
                 FILE *out,
                 unsigned *ret_wrong,
                 struct pl_error *err)
{
    bool local = launch->spec->values[PL_SPEC_LOCAL].text;
    struct checks c = {0};

    check_warnings(&c, launch->spec);
    check_folder(&c, launch, local);
    check_container(&c, launch->spec, local);
    if (!local)
        check_slurm(&c, launch);
    if (c.r == 0 &&
        (fwrite(pl_buf_str(&c.text), 1, c.text.len, out) != c.text.len || fflush(out) != 0))
        c.r = -EIO;
    pl_buf_finish(&c.text);
    if (c.r < 0)
        return pl_error_errno(err, c.r, "cannot write to stdout");
    *ret_wrong = c.wrong;
    return 0;
}
