/* SPDX-License-Identifier: MIT */
/* The meaning of options together, and the ranks that they ask for. */
#include "common/base/env.h"
#include "common/base/log.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/report/array_file.h"
#include "runtime/pltrain/pltrain_options.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

static int check_evaluation(const struct pl_train_options *t, struct pl_error *err)
{
    static const char *const names[] = {
        [PL_RUN_VALIDATE] = "--validate", [PL_RUN_TEST] = "--test", [PL_RUN_PREDICT] = "--predict"};

    if (t->run == PL_RUN_TRAIN && (t->predictions || t->json))
        return pl_error_set(err, -EINVAL, "option '%s' needs %s",
                            t->predictions ? "--out" : "--json",
                            t->predictions ? "'--predict'" : "'--validate' or '--test'");
    if (t->run == PL_RUN_TRAIN)
        return 0;
    if (t->resume || t->checkpoint_dir)
        return pl_error_set(err, -EINVAL,
                            "option '%s' writes no checkpoint and resumes no run: name the "
                            "checkpoint by '--weights', and omit '%s'",
                            names[t->run], t->resume ? "--resume" : "--checkpoint-dir");
    if (!t->weights)
        return pl_error_set(err, -EINVAL, "option '%s' needs '--weights FILE'", names[t->run]);
    if ((t->run == PL_RUN_PREDICT) != (t->predictions != NULL))
        return pl_error_set(err, -EINVAL,
                            t->predictions ? "option '--out' needs '--predict'"
                                           : "option '--predict' needs '--out FILE'");
    if (t->json && t->run == PL_RUN_PREDICT)
        return pl_error_set(err, -EINVAL,
                            "option '--json' is for '--validate' and '--test': predictions are "
                            "written as JSON lines to a FILE.jsonl");
    return t->predictions ? pl_array_file_check(t->predictions, err) : 0;
}

/* A comparison keeps nothing, and one process trains. */
static int check_comparison(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_train_options *t = &p->train;
    const struct {
        bool given;
        const char *name;
    } others[] = {
        {p->cpu, "--accelerator cpu"},
        {p->gpu, "--accelerator gpu"},
        {p->tpu_cores, "--tpu-cores"},
        {p->tpu && !p->plugin, "--accelerator tpu"},
        {p->dump != NULL, "--dump-stablehlo"},
        {p->processes > 0, "--processes"},
        {p->nodes > 0, "--num-nodes"},
        {p->devices > 0, "--devices"},
        {t->strategy > PL_STRATEGY_SINGLE, "--strategy"},
        {t->tensor_parallel > 1, "--tensor-parallel"},
        {t->run != PL_RUN_TRAIN, "--validate, --test and --predict"},
        {t->checkpoint_dir != NULL, "--checkpoint-dir"},
        {t->resume != NULL, "--resume"},
        {t->log_dir != NULL, "--log-dir"},
        {t->profile, "--profile"},
        {t->summary, "--summary"},
        {t->fast_dev_run > 0, "--fast-dev-run"},
    };

    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (others[i].given)
            return pl_error_set(err, -EINVAL,
                                "option '--compare-devices' trains some steps on each kind of "
                                "device, in one process, and keeps nothing: leave out %s",
                                others[i].name);
    return 0;
}

/* Refuses what does not go with --tensor-parallel so far. */
static int check_tensor_parallel(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_train_options *t = &p->train;
    const struct {
        bool given;
        const char *name;
    } others[] = {
        {t->average_every > 0, "--average-every"},
        {p->tpu, "--accelerator tpu"},
    };

    if (t->tensor_parallel < 2)
        return 0;
    if (t->strategy != PL_STRATEGY_AUTO && t->strategy != PL_STRATEGY_DDP &&
        t->strategy != PL_STRATEGY_SHARDED && t->strategy != PL_STRATEGY_PIPELINE)
        return pl_error_set(err, -EINVAL,
                            "option '--tensor-parallel' is for strategies ddp, sharded and "
                            "pipeline, not %s: leave one out",
                            pl_strategy_names[t->strategy]);
    for (size_t i = 0; i < PL_COUNT(others); i++)
        if (others[i].given)
            return pl_error_set(err, -EINVAL,
                                "options '--tensor-parallel' and '%s' do not go together so far: "
                                "leave one out",
                                others[i].name);
    return 0;
}

/* Refuses what does not go with --recompute so far. */
static int check_recompute(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_train_options *t = &p->train;

    if (!t->recompute || !p->tpu)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "options '--recompute' and '--accelerator tpu' do not go together so far: "
                        "leave one out");
}

/* Refuses options that have no effect without another one: whoever gives --patience alone believes
 * that the run stops early. Their defaults say nothing. */
static int check_needs(const struct pl_train_options *t, struct pl_error *err)
{
    const struct {
        bool given, has;
        const char *name, *needs;
    } list[] = {
        {t->stop.patience != PL_PLTRAIN_PATIENCE, t->stop.monitor, "--patience",
         "--early-stop NAME"},
        {t->stop.min_delta != 0, t->stop.monitor, "--min-delta", "--early-stop NAME"},
        {t->stop.maximize, t->stop.monitor, "--early-stop-mode max", "--early-stop NAME"},
        {t->monitor_max, t->monitor, "--monitor-mode max", "--monitor NAME"},
        {t->save_top_k != 1, t->checkpoint_dir, "--save-top-k", "--checkpoint-dir DIR"},
        {t->min_epochs > 0, t->stop.monitor, "--min-epochs", "--early-stop NAME"},
        {t->min_steps > 0, t->stop.monitor, "--min-steps", "--early-stop NAME"},
    };

    for (size_t i = 0; i < PL_COUNT(list); i++)
        if (list[i].given && !list[i].has)
            return pl_error_set(err, -EINVAL, "option '%s' needs '%s'", list[i].name,
                                list[i].needs);
    return 0;
}

/* Options of several names must name the same devices. */
static int check_devices(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_pltrain_devices *all = p->given_devices;

    for (size_t i = 1; i < PL_COUNT(p->given_devices); i++)
        for (size_t k = 0; k < i; k++)
            if (all[i].option && all[i].n && all[k].n &&
                (all[i].n != all[k].n || all[i].n_device != all[k].n_device ||
                 memcmp(all[i].device, all[k].device, all[i].n_device * sizeof(*all[i].device)) !=
                     0))
                return pl_error_set(err, -EINVAL,
                                    "options '--%s' and '--%s' name different devices: leave one "
                                    "out",
                                    all[k].option, all[i].option);
    return 0;
}

int pl_pltrain_check(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_train_options *t = &p->train;
    int r = check_devices(p, err);

    if (r == 0)
        r = check_tensor_parallel(p, err);
    if (r == 0)
        r = check_recompute(p, err);
    if (r == 0)
        r = check_needs(t, err);
    if (r < 0)
        return r;

    if (p->test_gpus)
        return pl_error_set(err, -EINVAL, "option '--test-gpus' takes no module");
    if (p->compare)
        return check_comparison(p, err);
    if (p->per_node && (!p->processes || p->nodes))
        return pl_error_set(err, -EINVAL,
                            "option '--processes-per-node' needs '--processes', and no "
                            "'--num-nodes'");
    if (t->shard != PL_SHARD_NONE && t->strategy != PL_STRATEGY_SHARDED)
        return pl_error_set(err, -EINVAL, "option '--shard' needs '--strategy sharded'");
    if (t->shard_in_node && t->strategy != PL_STRATEGY_SHARDED)
        return pl_error_set(err, -EINVAL, "option '--shard-group' needs '--strategy sharded'");
    if ((t->stages || t->microbatches || p->schedule_given || p->balance_given) &&
        t->strategy != PL_STRATEGY_PIPELINE)
        return pl_error_set(err, -EINVAL, "option '--%s' needs '--strategy pipeline'",
                            t->stages           ? "stages"
                            : t->microbatches   ? "microbatches"
                            : p->schedule_given ? "schedule"
                                                : "balance-every");
    if (p->clip_by_given && !p->clip_given) /* a value of 0 is off on purpose, as in a grid */
        return pl_error_set(err, -EINVAL, "option '--clip-by' needs '--clip VALUE'");
    if (t->deterministic && !isinf(t->max_seconds))
        return pl_error_set(err, -EINVAL,
                            "option '--deterministic' and a stop by the clock ('--max-time') "
                            "disagree: choose '--max-steps'");
    if (t->reduce_in != PL_HALF_NONE &&
        (p->nccl != PL_NCCL_ALWAYS || t->precision == PL_PRECISION_64))
        return pl_error_set(err, -EINVAL, "option '--reduce-dtype' %s",
                            p->nccl == PL_NCCL_ALWAYS ? "and '--precision 64' disagree"
                                                      : "needs '--comm nccl'");
    if (p->tpu && (p->gpu || p->cpu))
        return pl_error_set(err, -EINVAL, "a run has one kind of accelerator: choose %s or tpu",
                            p->gpu ? "gpu" : "cpu");
    if (p->tpu && p->processes > 1)
        return pl_error_set(err, -EINVAL,
                            "'--accelerator tpu' has all devices of a node in one process: leave "
                            "'--processes' out, and give '--tpu-cores N'");
    if (p->dump && !p->tpu)
        return pl_error_set(err, -EINVAL,
                            "option '--dump-stablehlo' needs '--accelerator tpu' or "
                            "'--pjrt-plugin'");
    if (p->tf32 && !p->gpu)
        return pl_error_set(err, -EINVAL, "option '--tf32' needs '--accelerator gpu'");
    if (p->nccl == PL_NCCL_ALWAYS && (!p->gpu || t->deterministic))
        return pl_error_set(err, -EINVAL, "option '--comm nccl' %s",
                            p->gpu
                                ? "and '--deterministic' disagree: NCCL does not add in the order "
                                  "of ranks"
                                : "needs '--accelerator gpu'");
    if (!t->weights && (t->n_weights_maps || t->weights_strict))
        return pl_error_set(err, -EINVAL, "option '%s' needs '--weights FILE'",
                            t->weights_strict ? "--weights-strict" : "--weights-map");
    if (!t->checkpoint_dir && (t->monitor || t->save_last || t->weights_only ||
                               (t->resume && strcmp(t->resume, "last") == 0)))
        return pl_error_set(err, -EINVAL, "option '%s' needs '--checkpoint-dir DIR'",
                            t->monitor        ? "--monitor"
                            : t->save_last    ? "--save-last"
                            : t->weights_only ? "--save-weights-only"
                                              : "--resume last");
    if (!(t->ema < 1))
        return pl_error_set(err, -EINVAL, "option '--ema' is a decay in [0, 1), such as 0.999");
    if (t->ema > 0 && t->run != PL_RUN_TRAIN)
        return pl_error_set(err, -EINVAL,
                            "option '--ema' is for training: a checkpoint with an average gives it "
                            "to '--weights'");
    if (!t->weights && t->plain_weights)
        return pl_error_set(err, -EINVAL, "option '--no-ema' needs '--weights'");
    return check_evaluation(t, err);
}

int pl_pltrain_global_batch(const struct pl_pltrain *p,
                            unsigned ranks,
                            bool given,
                            struct pl_hparams *hparams,
                            struct pl_error *err)
{
    int64_t n = p->global_batch, groups = (int64_t)ranks * (int64_t)p->train.accumulate, parts;
    char text[40];
    int r;

    if (n == 0)
        return 0;
    if (p->train.n_accumulate_from)
        return pl_error_set(err, -EINVAL,
                            "option '--global-batch' needs the same '--accumulate' in all epochs");
    parts = groups * p->train.devices;
    if (n % parts)
        return pl_error_set(err, -EINVAL,
                            "--global-batch %lld cannot be divided equally among %u ranks with %u "
                            "devices and %llu batches per step: a multiple of %lld can, such as "
                            "%lld",
                            (long long)n, ranks, p->train.devices,
                            (unsigned long long)p->train.accumulate, (long long)parts,
                            (long long)((n + parts - 1) / parts * parts));
    if (given && pl_hparams_value(hparams, "batch_size") != (double)(n / groups))
        return pl_error_set(err, -EINVAL,
                            "--global-batch %lld gives each of %u ranks batches of %lld samples, "
                            "but batch_size is %g: leave one of them out",
                            (long long)n, ranks, (long long)(n / groups),
                            pl_hparams_value(hparams, "batch_size"));
    snprintf(text, sizeof(text), "batch_size=%lld", (long long)(n / groups));
    r = pl_hparams_set(hparams, text, err);
    return r < 0 ? pl_error_wrap(err, r, "--global-batch %lld", (long long)n) : 0;
}

/* One process has all devices. */
static bool is_whole(const struct pl_pltrain *p)
{
    enum pl_strategy_kind kind = p->train.strategy;

    return kind == PL_STRATEGY_DP || kind == PL_STRATEGY_DDP2 || p->tpu;
}

int pl_pltrain_started(const struct pl_pltrain *p, unsigned local_size, struct pl_error *err)
{
    if (p->per_node || (p->processes && p->processes != local_size))
        return pl_error_set(err, -EINVAL,
                            "option '--processes' is for runs without a launcher, but the ranks "
                            "are started already, %u on this node (RANK is set, or MPI started "
                            "them): for another number write srun or plsubmit --ntasks-per-node",
                            local_size);
    /* Each rank has one device: "--devices 1" may as well mean that of a rank. */
    if (is_whole(p) || !p->devices || p->devices == local_size || (p->devices == 1 && !p->n_device))
        return 0;
    return pl_error_set(err, -EINVAL,
                        "%lld devices are asked for, but %u ranks are on this node, and each rank "
                        "has one device: start %lld ranks per node (srun or plsubmit "
                        "--ntasks-per-node=%lld), or give one rank all of them (--strategy ddp2)",
                        (long long)p->devices, local_size, (long long)p->devices,
                        (long long)p->devices);
}

/* srun without plrun. Not in a shell that srun has started, and not if ranks are asked for. */
static void warn_alone(const struct pl_pltrain *p)
{
    const char *task = pl_env(PL_ENV_SLURM_PROCID);
    const char *tasks = pl_env_text(PL_ENV_SLURM_STEP_NUM_TASKS);

    if (p->processes || isatty(STDIN_FILENO) || !tasks || strtoul(tasks, NULL, 10) < 2 ||
        (task && strcmp(task, "0") != 0))
        return;
    pl_log_warn("train",
                "each of the %s tasks of this step trains alone: for ranks of one run write srun "
                "plrun -- pltrain",
                tasks);
}

void pl_pltrain_warn_unmeant(const struct pl_pltrain *p)
{
    const struct pl_train_options *t = &p->train;
    const struct {
        const char *name, *value;
        bool given;
    } list[] = {{"early-stop", t->stop.monitor, p->stop_mode_given},
                {"monitor", t->monitor, p->monitor_mode_given}};

    if (t->amp_level > 1 && t->precision != PL_PRECISION_BF16 && t->precision != PL_PRECISION_16)
        pl_log_warn("train", "--amp-level O%d has no effect without --precision 16 or bf16",
                    t->amp_level);
    for (size_t i = 0; i < PL_COUNT(list); i++)
        if (list[i].value && !list[i].given && strstr(list[i].value, "acc"))
            pl_log_warn("train",
                        "--%s %s: the lowest value is the best: add --%s-mode max, or min if this "
                        "is meant",
                        list[i].name, list[i].value, list[i].name);
}

int pl_pltrain_plan(struct pl_pltrain *p,
                    bool started,
                    unsigned local_size,
                    unsigned *ret_ranks,
                    unsigned *ret_per_node,
                    struct pl_error *err)
{
    enum pl_strategy_kind kind = p->train.strategy;
    bool whole = is_whole(p);
    int64_t per_node = p->processes ? p->processes
                       : whole || !p->devices
                           ? PL_MAX(p->train.stages, 1u) * PL_MAX(p->train.tensor_parallel, 1u)
                           : p->devices;
    int r = started && local_size ? pl_pltrain_started(p, local_size, err) : 0;

    if (r < 0)
        return r;
    if (!started)
        warn_alone(p);
    if (!started && !whole && p->processes && p->devices && p->devices != p->processes)
        return pl_error_set(
            err, -EINVAL,
            "'--devices %lld' and '--processes %lld' disagree: each rank has one device",
            (long long)p->devices, (long long)p->processes);
    p->train.devices = whole && !p->tpu && p->devices ? (unsigned)p->devices : 1;
    p->train.replicas = p->tpu && p->devices ? (unsigned)p->devices : 1;
    *ret_ranks = (unsigned)(per_node * PL_MAX(p->nodes, (int64_t)1));
    *ret_per_node = (unsigned)(p->nodes ? per_node : p->per_node);
    if (kind == PL_STRATEGY_SINGLE && !started && p->devices > 1)
        return pl_error_set(err, -EINVAL, "strategy single has one device, not %lld",
                            (long long)p->devices);
    return 0;
}
