/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/update.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "launcher/plsubmit/change.h"

int pl_update_parallel(struct pl_run *run, const char *k, char ***ret, struct pl_error *err)
{
    _cleanup_(pl_strv_freep) char **jobs = calloc(1, sizeof(*jobs));
    int r;

    if (!jobs || pl_run_set_option(run, "max-parallel", k, "command line") < 0)
        return pl_error_nomem(err);
    r = pl_run_save_options(run, err);
    for (size_t i = 0; i < pl_run_n_submissions(run) && r == 0; i++) {
        const char *job = pl_run_submission(run, i).job;
        _cleanup_free_ char *id = pl_strf("JobId=%s", job);
        _cleanup_free_ char *throttle = pl_strf("ArrayTaskThrottle=%s", k);
        const char *argv[] = {"scontrol", "update", id, throttle, NULL};
        bool ended;

        r = id && throttle ? pl_change_command(argv, &ended, err) : pl_error_nomem(err);
        if (r == 0 && !ended && pl_strv_append(&jobs, job) < 0)
            r = pl_error_nomem(err);
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(jobs);
    return 0;
}

/* ---- limits ---- */

static const struct {
    enum pl_spec_key key;
    const char *option, *of_slurm; /* in scontrol update */
} limits[] = {
    {PL_SPEC_TIME, "time", "TimeLimit"},
    {PL_SPEC_PARTITION, "partition", "Partition"},
    {PL_SPEC_MEM, "mem", "MinMemoryNode"},
    {PL_SPEC_MEM_PER_CPU, "mem-per-cpu", "MinMemoryCPU"},
};

bool pl_update_has_limits(const struct pl_spec *spec)
{
    for (size_t i = 0; i < PL_COUNT(limits); i++)
        if (spec->values[limits[i].key].text)
            return true;
    return false;
}

/* scontrol counts memory in mebibytes, and knows no units. */
static char *for_slurm(size_t i, const char *value)
{
    uint64_t bytes;

    if (limits[i].key != PL_SPEC_MEM && limits[i].key != PL_SPEC_MEM_PER_CPU)
        return pl_strf("%s=%s", limits[i].of_slurm, value);
    if (pl_parse_mem(value, &bytes, NULL) < 0)
        return NULL;
    return pl_strf("%s=%llu", limits[i].of_slurm,
                   (unsigned long long)((bytes + (1u << 20) - 1) >> 20));
}

/* job.sh has the sweep's own option, and sbatch takes one of these only. */
static int check_memory(const struct pl_run *run, const struct pl_spec *spec, struct pl_error *err)
{
    for (const char *const *arg = pl_run_sbatch_args(run); *arg; arg++)
        if (strncmp(*arg, "--mem", 5) == 0 &&
            ((spec->values[PL_SPEC_MEM].text && strncmp(*arg, "--mem=", 6) != 0) ||
             (spec->values[PL_SPEC_MEM_PER_CPU].text && strncmp(*arg, "--mem-per-cpu=", 14) != 0)))
            return pl_error_set(err, -EINVAL,
                                "the sweep has %.*s, which no other option for memory replaces: "
                                "give that one",
                                (int)strcspn(*arg, "="), *arg);
    return 0;
}

/* The values for later arrays, in memory. */
static int set_limits(struct pl_run *run, const struct pl_spec *spec)
{
    int r = 0;

    for (size_t i = 0; i < PL_COUNT(limits) && r == 0; i++) {
        const char *value = spec->values[limits[i].key].text;

        if (value)
            r = pl_run_set_sbatch(run, limits[i].option, value);
        if (value && r == 0)
            r = pl_run_set_option(run, limits[i].option, value, "command line");
    }
    return r;
}

/* scontrol update JobId=JOB ... */
static int make_argv(const struct pl_spec *spec, const char *job, char ***ret)
{
    _cleanup_(pl_strv_freep) char **argv = NULL;
    _cleanup_free_ char *id = pl_strf("JobId=%s", job);
    int r = id ? pl_strv_append(&argv, "scontrol") : -ENOMEM;

    if (r == 0)
        r = pl_strv_append(&argv, "update");
    if (r == 0)
        r = pl_strv_append(&argv, id);
    for (size_t i = 0; i < PL_COUNT(limits) && r == 0; i++) {
        const char *value = spec->values[limits[i].key].text;
        _cleanup_free_ char *word = value ? for_slurm(i, value) : NULL;

        if (value)
            r = word ? pl_strv_append(&argv, word) : -ENOMEM;
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(argv);
    return 0;
}

int pl_update_limits(struct pl_run *run,
                     const struct pl_spec *spec,
                     char *const *jobs,
                     struct pl_error *err)
{
    char *const *changed = jobs;
    int r = check_memory(run, spec, err);

    if (r == 0 && set_limits(run, spec) < 0)
        r = pl_error_nomem(err);
    for (; r == 0 && *changed; changed += r == 0) {
        _cleanup_(pl_strv_freep) char **argv = NULL;
        bool ended;

        if (make_argv(spec, *changed, &argv) < 0)
            return pl_error_nomem(err);
        r = pl_change_command((const char *const *)argv, &ended, err);
    }
    if (r < 0 && changed > jobs)
        return pl_error_wrap(err, r, "jobs before %s have the new values, which are not recorded",
                             *changed);
    if (r == 0 && (r = pl_run_save_options(run, err)) < 0 && *jobs)
        pl_error_wrap(err, r,
                      "the trials that wait have the new values, but a later --retry would not "
                      "have them: repeat the command");
    return r;
}
