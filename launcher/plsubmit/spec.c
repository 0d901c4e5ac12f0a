/* SPDX-License-Identifier: MIT */
/* The option table, and what each option sets. spec_values.c has what is set,
 * spec_check.c checks a value by itself, spec_resolve.c options together. */
#include "launcher/plsubmit/spec.h"
#include "common/base/fs.h"
#include "common/base/metric_rule.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"
#include "launcher/plsubmit/foreign.h"
#include "launcher/plsubmit/image.h"
#include "launcher/plsubmit/mail.h"
#include "launcher/plsubmit/spec_check.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

/* ---- setters ---- */

static enum pl_origin source_of(const struct pl_spec *spec)
{
    return spec->source == PL_ORIGIN_NONE ? PL_ORIGIN_COMMAND_LINE : spec->source;
}

static int set_key(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    int r = pl_spec_check_text(value, err);

    if (r == 0 && o->target.check)
        r = o->target.check(value, err);
    return r < 0 ? r : pl_spec_put(ctx, (enum pl_spec_key)o->target.key, value, source_of(ctx));
}

static int remove_key(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    return pl_spec_put(ctx, (enum pl_spec_key)o->target.key, NULL, source_of(ctx));
}

/* Keeps NCCL's spelling of the level. */
static int
set_nccl_debug(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    const char *level;
    int r = pl_parse_nccl_level(value, &level, err);

    return r < 0 ? r : pl_spec_put(ctx, PL_SPEC_NCCL_DEBUG, level, source_of(ctx));
}

/* Without a number "0": as many as the GPUs allow. */
static int set_local(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    int r = value ? pl_spec_check_local(value, err) : 0;

    return r < 0 ? r : pl_spec_put(ctx, PL_SPEC_LOCAL, value ? value : "0", source_of(ctx));
}

/* Without a word "tracked". */
static int
set_snapshot(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    const char *mode = value ? value : "tracked";

    if (strcmp(mode, "tracked") != 0 && strcmp(mode, "untracked") != 0)
        return pl_error_set(err, -EINVAL, "'%s' is not 'tracked' or 'untracked'", mode);
    return pl_spec_put(ctx, PL_SPEC_SNAPSHOT, mode, source_of(ctx));
}

static int
add_to_list(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    int r = pl_spec_check_text(value, err);

    if (r == 0 && o->target.check)
        r = o->target.check(value, err);
    return r < 0 ? r : pl_strv_append(&spec->lists[o->target.key], value);
}

int pl_spec_put_sbatch(struct pl_spec *spec, const char *text)
{
    const char *equals = strchr(text, '=');
    _cleanup_free_ char *name = equals ? strndup(text, (size_t)(equals - text)) : NULL;

    if (!equals)
        return 0;
    if (!name)
        return -ENOMEM;
    for (int key = PL_SPEC_NAME; key <= PL_SPEC_SBATCH_LAST; key++) {
        const struct pl_option *o = pl_spec_option((enum pl_spec_key)key);

        if (strcmp(name, key == PL_SPEC_NAME ? "job-name" : o->name) != 0)
            continue;
        if (!equals[1])
            return 0;
        return pl_spec_put(spec, (enum pl_spec_key)key, equals + 1, source_of(spec)) < 0 ? -ENOMEM
                                                                                         : 1;
    }
    return 0;
}

/* Rejects a short form of an option that plsubmit counts with, such as gpus-per-n=4: plsubmit would
 * set one rank, and a later --gpus-per-node would not replace it. */
static int check_whole_name(const char *value, struct pl_error *err)
{
    size_t len = strcspn(value, "=");
    const char *shortened = NULL;

    for (int key = PL_SPEC_NAME; key <= PL_SPEC_SBATCH_LAST; key++) {
        const char *name =
            key == PL_SPEC_NAME ? "job-name" : pl_spec_option((enum pl_spec_key)key)->name;

        if (strncmp(name, value, len) != 0)
            continue;
        if (!name[len]) /* the name itself */
            return 0;
        shortened = shortened ? shortened : name;
    }
    return shortened ? pl_error_set(err, -EINVAL, "'%.*s' is short for %s: write the whole name",
                                    (int)len, value, shortened)
                     : 0;
}

/* sbatch's option, which may be one of plsubmit's own, too. */
static int add_sbatch(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    int r = pl_spec_check_text(value, err);

    if (r == 0)
        r = pl_spec_check_sbatch(value, err);
    if (r == 0)
        r = check_whole_name(value, err);
    if (r == 0)
        r = pl_spec_put_sbatch(spec, value);
    if (r == 0)
        r = add_to_list(spec, o, value, err);
    if (r < 0)
        return r;
    free(spec->last_sbatch);
    spec->last_sbatch = strndup(value, strcspn(value, "="));
    return spec->last_sbatch ? 0 : pl_error_nomem(err);
}

/* On the command line the text alone, after its --sbatch; in a file "KEY=TEXT". */
static int
add_sbatch_comment(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    bool in_file = source_of(spec) != PL_ORIGIN_COMMAND_LINE;
    _cleanup_free_ char *item = NULL;
    int r = pl_spec_check_text(value, err);

    if (r < 0)
        return r;
    if (in_file && (!strchr(value, '=') || value[0] == '='))
        return pl_error_set(err, -EINVAL, "'%s' is not KEY=TEXT", value);
    if (!in_file && !spec->last_sbatch)
        return pl_error_set(err, -EINVAL, "write it after the --sbatch KEY[=VALUE] that it is for");
    item = in_file ? strdup(value) : pl_strf("%s=%s", spec->last_sbatch, value);
    return item && pl_strv_append(&spec->lists[PL_SPEC_SBATCH_COMMENT], item) == 0
               ? 0
               : pl_error_nomem(err);
}

static int add_grid(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    int r = pl_grid_add(&spec->grid, value, err);

    if (r == 0)
        spec->grid.axes[spec->grid.n_axes - 1].tag = (unsigned char)source_of(spec);
    return r;
}

/* As the values of --grid, those of choice() may have any character. */
static int add_sample(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;

    if (!pl_utf8_valid(value, strlen(value)))
        return pl_error_set(err, -EINVAL, "'%.200s' is not valid UTF-8", value);
    return pl_strv_append(&spec->lists[PL_SPEC_SAMPLE], value) < 0 ? pl_error_nomem(err) : 0;
}

static int set_change(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;

    if (spec->change != PL_CHANGE_NONE)
        return pl_error_set(err, -EINVAL,
                            "one call makes one change of one sweep: omit the others");
    spec->change = (enum pl_change_kind)o->target.key;
    spec->changed = strdup(value);
    return spec->changed ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

static int
set_job_file(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    char **path = o->target.key ? &spec->write_job : &spec->job_file;

    if (!*value)
        return pl_error_set(err, -EINVAL, "the value is empty");
    if (*path)
        return pl_error_set(err, -EINVAL, "only one file can be given: omit the others");
    *path = strdup(value);
    return *path ? 0 : pl_error_nomem(err);
}

/* ---- the table ---- */

#define KEY(key_, check_)                                                                          \
    {                                                                                              \
        .set = set_key, .key = (key_), .check = (check_)                                           \
    }
#define KEY_BY(key_, set_)                                                                         \
    {                                                                                              \
        .set = (set_), .key = (key_)                                                               \
    }
#define CHANGE(kind_)                                                                              \
    {                                                                                              \
        .set = set_change, .key = (kind_)                                                          \
    }
#define REMOVE(key_)                                                                               \
    {                                                                                              \
        .set = remove_key, .key = (key_)                                                           \
    }
#define LIST(list_, check_)                                                                        \
    {                                                                                              \
        .set = add_to_list, .key = (list_), .check = (check_)                                      \
    }

static const struct pl_option options[] = {
    {"grid", 0, "NAME=V1,V2,...", "Sweep",
     "an axis of the grid; repeatable: trials are the product of all axes, the last axis varies "
     "fastest. A value that starts with \" is quoted as in CSV. NAME=range(LO,HI,N) and "
     "NAME=log(LO,HI,N) are N numbers with equal differences or ratios",
     PL_OPTION_CALL(add_grid)},
    {"zip", 0, "A,B,...", NULL, "axes that change together, not as a product; repeatable",
     LIST(PL_SPEC_ZIP, NULL)},
    {"where", 0, "EXPR", NULL,
     "only the trials of which EXPR is true, such as \"layers * width <= 512 and opt != 'sgd'\"; "
     "repeatable",
     LIST(PL_SPEC_WHERE, NULL)},
    {"literal", 0, "NAME", NULL,
     "{NAME} in an argument is the program's own, and no place for an axis",
     LIST(PL_SPEC_LITERAL, pl_spec_check_literal)},
    {"sample",
     0,
     "NAME=DIST",
     NULL,
     "an axis of --random: int(LO,HI), float(LO,HI), log(LO,HI) or choice(A,B,...); repeatable",
     {.set = add_sample, .key = PL_SPEC_SAMPLE}},
    {"random", 0, "N", NULL,
     "N different draws of all axes of --sample, for each point of the grid",
     KEY(PL_SPEC_RANDOM, pl_spec_check_trials)},
    {"seed", 0, "S", NULL, "seed of --random (0)", KEY(PL_SPEC_SEED, pl_spec_check_seed)},
    {"trials", 0, "N", NULL, "only the first N trials of the grid",
     KEY(PL_SPEC_TRIALS, pl_spec_check_trials)},
    {"repeat", 0, "K", NULL, "run each trial K times: the last axis is seed=0,1,...,K-1",
     KEY(PL_SPEC_REPEAT, pl_spec_check_trials)},
    {"expand", 0, NULL, NULL, "print the trials, one JSON object a line, and submit nothing",
     PL_OPTION_TRUE(struct pl_spec, expand)},
    {"objective", 0, "max:NAME", NULL,
     "rank trials by the last value of the metric NAME; or min:NAME; NAME@best: by its best value",
     KEY(PL_SPEC_OBJECTIVE, pl_spec_check_objective)},
    {"metric", 0, "NAME=REGEX", NULL,
     "read a metric from the ranks' output: the number in the first group of a POSIX extended "
     "regular expression, or in the whole match",
     LIST(PL_SPEC_METRIC, pl_metric_rule_check)},
    {"name", 'J', "NAME", NULL, "name of the job and its run folder", KEY(PL_SPEC_NAME, NULL)},
    {"max-parallel", 0, "K", NULL, "run at most K trials at a time",
     KEY(PL_SPEC_MAX_PARALLEL, pl_spec_check_trials)},
    {"max-fail", 0, "N|P%", NULL,
     "cancel the waiting trials when more than N, or P percent of all, have failed",
     KEY(PL_SPEC_MAX_FAIL, pl_spec_check_max_fail)},
    {"requeue-on", 0, "CAUSE[:N],...", NULL,
     "start a trial again, up to N times, after preempt, timeout, node-fail, hang (3) or error (1)",
     KEY(PL_SPEC_REQUEUE_ON, pl_spec_check_requeue_on)},
    {"max-requeues", 0, "N", NULL, "requeues of a trial, over all causes (20)",
     KEY(PL_SPEC_MAX_REQUEUES, pl_spec_check_max_requeues)},
    {"save-command", 0, "CMD", NULL,
     "run CMD in each rank's environment at --signal USR1@S and at SIGTERM, to save the state of a "
     "program that does not save it itself",
     KEY(PL_SPEC_SAVE_COMMAND, NULL)},
    {"save-grace", 0, "SECONDS", NULL, "time for --save-command (60)",
     KEY(PL_SPEC_SAVE_GRACE, pl_spec_check_save_grace)},
    {"on-hang", 0, "POLICY", NULL,
     "what to do when ranks that report steps make no more progress: warn, kill or requeue (warn)",
     KEY(PL_SPEC_ON_HANG, pl_spec_check_on_hang)},
    {"after", 0, "SWEEP[:ok|any]", NULL,
     "start when all trials of SWEEP are done (ok, the default) or have ended (any); repeatable",
     LIST(PL_SPEC_AFTER, NULL)},
    {"nodes", 'N', "N", "Resources of a trial (see sbatch(1))", "number of nodes (1)",
     KEY(PL_SPEC_NODES, pl_spec_check_nodes)},
    {"gpus-per-node", 0, "[TYPE:]N", NULL, "GPUs on each node",
     KEY(PL_SPEC_GPUS_PER_NODE, pl_spec_check_gpus)},
    {"gpus", 'G', "[TYPE:]N", NULL, "GPUs on all nodes together",
     KEY(PL_SPEC_GPUS, pl_spec_check_gpus)},
    {"gpus-per-task", 0, "[TYPE:]N", NULL, "GPUs of each rank",
     KEY(PL_SPEC_GPUS_PER_TASK, pl_spec_check_gpus)},
    {"gres", 0, "LIST", NULL, "generic resources on each node, such as gpu:4",
     KEY(PL_SPEC_GRES, pl_spec_check_gres)},
    {"ntasks-per-node", 0, "N", NULL, "ranks on each node (one per GPU, else 1)",
     KEY(PL_SPEC_NTASKS_PER_NODE, pl_spec_check_count)},
    {"ntasks", 'n', "N", NULL, "ranks on all nodes together",
     KEY(PL_SPEC_NTASKS, pl_spec_check_count)},
    {"cpus-per-task", 'c', "N", NULL, "CPUs of each rank",
     KEY(PL_SPEC_CPUS_PER_TASK, pl_spec_check_count)},
    {"cpus-per-gpu", 0, "N", NULL, "CPUs for each GPU",
     KEY(PL_SPEC_CPUS_PER_GPU, pl_spec_check_count)},
    {"mem", 0, "SIZE", NULL, "memory on each node", KEY(PL_SPEC_MEM, pl_spec_check_mem)},
    {"mem-per-cpu", 0, "SIZE", NULL, "memory for each CPU",
     KEY(PL_SPEC_MEM_PER_CPU, pl_spec_check_mem)},
    {"mem-per-gpu", 0, "SIZE", NULL, "memory for each GPU",
     KEY(PL_SPEC_MEM_PER_GPU, pl_spec_check_mem)},
    {"time", 't', "TIME", NULL, "time limit", KEY(PL_SPEC_TIME, pl_spec_check_time)},
    {"partition", 'p', "NAME", NULL, "partition", KEY(PL_SPEC_PARTITION, NULL)},
    {"account", 'A', "NAME", NULL, "account", KEY(PL_SPEC_ACCOUNT, NULL)},
    {"qos", 'q', "NAME", NULL, "quality of service", KEY(PL_SPEC_QOS, NULL)},
    {"constraint", 'C', "LIST", NULL, "features that nodes must have",
     KEY(PL_SPEC_CONSTRAINT, NULL)},
    {"nodelist", 'w', "NODES", NULL, "nodes to use", KEY(PL_SPEC_NODELIST, NULL)},
    {"exclude", 'x', "NODES", NULL, "nodes not to use", KEY(PL_SPEC_EXCLUDE, NULL)},
    {"dependency", 'd', "LIST", NULL, "start after these jobs", KEY(PL_SPEC_DEPENDENCY, NULL)},
    {"mail", 0, "TYPES", NULL, "mail at these events of each trial, such as END,FAIL",
     KEY(PL_SPEC_MAIL, pl_mail_check)},
    {"mail-type", 0, "TYPES", NULL, "mail at these events of the array",
     KEY(PL_SPEC_MAIL_TYPE, NULL)},
    {"mail-user", 0, "USER", NULL, "receiver of the mail", KEY(PL_SPEC_MAIL_USER, NULL)},
    {"comment", 0, "TEXT", NULL, "comment of the job", KEY(PL_SPEC_COMMENT, NULL)},
    {"signal", 0, "SIG[@S]", NULL,
     "send the ranks a signal S seconds before the time limit; Slurm may do so 60 s earlier",
     KEY(PL_SPEC_SIGNAL, pl_spec_check_signal)},
    {"output", 'o', "FILE", NULL, "Slurm's own output (slurm-%A_%a.out in the run folder)",
     KEY(PL_SPEC_OUTPUT, NULL)},
    {"output-ranks", 0, "RANKS", NULL,
     "ranks whose output Slurm's file gets, too: all, or a list such as 0,4-7 (0)",
     KEY(PL_SPEC_OUTPUT_RANKS, pl_spec_check_output_ranks)},
    {"sbatch",
     0,
     "KEY[=VALUE]",
     NULL,
     "any other option of sbatch",
     {.set = add_sbatch, .key = PL_SPEC_SBATCH}},
    {"sbatch-comment",
     0,
     "TEXT",
     NULL,
     "a comment of the --sbatch before it, above its line in the job script",
     {.set = add_sbatch_comment, .key = PL_SPEC_SBATCH_COMMENT}},
    {"srun", 0, "KEY[=VALUE]", NULL, "an option of srun, such as mpi=pmix",
     LIST(PL_SPEC_SRUN, pl_spec_check_srun)},
    {"no-name", 0, NULL, "Removing defaults that a site refuses", "omit --job-name",
     REMOVE(PL_SPEC_NAME)},
    {"no-nodes", 0, NULL, NULL, "omit --nodes", REMOVE(PL_SPEC_NODES)},
    {"no-ntasks-per-node", 0, NULL, NULL, "omit --ntasks-per-node",
     REMOVE(PL_SPEC_NTASKS_PER_NODE)},
    {"no-output", 0, NULL, NULL, "omit --output", REMOVE(PL_SPEC_OUTPUT)},
    {"no-open-mode", 0, NULL, NULL, "omit --open-mode=append", REMOVE(PL_SPEC_OPEN_MODE)},
    {"launch", 0, "KIND", "How the program is started",
     "ranks: one per GPU, with torchrun's variables (default); torchrun: one per node, which "
     "starts "
     "the node's processes; mpi: by srun --mpi=pmix",
     KEY(PL_SPEC_LAUNCH, pl_spec_check_launch)},
    {"num-processes", 0, "N", NULL, "processes on each node: ranks, or torchrun's",
     KEY(PL_SPEC_NUM_PROCESSES, pl_spec_check_count)},
    {"strategy", 0, "KIND", NULL, "for pltrain: its --strategy; dp and ddp2 have one rank per node",
     KEY(PL_SPEC_STRATEGY, NULL)},
    {"precision", 0, "BITS", NULL, "for pltrain: its --precision", KEY(PL_SPEC_PRECISION, NULL)},
    {"hparam", 0, "NAME=VALUE", NULL, "for pltrain: a hyper-parameter of the module; repeatable",
     LIST(PL_SPEC_HPARAM, pl_spec_check_hparam)},
    {"load", 0, "MODULE", "Environment of a trial",
     "run module load MODULE before the trial starts", LIST(PL_SPEC_LOAD, pl_spec_check_module)},
    {"venv", 0, "DIR", NULL, "activate the Python environment of venv or uv in DIR before --setup",
     KEY(PL_SPEC_VENV, NULL)},
    {"conda", 0, "ENV", NULL,
     "activate the environment of conda, a name or a folder, before --setup",
     KEY(PL_SPEC_CONDA, NULL)},
    {"container", 0, "IMAGE", NULL,
     "run the program in a container of Apptainer or Singularity: a file, a folder or a URI; "
     "set-up, "
     "tear-down and --save-command run outside",
     KEY(PL_SPEC_CONTAINER, pl_image_check)},
    {"container-option", 0, "KEY[=VALUE]", NULL,
     "an option of apptainer exec, such as bind=/data; repeatable",
     LIST(PL_SPEC_CONTAINER_OPTION, pl_image_check_option)},
    {"setup", 0, "CMD", NULL, "run CMD in the job script's shell before the trial starts",
     LIST(PL_SPEC_SETUP, NULL)},
    {"teardown", 0, "CMD", NULL,
     "run CMD on the first node after the trial, even if it failed; $1 is the exit code",
     LIST(PL_SPEC_TEARDOWN, NULL)},
    {"on-end", 0, "CMD", NULL,
     "run CMD once after all trials have ended, even if some failed; a small job of its own runs "
     "it",
     KEY(PL_SPEC_ON_END, NULL)},
    {"env", 0, "NAME[=VALUE]", NULL,
     "set an environment variable; NAME alone takes its present value, which Plume writes to no "
     "file",
     LIST(PL_SPEC_ENV, pl_spec_check_env)},
    {"env-file", 0, "FILE", NULL,
     "set variables from the lines NAME=VALUE of FILE, which each node reads; its mode must be "
     "0600",
     LIST(PL_SPEC_ENV_FILE, NULL)},
    {"nccl-debug", 0, "LEVEL", NULL, "set NCCL_DEBUG: VERSION, WARN, INFO, ABORT or TRACE",
     KEY_BY(PL_SPEC_NCCL_DEBUG, set_nccl_debug)},
    {"nccl-ifname", 0, "SPEC", NULL, "set NCCL_SOCKET_IFNAME", KEY(PL_SPEC_NCCL_IFNAME, NULL)},
    {"master-port", 0, "LO-HI", NULL, "take MASTER_PORT from this range (checked, not held)",
     KEY(PL_SPEC_MASTER_PORT, pl_spec_check_port_range)},
    {"dry-run", 0, NULL, "Submitting", "show script, command and trials; write and submit nothing",
     PL_OPTION_TRUE(struct pl_spec, dry_run)},
    {"check", 0, NULL, NULL,
     "check all that can be known before a submission, for example whether Slurm accepts the "
     "trials "
     "and can start them; submit nothing; exit with 1 if something is wrong",
     PL_OPTION_TRUE(struct pl_spec, check)},
    {"local", 0, "[J]", NULL,
     "run the trials on this machine, without Slurm, J at a time (as many as its GPUs allow, else "
     "1)",
     KEY_BY(PL_SPEC_LOCAL, set_local)},
    {"snapshot", 0, "[untracked]", NULL,
     "run the trials in a copy of the git repository's tracked files, with uncommitted changes; "
     "=untracked also copies untracked files that git does not ignore",
     KEY_BY(PL_SPEC_SNAPSHOT, set_snapshot)},
    {"snapshot-max", 0, "SIZE", NULL, "the largest snapshot (100M)",
     KEY(PL_SPEC_SNAPSHOT_MAX, pl_spec_check_mem)},
    {"strict", 0, NULL, NULL, "warnings are errors: submit nothing",
     PL_OPTION_TRUE(struct pl_spec, strict)},
    {"parsable", 0, NULL, NULL, "print SWEEP;RUN-FOLDER;JOBID[,JOBID...] and nothing else",
     PL_OPTION_TRUE(struct pl_spec, parsable)},
    {"wait", 0, NULL, NULL, "wait for all trials; exit with 1 unless all are done",
     PL_OPTION_TRUE(struct pl_spec, wait)},
    {"no-submit", 0, NULL, NULL, "write the run folder and show how to submit it: --resume",
     PL_OPTION_TRUE(struct pl_spec, no_submit)},
    {"resume", 0, "SWEEP", NULL,
     "submit the trials of SWEEP, or of a run folder, that are not submitted yet",
     CHANGE(PL_CHANGE_RESUME)},
    {"runs", 0, "DIR", NULL, "folder for new run folders ($PLUME_RUNS, else ./runs)",
     KEY(PL_SPEC_RUNS, NULL)},
    {"job-file",
     0,
     "FILE",
     NULL,
     "take options and the program from a YAML file; the command line comes first",
     {.set = set_job_file, .key = 0}},
    {"write-job",
     0,
     "FILE",
     NULL,
     "write this command line as a job file, and submit nothing",
     {.set = set_job_file, .key = 1}},
    {"show-config", 0, NULL, NULL, "show each option's value and its origin",
     PL_OPTION_TRUE(struct pl_spec, show_config)},
    {"retry", 0, "SWEEP[/TRIALS]", "Changing a submitted sweep; TRIALS: 3-8,10",
     "submit again the trials that failed, were cancelled or are lost: same numbers and folders, "
     "next attempt",
     CHANGE(PL_CHANGE_RETRY)},
    {"extend", 0, "SWEEP", NULL,
     "add and submit the trials of --grid, --sample or --repeat that SWEEP does not have; the "
     "numbers go on",
     CHANGE(PL_CHANGE_EXTEND)},
    {"cancel", 0, "SWEEP[/TRIALS]", NULL, "cancel the trials that wait or run",
     CHANGE(PL_CHANGE_CANCEL)},
    {"hold", 0, "SWEEP[/TRIALS]", NULL, "keep waiting trials from starting",
     CHANGE(PL_CHANGE_HOLD)},
    {"release", 0, "SWEEP[/TRIALS]", NULL, "let held trials start", CHANGE(PL_CHANGE_RELEASE)},
    {"update", 0, "SWEEP", NULL,
     "change --max-parallel of SWEEP, also while its trials run; --time, --partition and --mem "
     "of those that wait and of later retries",
     CHANGE(PL_CHANGE_UPDATE)},
    {0},
};

const struct pl_command pl_spec_command = {
    .name = "plsubmit",
    .synopsis = "[OPTIONS] [--] [PROGRAM [ARG...]]\n--resume SWEEP [--parsable] [--wait]\n"
                "--retry SWEEP[/TRIALS] [--no-submit] [--parsable] [--wait]\n"
                "--extend SWEEP --grid NAME=V1,... [--parsable] [--wait]\n"
                "--cancel|--hold|--release SWEEP[/TRIALS] [--parsable]\n"
                "--update SWEEP [--max-parallel K] [-t TIME] [--parsable]",
    .summary = "Submits a grid of trials as one Slurm job array. {NAME} in an argument becomes the "
               "trial's value of that axis. If no argument has one, --NAME VALUE is appended for "
               "each axis. Without PROGRAM, pltrain trains the bundled module mlp.",
    .footer = "Example: plsubmit --grid lr=1e-3,1e-2 -N 2 python train.py --lr {lr}",
    .options = options,
    .explain = pl_foreign_explain,
};

const struct pl_option *pl_spec_option(enum pl_spec_key key)
{
    static const struct pl_option open_mode = {.name = "open-mode"};

    for (const struct pl_option *o = options; o->name; o++)
        if ((o->target.set == set_key || o->target.set == set_nccl_debug ||
             o->target.set == set_local || o->target.set == set_snapshot) &&
            o->target.key == (int)key)
            return o;
    return &open_mode; /* the only key without an option of its own */
}

enum pl_spec_form pl_spec_option_form(const struct pl_option *o)
{
    static const char *const actions[] = {"dry-run", "check", "expand", "show-config", "no-submit"};
    pl_option_f set = o->target.set;

    if (set == set_key || set == set_nccl_debug || set == set_local || set == set_snapshot)
        return PL_SPEC_FORM_VALUE;
    if (set == remove_key)
        return PL_SPEC_FORM_REMOVE;
    if (set == add_to_list || set == add_sbatch || set == add_sbatch_comment || set == add_sample)
        return PL_SPEC_FORM_LIST;
    if (set == add_grid)
        return PL_SPEC_FORM_GRID;
    for (size_t i = 0; i < PL_COUNT(actions); i++)
        if (strcmp(o->name, actions[i]) == 0)
            return PL_SPEC_FORM_COMMAND_LINE;
    return set == pl_option_set_true ? PL_SPEC_FORM_FLAG : PL_SPEC_FORM_COMMAND_LINE;
}

const char *pl_spec_list_name(enum pl_spec_list list)
{
    for (const struct pl_option *o = options; o->name; o++)
        if ((o->target.set == add_to_list || o->target.set == add_sbatch ||
             o->target.set == add_sbatch_comment || o->target.set == add_sample) &&
            o->target.key == (int)list)
            return o->name;
    return "";
}
