/* SPDX-License-Identifier: MIT */
#include "spank_plugin/options.h"
#include "common/base/env.h"
#include "common/base/parse.h"
#include "spank_plugin/values.h"

#include <stdlib.h>

static struct pl_spank_options options;

static int take_plume(const char *value, bool remote, struct pl_error *err)
{
    options.enabled = true;
    return 0;
}

static int take_nccl_debug(const char *value, bool remote, struct pl_error *err)
{
    const char *level;
    int r = pl_parse_nccl_level(value, &level, err);

    return r < 0 ? r : pl_values_copy(level, &options.nccl_debug, err);
}

static int take_master_port(const char *value, bool remote, struct pl_error *err)
{
    int r = pl_values_master_port(value, err);

    return r < 0 ? r : pl_values_copy(value, &options.master_port, err);
}

static int take_on_hang(const char *value, bool remote, struct pl_error *err)
{
    int r = pl_values_on_hang(value, err);

    return r < 0 ? r : pl_values_copy(value, &options.on_hang, err);
}

static int take_metric(const char *value, bool remote, struct pl_error *err)
{
    int r;

    if (remote) /* one value an option, and the daemon checks it as the user */
        return pl_values_copy(value, &options.metric, err);
    r = pl_values_metric(value, err);
    if (r < 0)
        return r;
    r = pl_values_metric_add(&options.metric, value);
    return r < 0 ? pl_error_set(err, r, "out of memory") : 0;
}

static int on_option(int which, const char *value, int remote);

/* The names are part of Slurm's option variables: never change them. */
static struct {
    struct spank_option option; /* .val is the index, see pl_spank_options_register() */
    int (*take)(const char *value, bool remote, struct pl_error *err);
} table[] = {
    {
        {
            .name = "plume",
            .usage = "run each task as a rank of Plume: environment for distributed training, a "
                     "node daemon, status in plstat(1)",
            .cb = on_option,
        },
        take_plume,
    },
    {
        {
            .name = "plume-nccl-debug",
            .arginfo = "LEVEL",
            .usage =
                "with --plume: set NCCL_DEBUG for the ranks (VERSION, WARN, INFO, ABORT or TRACE)",
            .has_arg = 1,
            .cb = on_option,
        },
        take_nccl_debug,
    },
    {
        {
            .name = "plume-master-port",
            .arginfo = "RANGE",
            .usage = "with --plume: choose MASTER_PORT from LO-HI instead of any free port",
            .has_arg = 1,
            .cb = on_option,
        },
        take_master_port,
    },
    {
        {
            .name = "plume-metric",
            .arginfo = "NAME=REGEX",
            .usage =
                "with --plume: read a metric from the ranks' output; may be given several times",
            .has_arg = 1,
            .cb = on_option,
        },
        take_metric,
    },
    {
        {
            .name = "plume-on-hang",
            .arginfo = "POLICY",
            .usage = "with --plume: once ranks that report steps make no progress, warn or kill",
            .has_arg = 1,
            .cb = on_option,
        },
        take_on_hang,
    },
};

/* Called once or several times an option, with the value of an outer sbatch first: the last wins.
 * In slurmstepd the reason is kept for task_init: nobody sees a callback that fails. */
static int on_option(int which, const char *value, int remote)
{
    struct pl_error err = {0};

    if (which < 0 || (size_t)which >= PL_COUNT(table)) /* val is ours */
        return 0;
    if (table[which].take(value ? value : "", remote, &err) == 0)
        return 0;
    pl_error_wrap(&err, err.code, "--%s", table[which].option.name);
    pl_values_make_printable(err.text);
    if (remote) {
        options.failure = err;
        return 0;
    }
    slurm_error("%s", pl_error_text(&err));
    return -1;
}

int pl_spank_options_register(spank_t spank, struct pl_error *err)
{
    for (size_t i = 0; i < PL_COUNT(table); i++) {
        spank_err_t r;

        table[i].option.val = (int)i;
        r = spank_option_register(spank, &table[i].option);
        if (r != ESPANK_SUCCESS)
            return pl_error_set(err, -EIO, "cannot register the option '--%s': %s",
                                table[i].option.name, spank_strerror(r));
    }
    return 0;
}

const struct pl_spank_options *pl_options(void)
{
    return &options;
}

void pl_spank_options_export(void)
{
    const char *metric = pl_env(PL_ENV_PLUME_METRIC);
    _cleanup_free_ char *all = NULL;

    if (options.nccl_debug)
        setenv("PLUME_NCCL_DEBUG", options.nccl_debug, 1);
    if (options.master_port)
        setenv("PLUME_MASTER_PORT_RANGE", options.master_port, 1);
    if (options.on_hang)
        setenv("PLUME_ON_HANG", options.on_hang, 1);
    if (!options.metric)
        return;
    /* Several of an outer sbatch came by the environment, only the last of them by Slurm. */
    if (metric && *metric && pl_values_metric_add(&all, metric) < 0)
        return;
    if (pl_values_metric_add(&all, options.metric) == 0)
        setenv("PLUME_METRIC", all, 1);
}

bool pl_spank_options_without_plume(void)
{
    const struct {
        const char *variable;
        const char *value;
    } given[] = {
        {"SLURM_SPANK__SLURM_SPANK_OPTION_plume_plume_nccl_debug", options.nccl_debug},
        {"SLURM_SPANK__SLURM_SPANK_OPTION_plume_plume_master_port", options.master_port},
        {"SLURM_SPANK__SLURM_SPANK_OPTION_plume_plume_metric", options.metric},
        {"SLURM_SPANK__SLURM_SPANK_OPTION_plume_plume_on_hang", options.on_hang},
    };

    for (size_t i = 0; i < PL_COUNT(given) && !options.enabled; i++)
        if (given[i].value && !getenv(given[i].variable)) /* set: an outer sbatch's */
            return true;
    return false;
}
