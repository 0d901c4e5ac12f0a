/* SPDX-License-Identifier: MIT */
/* The option table, and one option at a time. What several options mean together stands in
 * spec_resolve.c. */
#include "launcher/plsubmit/spec.h"
#include "common/base/fs.h"
#include "common/base/metric_rule.h"
#include "common/base/parse.h"
#include "common/base/term.h"
#include "common/base/utf8.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

/* Option ids: a key; a key to remove; a list; a flag. */
enum {
    ID_REMOVE = 100,
    ID_LIST = 200,
    ID_GRID = 300,
    ID_DRY_RUN,
    ID_PARSABLE,
    ID_WAIT,
    ID_SHOW_CONFIG,
    ID_RESUME,
};

static const struct pl_option options[] = {
    {"grid", 0, "NAME=V1,V2,...", "Sweep",
     "an axis of the grid; repeat it for the product of all axes, the last one fastest. A value "
     "that starts with \" is quoted as in CSV",
     ID_GRID},
    {"objective", 0, "max:NAME", NULL, "the metric that ranks trials; or min:NAME",
     PL_SPEC_OBJECTIVE},
    {"metric", 0, "NAME=REGEX", NULL,
     "read a metric from the ranks' output: the first group of a POSIX extended regular "
     "expression, or the whole match",
     ID_LIST + PL_SPEC_METRIC},
    {"name", 'J', "NAME", NULL, "name of the job and its run folder", PL_SPEC_NAME},
    {"max-parallel", 0, "K", NULL, "run at most K trials at a time", PL_SPEC_MAX_PARALLEL},
    {"nodes", 'N', "N", "Resources of a trial (see sbatch(1))", "number of nodes [1]",
     PL_SPEC_NODES},
    {"gpus-per-node", 0, "[TYPE:]N", NULL, "GPUs on each node", PL_SPEC_GPUS_PER_NODE},
    {"ntasks-per-node", 0, "N", NULL, "ranks on each node [one a GPU, else 1]",
     PL_SPEC_NTASKS_PER_NODE},
    {"cpus-per-task", 'c', "N", NULL, "CPUs of each rank", PL_SPEC_CPUS_PER_TASK},
    {"mem", 0, "SIZE", NULL, "memory on each node", PL_SPEC_MEM},
    {"time", 't', "TIME", NULL, "time limit", PL_SPEC_TIME},
    {"partition", 'p', "NAME", NULL, "partition", PL_SPEC_PARTITION},
    {"account", 'A', "NAME", NULL, "account", PL_SPEC_ACCOUNT},
    {"qos", 'q', "NAME", NULL, "quality of service", PL_SPEC_QOS},
    {"constraint", 'C', "LIST", NULL, "features that nodes must have", PL_SPEC_CONSTRAINT},
    {"nodelist", 'w', "NODES", NULL, "nodes to use", PL_SPEC_NODELIST},
    {"exclude", 'x', "NODES", NULL, "nodes not to use", PL_SPEC_EXCLUDE},
    {"output", 'o', "FILE", NULL, "Slurm's own output [slurm-%A_%a.out in the run folder]",
     PL_SPEC_OUTPUT},
    {"sbatch", 0, "KEY[=VALUE]", NULL, "any other option of sbatch", ID_LIST + PL_SPEC_SBATCH},
    {"no-name", 0, NULL, "Removing defaults that a site refuses", "give no --job-name",
     ID_REMOVE + PL_SPEC_NAME},
    {"no-nodes", 0, NULL, NULL, "give no --nodes", ID_REMOVE + PL_SPEC_NODES},
    {"no-ntasks-per-node", 0, NULL, NULL, "give no --ntasks-per-node",
     ID_REMOVE + PL_SPEC_NTASKS_PER_NODE},
    {"no-output", 0, NULL, NULL, "give no --output", ID_REMOVE + PL_SPEC_OUTPUT},
    {"no-open-mode", 0, NULL, NULL, "give no --open-mode=append", ID_REMOVE + PL_SPEC_OPEN_MODE},
    {"load", 0, "MODULE", "Environment of a trial", "module load MODULE before it starts",
     ID_LIST + PL_SPEC_LOAD},
    {"setup", 0, "CMD", NULL, "run CMD in the job script's shell before it starts",
     ID_LIST + PL_SPEC_SETUP},
    {"env", 0, "NAME=VALUE", NULL, "set a variable", ID_LIST + PL_SPEC_ENV},
    {"nccl-debug", 0, "LEVEL", NULL, "NCCL_DEBUG: VERSION, WARN, INFO, ABORT or TRACE",
     PL_SPEC_NCCL_DEBUG},
    {"nccl-ifname", 0, "SPEC", NULL, "NCCL_SOCKET_IFNAME", PL_SPEC_NCCL_IFNAME},
    {"master-port", 0, "LO-HI", NULL, "take MASTER_PORT from this range (checked, not held)",
     PL_SPEC_MASTER_PORT},
    {"dry-run", 0, NULL, "Submitting", "show script, command and trials; submit nothing",
     ID_DRY_RUN},
    {"parsable", 0, NULL, NULL, "print SWEEP;RUN-FOLDER;JOBID[,JOBID...] and nothing else",
     ID_PARSABLE},
    {"wait", 0, NULL, NULL, "wait for all trials; 1 unless each one is done", ID_WAIT},
    {"resume", 0, "DIR", NULL, "submit what is not submitted yet of the run folder DIR", ID_RESUME},
    {"runs", 0, "DIR", NULL, "where run folders are made [$PLUME_RUNS, else ./runs]", PL_SPEC_RUNS},
    {"show-config", 0, NULL, NULL, "show each option's value and where it comes from",
     ID_SHOW_CONFIG},
    {NULL},
};

const struct pl_command pl_spec_command = {
    .name = "plsubmit",
    .synopsis = "[OPTIONS] [--] [PROGRAM [ARG...]]\n--resume DIR [--parsable] [--wait]",
    .summary = "Submits a grid of trials as one Slurm job array. {NAME} in an argument is the "
               "trial's value of that axis; where no argument has any, --NAME VALUE is appended. "
               "Without PROGRAM the bundled mlp module trains.",
    .footer = "Example: plsubmit --grid lr=1e-3,1e-2 -N 2 python train.py --lr {lr}",
    .options = options,
};

const char *pl_origin_name(enum pl_origin origin)
{
    static const char *const names[] = {"", "built-in", "environment", "command line"};

    return names[origin];
}

const struct pl_option *pl_spec_option(enum pl_spec_key key)
{
    static const struct pl_option open_mode = {.name = "open-mode"};

    for (const struct pl_option *o = options; o->name; o++)
        if (o->id == (int)key)
            return o;
    return &open_mode; /* has a default, but no option of its own */
}

const char *pl_spec_list_name(enum pl_spec_list list)
{
    for (const struct pl_option *o = options; o->name; o++)
        if (o->id == ID_LIST + (int)list)
            return o->name;
    return "";
}

void pl_spec_finish(struct pl_spec *spec)
{
    for (size_t i = 0; i < PL_SPEC_N_KEYS; i++)
        free(spec->values[i].text);
    for (size_t i = 0; i < PL_SPEC_N_LISTS; i++)
        pl_strv_free(spec->lists[i]);
    pl_grid_finish(&spec->grid);
    pl_strv_free(spec->argv);
    free(spec->program);
    pl_strv_free(spec->metric_names);
    pl_strv_free(spec->metric_regexes);
    free(spec->id_name);
    free(spec->resume);
    free(spec->warning);
    *spec = (struct pl_spec){0};
}

int pl_spec_put(struct pl_spec *spec, enum pl_spec_key key, const char *text, enum pl_origin origin)
{
    struct pl_spec_value *value;
    char *copy;

    if ((unsigned)key >= PL_SPEC_N_KEYS)
        return -EINVAL;
    copy = text ? strdup(text) : NULL;
    if (text && !copy)
        return -ENOMEM;
    value = &spec->values[key];
    free(value->text);
    value->text = copy;
    value->origin = origin;
    return 0;
}

/* ---- checks of one value ---- */

static int check_text(const char *value, struct pl_error *err)
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

/* "4" or "a100:4". */
static int check_gpus(const char *value, struct pl_error *err)
{
    const char *colon = strrchr(value, ':');
    int64_t n;

    if (colon == value)
        return pl_error_set(err, -EINVAL, "'%s' has no type of GPU in front of ':'", value);
    return pl_parse_int(colon ? colon + 1 : value, 1, 1024, &n, err);
}

/* "12" or "2-4". */
static int check_nodes(const char *value, struct pl_error *err)
{
    const char *dash = *value ? strchr(value + 1, '-') : NULL; /* in front it is a sign */
    _cleanup_free_ char *low = strndup(value, dash ? (size_t)(dash - value) : strlen(value));
    int64_t min, max;
    int r;

    if (!low)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_parse_int(low, 1, 1000000, &min, err);
    if (r == 0 && dash)
        r = pl_parse_int(dash + 1, min, 1000000, &max, err);
    return r;
}

static int check_objective(const char *value, struct pl_error *err)
{
    if ((strncmp(value, "max:", 4) != 0 && strncmp(value, "min:", 4) != 0) ||
        !pl_name_valid(value + 4, strlen(value + 4)))
        return pl_error_set(err, -EINVAL, "'%s' is not max:NAME or min:NAME", value);
    return 0;
}

static int check_nccl_debug(const char *value, struct pl_error *err)
{
    static const char *const levels[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};

    for (size_t i = 0; i < PL_COUNT(levels); i++)
        if (strcmp(value, levels[i]) == 0)
            return 0;
    return pl_error_set(err, -EINVAL, "'%s' is not VERSION, WARN, INFO, ABORT or TRACE", value);
}

static int check_key(enum pl_spec_key key, const char *value, struct pl_error *err)
{
    uint16_t lo, hi;
    uint64_t u;
    int64_t n;

    switch (key) {
    case PL_SPEC_NODES:
        return check_nodes(value, err);
    case PL_SPEC_GPUS_PER_NODE:
        return check_gpus(value, err);
    case PL_SPEC_NTASKS_PER_NODE:
    case PL_SPEC_CPUS_PER_TASK:
        return pl_parse_int(value, 1, 65535, &n, err);
    case PL_SPEC_MAX_PARALLEL:
        return pl_parse_int(value, 1, PL_RUN_TRIAL_LIMIT, &n, err);
    case PL_SPEC_MEM:
        return pl_parse_mem(value, &u, err);
    case PL_SPEC_TIME:
        return pl_parse_slurm_time(value, &u, err);
    case PL_SPEC_MASTER_PORT:
        return pl_parse_port_range(value, &lo, &hi, err);
    case PL_SPEC_OBJECTIVE:
        return check_objective(value, err);
    case PL_SPEC_NCCL_DEBUG:
        return check_nccl_debug(value, err);
    default:
        return 0;
    }
}

/* Options of sbatch that plsubmit itself gives or that would submit something else. sbatch takes
 * unambiguous beginnings of names, so those are refused as well. */
static int check_sbatch(const char *value, struct pl_error *err)
{
    static const char *const owned[] = {"array", "wrap",      "parsable", "wait",
                                        "help",  "test-only", "usage",    "version"};
    size_t len = strcspn(value, "=");

    if (len == 0 || value[0] == '-' ||
        strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789-") != len)
        return pl_error_set(err, -EINVAL,
                            "'%s' is not KEY or KEY=VALUE with the long name of an option of "
                            "sbatch, without its --",
                            value);
    for (size_t i = 0; i < PL_COUNT(owned); i++)
        if (len <= strlen(owned[i]) && strncmp(owned[i], value, len) == 0)
            return pl_error_set(err, -EINVAL, "--%s of sbatch is plsubmit's own business",
                                owned[i]);
    return 0;
}

static int check_env(const char *value, struct pl_error *err)
{
    static const char *const owned[] = {"PLUME_RUN_DIR", "PLUME_BIN", "PLUME_TRIAL",
                                        "PLUME_ATTEMPT", "PLUME_HUB", "PLUME_PROGRAM",
                                        "PLUME_PARAMS"};
    size_t len = strcspn(value, "=");

    if (value[len] != '=' || !pl_name_valid(value, len) || memchr(value, '.', len) ||
        memchr(value, '-', len))
        return pl_error_set(err, -EINVAL, "'%s' is not NAME=VALUE", value);
    for (size_t i = 0; i < PL_COUNT(owned); i++)
        if (strlen(owned[i]) == len && strncmp(owned[i], value, len) == 0)
            return pl_error_set(err, -EINVAL, "variable %s is set by Plume itself", owned[i]);
    return 0;
}

static int check_list(enum pl_spec_list list, const char *value, struct pl_error *err)
{
    switch (list) {
    case PL_SPEC_SBATCH:
        return check_sbatch(value, err);
    case PL_SPEC_METRIC:
        return pl_metric_rule_check(value, err);
    case PL_SPEC_ENV:
        return check_env(value, err);
    case PL_SPEC_LOAD:
        if (value[0] == '-')
            return pl_error_set(err, -EINVAL, "'%s' is not the name of a module", value);
        return 0;
    default:
        return 0;
    }
}

static int set_checked(struct pl_spec *spec, int id, const char *value, struct pl_error *err)
{
    int r = check_text(value, err);

    if (id >= ID_LIST) {
        if (r == 0)
            r = check_list((enum pl_spec_list)(id - ID_LIST), value, err);
        return r < 0 ? r : pl_strv_append(&spec->lists[id - ID_LIST], value);
    }
    if (r == 0)
        r = check_key((enum pl_spec_key)id, value, err);
    return r < 0 ? r : pl_spec_put(spec, (enum pl_spec_key)id, value, PL_ORIGIN_COMMAND_LINE);
}

int pl_spec_set(void *ctx, const struct pl_option *option, const char *value, struct pl_error *err)
{
    struct pl_spec *spec = ctx;
    int r = 0;

    switch (option->id) {
    case ID_GRID:
        return pl_grid_add(&spec->grid, value, err);
    case ID_DRY_RUN:
        spec->dry_run = true;
        return 0;
    case ID_PARSABLE:
        spec->parsable = true;
        return 0;
    case ID_WAIT:
        spec->wait = true;
        return 0;
    case ID_SHOW_CONFIG:
        spec->show_config = true;
        return 0;
    case ID_RESUME:
        free(spec->resume);
        spec->resume = strdup(value);
        return spec->resume ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
    default:
        break;
    }
    if (option->id >= ID_REMOVE && option->id < ID_REMOVE + PL_SPEC_N_KEYS)
        return pl_spec_put(spec, (enum pl_spec_key)(option->id - ID_REMOVE), NULL,
                           PL_ORIGIN_COMMAND_LINE);
    r = set_checked(spec, option->id, value, err);
    return r < 0 ? pl_error_wrap(err, r, "--%s", option->name) : 0;
}
