/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/params/stages.h"

const char *const pl_strategy_names[] = {"auto",    "single",  "dp",       "ddp", "ddp2",
                                         "horovod", "sharded", "pipeline", NULL};
const char *const pl_shard_names[] = {"os", "grad", "param", NULL};
const char *const pl_pipe_order_names[] = {"1f1b", "gpipe", NULL};

static int
check_average(const struct pl_train_options *o, enum pl_strategy_kind kind, struct pl_error *err)
{
    if (kind != PL_STRATEGY_DDP && kind != PL_STRATEGY_SINGLE)
        return pl_error_set(err, -EINVAL,
                            "--average-every is for strategy ddp, not %s: its ranks step alone",
                            pl_strategy_names[kind]);
    if (o->precision == PL_PRECISION_16 && o->amp_level > 0)
        return pl_error_set(err, -EINVAL,
                            "--average-every and the loss scale of --precision 16 disagree: ranks "
                            "that step alone would skip different steps; choose bf16");
    if (o->ema > 0)
        return pl_error_set(err, -EINVAL,
                            "--average-every and --ema disagree: ranks that step alone have no "
                            "common parameters to average over steps");
    return 0;
}

static int check_pipeline(const struct pl_train_options *o, unsigned size, struct pl_error *err)
{
    unsigned k = PL_MAX(o->tensor_parallel, 1u), stages = o->stages ? o->stages : size / k;

    if (stages > PL_STAGES_MAX)
        return pl_error_set(err, -EINVAL,
                            "a pipeline has at most %d stages, not %u: choose fewer by --stages, "
                            "for several pipelines",
                            PL_STAGES_MAX, stages);
    if (size % (stages * k))
        return pl_error_set(err, -EINVAL,
                            "%u ranks do not make whole pipelines of %u stages%s: start a multiple "
                            "of %u",
                            size, stages, k > 1 ? ", each shared by --tensor-parallel" : "",
                            stages * k);
    if (o->ema > 0)
        return pl_error_set(err, -EINVAL,
                            "strategy pipeline keeps no moving average: leave --ema out, or choose "
                            "ddp or sharded");
    return 0;
}

static int check_tensor_parallel(const struct pl_train_options *o,
                                 unsigned size,
                                 enum pl_strategy_kind kind,
                                 struct pl_error *err)
{
    unsigned k = o->tensor_parallel;

    if (size % k)
        return pl_error_set(err, -EINVAL,
                            "--tensor-parallel %u needs a multiple of %u ranks, not %u: start them "
                            "by --processes %u",
                            k, k, size, PL_MAX(size / k, 1u) * k);
    if (kind != PL_STRATEGY_DDP && kind != PL_STRATEGY_SHARDED && kind != PL_STRATEGY_PIPELINE)
        return pl_error_set(err, -EINVAL,
                            "--tensor-parallel is for strategies ddp, sharded and pipeline, not "
                            "%s: leave one out",
                            pl_strategy_names[kind]);
    return 0;
}

static int check(const struct pl_train_options *o,
                 const struct pl_world *place,
                 unsigned size,
                 enum pl_strategy_kind kind,
                 struct pl_error *err)
{
    if (kind == PL_STRATEGY_SINGLE && size > 1)
        return pl_error_set(err, -EINVAL,
                            "strategy single has one rank, but %u were started: choose ddp, or "
                            "start one",
                            size);
    if (kind == PL_STRATEGY_DP && place->n_nodes > 1)
        return pl_error_set(err, -EINVAL,
                            "strategy dp is one process on one node, but there are %u nodes: "
                            "choose ddp2 (dp inside a node, ddp across) or ddp",
                            place->n_nodes);
    if (kind == PL_STRATEGY_DP && size > 1)
        return pl_error_set(err, -EINVAL,
                            "strategy dp is one process, but %u ranks were started: start one, or "
                            "choose ddp",
                            size);
    if (kind == PL_STRATEGY_DDP2 && place->local_size > 1)
        return pl_error_set(err, -EINVAL,
                            "strategy ddp2 has one process a node, but %u ranks are on this one: "
                            "start one a node (srun --ntasks-per-node=1) with --devices, or choose "
                            "ddp",
                            place->local_size);
    if ((kind == PL_STRATEGY_DP || kind == PL_STRATEGY_DDP2) && o->sync_batchnorm)
        return pl_error_set(err, -EINVAL,
                            "synchronised batch norm is between ranks, not between the devices of "
                            "one: choose ddp");
    if (kind == PL_STRATEGY_HOROVOD && size > 1 && o->sync_batchnorm)
        return pl_error_set(err, -EINVAL,
                            "strategy horovod lets ranks run out of batches at different times, "
                            "which --sync-batchnorm cannot wait for: choose ddp");
    if (kind != PL_STRATEGY_DP && kind != PL_STRATEGY_DDP2 && o->devices > 1)
        return pl_error_set(
            err, -EINVAL,
            "strategy %s has one device per rank, not %u: start more ranks, or choose "
            "dp or ddp2",
            pl_strategy_names[kind], o->devices);
    if (o->tensor_parallel > 1) {
        int r = check_tensor_parallel(o, size, kind, err);

        if (r < 0)
            return r;
    }
    if (kind == PL_STRATEGY_PIPELINE) {
        int r = check_pipeline(o, size, err);

        if (r < 0)
            return r;
    }
    return o->average_every ? check_average(o, kind, err) : 0;
}

int pl_strategy_choose(const struct pl_train_options *options,
                       const struct pl_world *place,
                       unsigned world_size,
                       struct pl_strategy *ret,
                       struct pl_error *err)
{
    enum pl_strategy_kind kind = options->strategy;
    enum pl_shard_kind shard = PL_SHARD_NONE;
    unsigned copies; /* of what a rank has: ranks, or groups of tensor parallel */
    int r;

    if (kind == PL_STRATEGY_AUTO)
        kind = world_size > 1 || options->devices > 1 || options->replicas > 1 ? PL_STRATEGY_DDP
                                                                               : PL_STRATEGY_SINGLE;
    r = check(options, place, world_size, kind, err);
    if (r < 0)
        return r;
    copies = world_size / PL_MAX(options->tensor_parallel, 1u);
    if (kind == PL_STRATEGY_SHARDED) /* one rank has nothing to share: the bits of single */
        shard = copies > 1 ? PL_MAX(options->shard, PL_SHARD_OS) : PL_SHARD_OS;
    *ret = (struct pl_strategy){
        .kind = kind,
        .devices =
            kind == PL_STRATEGY_DP || kind == PL_STRATEGY_DDP2 ? PL_MAX(options->devices, 1u) : 1,
        /* Flags go through the reducer even if a pipeline is alone. */
        .reduces = kind == PL_STRATEGY_PIPELINE || options->tensor_parallel > 1 ||
                   (world_size > 1 && !options->average_every),
        .stages = kind != PL_STRATEGY_PIPELINE ? 0
                  : options->stages            ? options->stages
                                               : copies,
        .tensor_parallel = options->tensor_parallel > 1 ? options->tensor_parallel : 0,
        .average_every = world_size > 1 ? options->average_every : 0,
        .shard = shard,
        .fused = kind == PL_STRATEGY_HOROVOD,
        .uneven_inputs = kind == PL_STRATEGY_HOROVOD && world_size > 1,
        .lr_scale = kind == PL_STRATEGY_HOROVOD ? world_size : 1,
    };
    return 0;
}
