/* SPDX-License-Identifier: MIT */
/* Checks of one value of an option. */
#include "launcher/plsubmit/spec_check.h"
#include "common/base/env.h"
#include "common/base/env_file.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"
#include "common/run/on_hang.h"
#include "common/run/output_ranks.h"
#include "common/run/requeue_rule.h"
#include "common/run/run_stop.h"
#include "launcher/plsubmit/count.h"
#include "launcher/plsubmit/spec.h"

#include <string.h>

const char *const pl_start_names[] = {"ranks", "torchrun", "mpi", NULL};

int pl_spec_check_text(const char *value, struct pl_error *err)
{
    if (!*value)
        return pl_error_set(err, -EINVAL, "the value is empty");
    if (!pl_utf8_valid(value, strlen(value)))
        return pl_error_set(err, -EINVAL, "'%s' is not valid UTF-8", value);
    for (const char *p = value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return pl_error_set(err, -EINVAL, "'%s' has a control character", value);
    return 0;
}

/* "4", "a100:4" or "a100:4,v100:2", not "0,1" or Python's "[0, 1]". */
int pl_spec_check_gpus(const char *value, struct pl_error *err)
{
    const char *colon = strrchr(value, ':');
    unsigned n = 1;
    int64_t count;

    if (colon == value)
        return pl_error_set(err, -EINVAL, "'%s' has no type of GPU before ':'", value);
    if (!colon && strpbrk(value, ",[") && !value[strspn(value, "0123456789, []")]) {
        for (const char *p = value; *p; p++)
            n += *p == ',';
        return pl_error_set(err, -EINVAL,
                            "'%s' names single GPUs, but Slurm hands them out: write "
                            "--gpus-per-node %u",
                            value, n);
    }
    if (colon && strchr(value, ','))
        return pl_count_gpus(value) ? 0 : pl_error_set(err, -EINVAL, "'%s' is not [TYPE:]N", value);
    return pl_parse_int(colon ? colon + 1 : value, 1, 1000000, &count, err);
}

/* "12" or "2-4". */
int pl_spec_check_nodes(const char *value, struct pl_error *err)
{
    const char *dash = *value ? strchr(value + 1, '-') : NULL; /* a first '-' is a sign */
    _cleanup_free_ char *low = strndup(value, dash ? (size_t)(dash - value) : strlen(value));
    int64_t min, max;
    int r;

    if (!low)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if ((value[0] | 0x20) >= 'a' || strchr(value, ',')) /* "n1", "n1,n2" */
        return pl_error_set(err, -EINVAL,
                            "'%s' is not N or MIN-MAX: for names of nodes write --nodelist NODES",
                            value);
    r = pl_parse_int(low, 1, 1000000, &min, err);
    if (r == 0 && dash)
        r = pl_parse_int(dash + 1, min, 1000000, &max, err);
    return r;
}

int pl_spec_check_objective(const char *value, struct pl_error *err)
{
    size_t len = strlen(value), best = strlen("@best");

    if (len > best && strcmp(value + len - best, "@best") == 0)
        len -= best;
    if ((strncmp(value, "max:", 4) != 0 && strncmp(value, "min:", 4) != 0) ||
        !pl_name_valid(value + 4, len - 4))
        return pl_error_set(err, -EINVAL,
                            "'%s' is not max:NAME or min:NAME, or with @best for its best value",
                            value);
    return 0;
}

int pl_spec_check_count(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 1, 65535, &n, err);
}

int pl_spec_check_trials(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 1, PL_RUN_TRIAL_LIMIT, &n, err);
}

/* "3", "0" or "10%". */
int pl_spec_check_max_fail(const char *value, struct pl_error *err)
{
    unsigned most;

    return pl_run_parse_max_fail(value, 1, &most, err);
}

int pl_spec_check_launch(const char *value, struct pl_error *err)
{
    int which;

    return pl_parse_choice(value, pl_start_names, &which, err);
}

int pl_spec_check_hparam(const char *value, struct pl_error *err)
{
    size_t len = strcspn(value, "=");

    return pl_name_valid(value, len) && value[len]
               ? 0
               : pl_error_set(err, -EINVAL, "'%.200s' is not NAME=VALUE", value);
}

int pl_spec_check_local(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 0, 65535, &n, err);
}

int pl_spec_check_requeue_on(const char *value, struct pl_error *err)
{
    struct pl_requeue_rule rule;

    return pl_requeue_parse(value, &rule, err);
}

int pl_spec_check_output_ranks(const char *value, struct pl_error *err)
{
    return pl_output_ranks_check(value, 0, err);
}

int pl_spec_check_on_hang(const char *value, struct pl_error *err)
{
    enum pl_on_hang policy;

    return pl_on_hang_parse(value, &policy, err);
}

int pl_spec_check_max_requeues(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 0, 1000000, &n, err);
}

/* "USR1@120". Of "B:USR1" the ranks would not know: only the batch shell gets it. */
int pl_spec_check_signal(const char *value, struct pl_error *err)
{
    size_t len = strcspn(value, ":@");

    if (value[len] == ':' && memchr(value, 'B', len))
        return pl_error_set(
            err, -EINVAL,
            "'%s' would signal the job script alone; write %s, which signals the ranks", value,
            value + len + 1);
    return 0;
}

int pl_spec_check_gres(const char *value, struct pl_error *err)
{
    return strcmp(value, "help") == 0
               ? pl_error_set(err, -EINVAL, "sbatch --gres=help submits nothing; run it by itself")
               : 0;
}

int pl_spec_check_save_grace(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 1, 86400, &n, err);
}

int pl_spec_check_seed(const char *value, struct pl_error *err)
{
    int64_t n;

    return pl_parse_int(value, 0, INT64_MAX, &n, err);
}

int pl_spec_check_mem(const char *value, struct pl_error *err)
{
    uint64_t bytes;

    return pl_parse_mem(value, &bytes, err);
}

/* sbatch counts seconds in 32 bits, and takes 200000-0 for 1158 days. */
int pl_spec_check_time(const char *value, struct pl_error *err)
{
    uint64_t seconds;
    int r = pl_parse_slurm_time(value, &seconds, err);

    return r == 0 && seconds > INT32_MAX && seconds != UINT64_MAX
               ? pl_error_set(err, -ERANGE,
                              "'%s' is more than 24855 days, of which Slurm makes another limit: "
                              "write UNLIMITED",
                              value)
               : r;
}

int pl_spec_check_port_range(const char *value, struct pl_error *err)
{
    uint16_t low, high;

    return pl_parse_port_range(value, &low, &high, err);
}

int pl_spec_check_module(const char *value, struct pl_error *err)
{
    return value[0] == '-' ? pl_error_set(err, -EINVAL, "'%s' is not the name of a module", value)
                           : 0;
}

int pl_spec_check_literal(const char *value, struct pl_error *err)
{
    return pl_name_valid(value, strlen(value))
               ? 0
               : pl_error_set(err, -EINVAL,
                              "'%s' is no name of an axis, and is never replaced: write the name "
                              "between the braces",
                              value);
}

/* Rejects options of sbatch that plsubmit sets, or with which sbatch submits nothing or something
 * else. sbatch accepts unambiguous prefixes of names, so these are rejected as well. */
int pl_spec_check_sbatch(const char *value, struct pl_error *err)
{
    static const struct {
        const char *name, *text;
    } owned[] = {
        {"array", "plsubmit sets --array itself; use --grid and --max-parallel"},
        {"wrap", "plsubmit writes the job script itself; give the program as arguments"},
        {"parsable", "plsubmit sets --parsable itself; use plsubmit's own --parsable"},
        {"wait", "plsubmit waits itself; use plsubmit's own --wait"},
        {"help", "sbatch --help submits nothing; run it by itself"},
        {"test-only", "sbatch --test-only submits nothing; use --dry-run"},
        {"usage", "sbatch --usage submits nothing; run it by itself"},
        {"version", "sbatch --version submits nothing; run it by itself"},
    };
    size_t len = strcspn(value, "=");

    if (len == 0 || value[0] == '-' ||
        strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return pl_error_set(err, -EINVAL,
                            "'%s' is not KEY or KEY=VALUE: KEY is the long name of an option of "
                            "sbatch without --",
                            value);
    if (strncmp("signal=", value, 7) == 0)
        return pl_spec_check_signal(value + 7, err);
    if (strncmp("gres=", value, 5) == 0)
        return pl_spec_check_gres(value + 5, err);
    for (size_t i = 0; i < PL_COUNT(owned); i++)
        if (len <= strlen(owned[i].name) && strncmp(owned[i].name, value, len) == 0)
            return pl_error_set(err, -EINVAL, "%s", owned[i].text);
    return 0;
}

/* srun's options of the step with the ranks. Rejects those that plrun or the job script set, and
 * prefixes of their names, as srun takes them. */
int pl_spec_check_srun(const char *value, struct pl_error *err)
{
    static const char *const owned[] = {"output",        "error",     "input",
                                        "label",         "pty",       "unbuffered",
                                        "multi-prog",    "jobid",     "kill-on-bad-exit",
                                        "nodes",         "ntasks",    "ntasks-per-node",
                                        "cpus-per-task", "het-group", "no-allocate",
                                        "test-only",     "version",   "help",
                                        "usage"};
    size_t len = strcspn(value, "=");

    if (len == 0 || value[0] == '-' ||
        strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return pl_error_set(err, -EINVAL,
                            "'%s' is not KEY or KEY=VALUE: KEY is the long name of an option of "
                            "srun without --",
                            value);
    for (size_t i = 0; i < PL_COUNT(owned); i++)
        if (len <= strlen(owned[i]) && strncmp(owned[i], value, len) == 0)
            return pl_error_set(
                err, -EINVAL,
                "Plume sets srun's --%s itself; --sbatch and plsubmit's own options "
                "shape the job",
                owned[i]);
    return 0;
}

/* NAME=VALUE, or NAME of a variable that is set here. */
int pl_spec_check_env(const char *value, struct pl_error *err)
{
    size_t len = strcspn(value, "=");
    int r = pl_env_name_check(value, len, err);

    if (r == 0 && !value[len] && !pl_env_named(value))
        return pl_error_set(err, -EINVAL, "the variable %s is not set here: write %s=VALUE", value,
                            value);
    return r;
}
