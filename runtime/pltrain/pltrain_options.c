/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/pltrain_options.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/near.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/util/sha256.h"
#include "runtime/pltrain/pltrain_foreign.h"
#include "runtime/pltrain/pltrain_set.h"
#include "runtime/pltrain/trial_checkpoints.h"

#include <string.h>

static const char *const amp_levels[] = {"O0", "O1", "O2", "O3", NULL};
static const char *const reduce_dtypes[] = {"f32", "bf16", "f16", NULL}; /* enum pl_half */

/* Targets in struct pl_pltrain. */
#define TRUE(member) PL_OPTION_TRUE(struct pl_pltrain, member)
#define FALSE(member) PL_OPTION_FALSE(struct pl_pltrain, member)
#define STRING(member) PL_OPTION_STRING(struct pl_pltrain, member)
#define INT(member, low, high) PL_OPTION_INT(struct pl_pltrain, member, low, high)
#define COUNT(member, low) PL_OPTION_INT(struct pl_pltrain, member, low, INT64_MAX)
#define REAL(member, low) PL_OPTION_REAL(struct pl_pltrain, member, low)
#define CHOICE(member, list) PL_OPTION_CHOICE(struct pl_pltrain, member, list)
#define CALL(setter) PL_OPTION_CALL(pl_pltrain_##setter)
#define LIMIT(member)                                                                              \
    PL_OPTION_MEMBER(struct pl_pltrain, member, struct pl_limit, pl_pltrain_set_limit)
#define RUN(kind)                                                                                  \
    {                                                                                              \
        .set = pl_pltrain_set_run, .key = (kind)                                                   \
    }
#define MODE(member) PL_OPTION_MEMBER(struct pl_pltrain, member, bool, pl_pltrain_set_mode)

static const struct pl_option options[] = {
    {"hparam", 0, "NAME=VALUE", "Training", "set a hyper-parameter; repeatable", CALL(set_hparam)},
    {"list-hparams", 0, NULL, NULL, "show the module's hyper-parameters and exit", TRUE(list)},
    {"seed", 0, "N", NULL, "seed of the initial parameters and of shuffling (0)",
     COUNT(train.seed, 0)},
    {"deterministic", 0, NULL, NULL,
     "add gradients in the order of ranks: the result has the same bits on any nodes and with any "
     "--comm (slower between nodes)",
     TRUE(train.deterministic)},
    {"optimizer", 0, "KIND", NULL,
     "sgd (default), adam, adamw, rmsprop or adagrad, if the module does not choose one",
     CALL(set_optimizer)},
    {"precision", 0, "BITS", NULL, "32 (default), 64, bf16 or 16; bf16 and 16 are mixed precision",
     CHOICE(train.precision, pl_precision_names)},
    {"amp-level", 0, "LEVEL", NULL,
     "mixed precision as in NVIDIA Apex: O0 off, O1 matmul and convolution (default), O2 also "
     "weights, O3 all",
     CHOICE(train.amp_level, amp_levels)},
    {"accumulate", 0, "N", NULL,
     "accumulate the gradients of N batches per optimizer step (1); 1,5:4 = four from epoch 5",
     CALL(set_accumulate)},
    {"global-batch", 0, "N", NULL,
     "samples per step over all ranks and accumulated batches; sets batch_size",
     INT(global_batch, 1, INT32_MAX)},
    {"average-every", 0, "P", NULL,
     "with ddp: each rank makes P steps with its own gradients, then parameters and optimizer "
     "states are averaged",
     COUNT(train.average_every, 1)},
    {"clip", 0, "VALUE", NULL, "clip gradients to VALUE (0 = off)",
     PL_OPTION_MEMBER(struct pl_pltrain, train.clip, double, pl_pltrain_set_clip)},
    {"clip-by", 0, "HOW", NULL, "norm (default): the L2 norm of all gradients; value: each element",
     CALL(set_clip_by)},

    {"ema", 0, "DECAY", NULL,
     "average the parameters over steps (0.999: about the last 1000) for validation, tests and "
     "predictions",
     PL_OPTION_REAL(struct pl_pltrain, train.ema, 0)},

    {"validate", 0, NULL, "Instead of training, with --weights",
     "validate once and print the values", RUN(PL_RUN_VALIDATE)},
    {"test", 0, NULL, NULL, "test once and print the values", RUN(PL_RUN_TEST)},
    {"predict", 0, NULL, NULL, "write the module's output for each sample of the test to --out",
     RUN(PL_RUN_PREDICT)},
    {"out", 0, "FILE", NULL,
     "predictions: FILE.npy, FILE.safetensors or FILE.jsonl, row i for sample i",
     STRING(train.predictions)},
    {"json", 0, NULL, NULL, "print the values of --validate or --test as one JSON object",
     TRUE(train.json)},

    {"epochs", 0, "N", "Duration", "the same as --hparam epochs=N", CALL(set_epochs)},
    {"min-epochs", 0, "N", NULL, "no early stopping before N epochs", COUNT(train.min_epochs, 0)},
    {"max-steps", 0, "N", NULL, "stop after N optimizer steps", COUNT(train.max_steps, 0)},
    {"min-steps", 0, "N", NULL, "no early stopping before N optimizer steps",
     COUNT(train.min_steps, 0)},
    {"max-time", 0, "TIME", NULL, "stop after TIME, in a format of Slurm: MINUTES, HH:MM:SS, D-HH",
     CALL(set_max_time)},
    {"early-stop", 0, "NAME", NULL,
     "stop when the logged value NAME, e.g. val_loss, stops improving", STRING(train.stop.monitor)},
    {"early-stop-mode", 0, "MODE", NULL, "min (default) or max is better",
     MODE(train.stop.maximize)},
    {"patience", 0, "N", NULL, "stop after N validations without improvement (3)",
     COUNT(train.stop.patience, 0)},
    {"min-delta", 0, "X", NULL, "a change below X is no improvement (0)",
     REAL(train.stop.min_delta, 0)},

    {"limit-train-batches", 0, "N", "Batches",
     "batches per epoch: a number, or with a decimal point a fraction: 0.1", LIMIT(train.limit[0])},
    {"limit-val-batches", 0, "N", NULL, "the same for each validation", LIMIT(train.limit[1])},
    {"limit-test-batches", 0, "N", NULL, "the same for the test", LIMIT(train.limit[2])},
    {"val-check-interval", 0, "N", NULL,
     "validate every N batches, or with a decimal point every fraction of an epoch (1.0)",
     CALL(set_val_check)},
    {"check-val-every-n-epoch", 0, "N", NULL, "validate only in every Nth epoch (1)",
     COUNT(train.val_every, 1)},
    {"num-sanity-val-steps", 0, "N", NULL, "run N validation batches before training (2)",
     COUNT(train.sanity_steps, 0)},
    {"overfit-batches", 0, "N", NULL,
     "train on the same N batches in every epoch (number or fraction; 0 = off)",
     LIMIT(train.overfit)},
    {"num-workers", 0, "N", NULL,
     "threads that prepare batches in advance: 0 or 1 (1 if the rank has more than one CPU)",
     INT(train.prefetch, 0, 1)},
    {"fast-dev-run", 0, "[N]", NULL,
     "run one epoch with N batches (1) per stage, without checkpoints", CALL(set_fast_dev_run)},

    {"log-every", 0, "N", "Files and reports", "report the loss every N steps (10)",
     COUNT(train.log_every, 1)},
    {"log-dir", 0, "DIR", NULL, "write metrics.csv and TensorBoard event files to DIR",
     STRING(train.log_dir)},
    {"checkpoint-dir", 0, "DIR", NULL, "write checkpoints to DIR", STRING(train.checkpoint_dir)},
    {"monitor", 0, "NAME", NULL,
     "keep the checkpoints with the best value NAME, e.g. val_loss; default: the newest",
     STRING(train.monitor)},
    {"monitor-mode", 0, "MODE", NULL, "min (default) or max is better", MODE(train.monitor_max)},
    {"save-top-k", 0, "K", NULL, "keep K checkpoints (1); 0 = none, -1 = all",
     INT(train.save_top_k, -1, 1000000)},
    {"save-last", 0, NULL, NULL, "also keep the newest checkpoint as last.ckpt",
     TRUE(train.save_last)},
    {"save-weights-only", 0, NULL, NULL,
     "write checkpoints without optimizer state: for --weights, not for --resume",
     TRUE(train.weights_only)},
    {"weights", 0, "FILE", NULL,
     "start with the parameters of a checkpoint or of any safetensors file, or of several by "
     "their index.json; everything else starts anew",
     STRING(train.weights)},
    {"weights-map", 0, "REGEX=TO[:T]", NULL,
     "change the names in --weights: the first match of REGEX becomes TO, with groups \\1 to \\9; "
     ":T transposes matrices; repeatable",
     CALL(set_weights_map)},
    {"weights-strict", 0, NULL, NULL,
     "--weights must have every parameter and buffer, and nothing else",
     TRUE(train.weights_strict)},
    {"no-ema", 0, NULL, NULL,
     "take the parameters of --weights, not their average, where the file has both (--ema)",
     TRUE(train.plain_weights)},
    {"resume", 0, "FILE", NULL,
     "continue from a checkpoint; 'last' is last.ckpt of --checkpoint-dir, if it exists",
     STRING(train.resume)},

    {"strategy", 0, "KIND", "Ranks and devices",
     "auto (default), single, dp, ddp, ddp2, horovod, sharded or pipeline",
     CHOICE(train.strategy, pl_strategy_names)},
    {"shard", 0, "WHAT", NULL,
     "with --strategy sharded: what each rank keeps a part of only: os (default), the optimizer's "
     "state; grad, also the gradients; param, also the parameters",
     CALL(set_shard)},
    {"shard-group", 0, "RANKS", NULL,
     "with --strategy sharded: the ranks that have one copy of the model between them: all "
     "(default) "
     "or node, those of each node",
     CALL(set_shard_group)},
    {"tensor-parallel", 0, "K", NULL,
     "with --strategy ddp, sharded or pipeline: ranks of a node that share each copy of the model, "
     "or each stage, in groups of K; linear layers and attentions are split among them",
     CALL(set_tensor_parallel)},
    {"stages", 0, "S", NULL,
     "with --strategy pipeline: stages of each pipeline (default: one per rank)", CALL(set_stages)},
    {"microbatches", 0, "M", NULL,
     "with --strategy pipeline: parts of each batch (default: 4 per stage)",
     CALL(set_microbatches)},
    {"schedule", 0, "KIND", NULL, "with --strategy pipeline: 1f1b (default) or gpipe",
     CALL(set_schedule)},
    {"balance-every", 0, "P", NULL,
     "with --strategy pipeline: steps between looks at the stages' times (default: 20; 0: the cut "
     "never moves)",
     CALL(set_balance)},
    {"accelerator", 0, "KIND", NULL,
     "auto (default: a GPU that was measured, so far an NVIDIA H100, and passes a short test; else "
     "the CPU), cpu, gpu (NVIDIA) or tpu (not yet tried on a real TPU)",
     CALL(set_accelerator)},
    {"pjrt-plugin", 0, "FILE", NULL,
     "as --accelerator tpu, with this plugin of PJRT in place of libtpu.so", CALL(set_pjrt_plugin)},
    {"tpu-cores", 0, "N", NULL,
     "the same as --accelerator tpu --devices N; [K] is core K alone, from 1 on",
     CALL(set_tpu_cores)},
    {"dump-stablehlo", 0, "FILE", NULL,
     "with --accelerator tpu: write the text of each program that is compiled to FILE",
     STRING(dump)},
    {"no-program-cache", 0, NULL, NULL,
     "with --accelerator tpu: keep no compiled programs in ~/.plume, and use none",
     TRUE(no_program_cache)},
    {"compare-devices", 0, NULL, NULL,
     "train some steps on each kind of device, recommend one, and exit", TRUE(compare)},
    {"test-gpus", 0, NULL, NULL,
     "test the GPUs (products, attention, all-reduce) against the CPU and exit; without MODULE",
     TRUE(test_gpus)},
    {"sync-batchnorm", 0, NULL, NULL, "batch normalization over the batches of all ranks",
     TRUE(train.sync_batchnorm)},
    {"devices", 0, "K", NULL,
     "devices per node: auto (default), a number or a list; one rank per device, with dp and ddp2 "
     "one process for all",
     CALL(set_devices)},
    {"gpus", 0, "K", NULL, "the same as --accelerator gpu --devices K", CALL(set_gpus)},
    {"tf32", 0, NULL, NULL, "let GPUs round the inputs of 32-bit matmul and convolution to TF32",
     TRUE(tf32)},
    {"no-cuda-graphs", 0, NULL, NULL,
     "launch each kernel of each step instead of replaying CUDA graphs", FALSE(train.graphs)},
    {"recompute", 0, NULL, NULL,
     "compute tensors of a training step again in its backward pass, where that saves "
     "memory",
     TRUE(train.recompute)},
    {"summary", 0, NULL, NULL,
     "print parameters, shapes, operations and memory of the model before the run",
     TRUE(train.summary)},
    {"profile", 0, "[FILE]", NULL,
     "rank 0 prints at the end how long each op of a training step took (slower); with =FILE it "
     "writes a timeline for chrome://tracing or Perfetto",
     CALL(set_profile)},
    {"comm", 0, "KIND", NULL,
     "how ranks communicate: auto (shared memory on a node; between nodes mpi if MPI started the "
     "job, else tcp; NCCL for GPUs if possible), shm, tcp, mpi, or nccl (NCCL for GPUs, else an "
     "error)",
     CALL(set_comm)},
    {"collective-timeout", 0, "SECONDS", NULL,
     "warn if ranks are missing in a collective, or a hook has not returned, for SECONDS (60; 0 = "
     "never)",
     REAL(limits.warn_s, 0)},
    {"collective-limit", 0, "SECONDS", NULL,
     "end the run if ranks are missing in a collective for SECONDS (0 = never)",
     REAL(limits.end_s, 0)},
    {"host-timeout", 0, "SECONDS", NULL, "a host that acknowledges no data for SECONDS is lost (4)",
     INT(limits.host_s, 2, 120)},
    {"reduce-dtype", 0, "TYPE", NULL,
     "type in which NCCL reduces gradients: f32 (default), or bf16 or f16 for half the bytes "
     "(with --comm nccl)",
     CHOICE(train.reduce_in, reduce_dtypes)},

    {"processes", 0, "N", "Without a launcher", "start N ranks on this machine",
     INT(processes, 1, 1024)},
    {"num-nodes", 0, "N", NULL, "simulate N nodes with --processes ranks each",
     INT(nodes, 1, 1024)},
    {"processes-per-node", 0, "N", NULL, "with --processes: simulate nodes with N ranks each",
     INT(per_node, 1, 1024)},

    /* Names of PyTorch Lightning, and hyper-parameters that belong after MODULE: not in --help. */
    {"num-tpu-cores", 0, "N", NULL, NULL, CALL(set_tpu_cores)},
    {"num-processes", 0, "N", NULL, NULL, INT(processes, 1, 1024)},
    {"nb-gpu-nodes", 0, "N", NULL, NULL, INT(nodes, 1, 1024)},
    {"distributed-backend", 0, "KIND", NULL, NULL, CALL(set_backend)},
    {"use-amp", 0, "[BOOL]", NULL, NULL, CALL(set_use_amp)},
    {"max-epochs", 0, "N", NULL, NULL, CALL(set_epochs)},
    {"batch-size", 0, "N", NULL, NULL, CALL(set_common_hparam)},
    {"lr", 0, "X", NULL, NULL, CALL(set_common_hparam)},
    {"momentum", 0, "X", NULL, NULL, CALL(set_common_hparam)},
    {"weight-decay", 0, "X", NULL, NULL, CALL(set_common_hparam)},
    {0},
};

static const struct pl_command command = {
    .name = "pltrain",
    .synopsis = "[OPTIONS] MODULE [--NAME VALUE...]",
    .summary = "Trains MODULE: the name of a bundled module (mlp) or the path of a shared object. "
               "Under plrun the process is one rank of the run. After MODULE, --NAME VALUE sets a "
               "hyper-parameter.",
    .footer = "Exit status: 0 done, 1 failed, 2 usage, 3 no such module, 130 interrupted.",
    .options = options,
    .underscores = true,
    .explain = pl_pltrain_explain,
    .explain_value = pl_pltrain_explain_value,
};

int pl_pltrain_explain_unknown(const char *assignment, struct pl_error *err)
{
    bool named = strstr(pl_error_text(err), "did you mean") != NULL;
    _cleanup_free_ char *name = strndup(assignment, strcspn(assignment, "="));
    struct pl_near near = {.word = name ? name : ""};
    int r = pl_pltrain_explain_hparam(assignment, err);

    if (r < 0 || named)
        return r;
    for (const struct pl_option *o = options; o->name; o++)
        if (o->help)
            pl_near_offer(&near, o->name);
    return near.best ? pl_error_set(err, -EINVAL, "unknown option '--%.100s': did you mean --%s?",
                                    near.word, near.best)
                     : 0;
}

/* "--NAME VALUE" or "--NAME=VALUE" of a hyper-parameter; returns the number of words, or an error.
 */
static int take_hparam(struct pl_pltrain *p, int argc, char **argv, struct pl_error *err)
{
    const char *word = argv[0] + 2, *equals = strchr(word, '=');

    /* Rather a misspelt option without a value than a hyper-parameter whose value is an option. */
    if (!equals && (argc < 2 || strncmp(argv[1], "--", 2) == 0))
        return pl_pltrain_explain_unknown(word, err) < 0
                   ? -EINVAL
                   : pl_error_set(err, -EINVAL,
                                  "'%s' is not an option, and a hyper-parameter needs a value: "
                                  "%s VALUE",
                                  argv[0], argv[0]);
    if (!equals)
        return pl_pltrain_add_hparam(p, word, argv[1], err) < 0 ? err->code : 2;
    p->hparams[p->n_hparams++] = word;
    return 1;
}

/* True for an option whose value, which may be left out, needs a '='. */
static bool takes_optional(const char *word)
{
    const struct pl_option *o = pl_options_find(&command, word);

    return o && o->arg && o->arg[0] == '[' && !strchr(word, '=');
}

static int parse_after_module(
    struct pl_pltrain *p, int argc, char **argv, bool *ret_done, struct pl_error *err)
{
    for (int i = 0; i < argc && !*ret_done;) {
        const struct pl_option *o = pl_options_find(&command, argv[i]);
        bool builtin = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0;
        char *words[4] = {argv[i], argv[i], i + 1 < argc ? argv[i + 1] : NULL, NULL};
        int n = o && o->arg && o->arg[0] != '[' && !strchr(argv[i], '=') ? 2 : 1, rest, r;

        if (o || builtin) {
            r = pl_options_parse(&command, PL_MIN(n, argc - i) + 1, words, p, &rest, ret_done, err);
            if (r < 0)
                return r;
        } else if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            n = take_hparam(p, argc - i, argv + i, err);
            if (n < 0)
                return n;
        } else if (i > 0 && argv[i][0] != '-' && takes_optional(argv[i - 1])) {
            return pl_error_set(err, -EINVAL, "'%s' after %s: write %s=%s", argv[i], argv[i - 1],
                                argv[i - 1], argv[i]);
        } else {
            return pl_error_set(err, -EINVAL,
                                argv[i][0] == '-' ? "unknown option '%s': see pltrain --help"
                                : strchr(argv[i], '=')
                                    ? "'%s': more than one module given: for a hyper-parameter "
                                      "write --NAME VALUE"
                                    : "'%s': more than one module given",
                                argv[i]);
        }
        i += n;
    }
    return 0;
}

int pl_pltrain_init(struct pl_pltrain *p, int argc, struct pl_error *err)
{
    *p = (struct pl_pltrain){
        .hparams = calloc((size_t)argc + 1, sizeof(*p->hparams)),
        .owned = calloc((size_t)argc + 1, sizeof(*p->owned)),
        .weights_maps = calloc((size_t)argc + 1, sizeof(*p->weights_maps)),
        .train = pl_train_options_default(),
        .limits = pl_comm_limits,
        .auto_gpu = true,
    };
    p->train.out = stdout;
    p->train.sanity_steps = 2;
    p->train.stop.patience = PL_PLTRAIN_PATIENCE;
    p->train.weights_maps = p->weights_maps;
    return p->hparams && p->owned && p->weights_maps ? 0
                                                     : pl_error_set(err, -ENOMEM, "out of memory");
}

void pl_pltrain_finish(struct pl_pltrain *p)
{
    while (p->n_owned)
        free(p->owned[--p->n_owned]);
    free(p->owned);
    free(p->trial_checkpoints);
    free(p->trial_run);
    free(p->hparams);
    free(p->weights_maps);
}

/* Options that change from attempt to attempt, or when a run that has failed is tried again: how
 * long it may take, on what it runs, what it reports. */
static bool says_how(const char *name)
{
    static const char *const names[] = {"resume",
                                        "max-time",
                                        "num-workers",
                                        "log-every",
                                        "log-dir",
                                        "summary",
                                        "profile",
                                        "accelerator",
                                        "pjrt-plugin",
                                        "tpu-cores",
                                        "num-tpu-cores",
                                        "dump-stablehlo",
                                        "devices",
                                        "gpus",
                                        "no-program-cache",
                                        "no-cuda-graphs",
                                        "recompute",
                                        "comm",
                                        "collective-timeout",
                                        "collective-limit",
                                        "processes",
                                        "num-processes",
                                        "host-timeout",
                                        "processes-per-node",
                                        "num-nodes",
                                        "nb-gpu-nodes"};

    for (size_t i = 0; i < PL_COUNT(names); i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

/* A digest of the other words, by which a trial knows a run again. The caller frees. -ENOMEM. */
static int digest_options(int argc, char **argv, char **ret)
{
    uint8_t digest[PL_SHA256_BYTES];
    struct pl_sha256 sha;
    uint64_t id;

    pl_sha256_init(&sha);
    for (int i = 1; i < argc; i++) {
        const struct pl_option *o = pl_options_find(&command, argv[i]);
        bool how = o && says_how(o->name);

        if (!how)
            pl_sha256_add(&sha, argv[i], strlen(argv[i]) + 1);
        if (how && o->arg && o->arg[0] != '[' && !strchr(argv[i], '='))
            i++;
    }
    pl_sha256_final(&sha, digest);
    memcpy(&id, digest, sizeof(id));
    *ret = pl_strf("%016llx", (unsigned long long)id);
    return *ret ? 0 : -ENOMEM;
}

/* A trial of plsubmit --requeue-on goes on where it was: it needs a folder of its own. */
static int keep_in_trial(struct pl_pltrain *p, int argc, char **argv, struct pl_error *err)
{
    const char *trial = pl_env_text(PL_ENV_PLUME_TRIAL_DIR);

    if (p->train.checkpoint_dir || p->train.run != PL_RUN_TRAIN || p->compare || p->list ||
        !trial || !pl_env_text(PL_ENV_PLUME_REQUEUE_ON))
        return 0;
    p->trial_checkpoints = pl_trial_checkpoints(trial, p->module, p->hparams, p->n_hparams);
    p->train.checkpoint_dir = p->trial_checkpoints;
    return p->trial_checkpoints && digest_options(argc, argv, &p->trial_run) == 0
               ? 0
               : pl_error_nomem(err);
}

int pl_pltrain_parse(
    struct pl_pltrain *p, int argc, char **argv, bool *ret_done, struct pl_error *err)
{
    int rest, r = pl_options_parse(&command, argc, argv, p, &rest, ret_done, err);

    if (r < 0)
        return r;
    if (!*ret_done && p->test_gpus && rest == argc)
        return 0;
    if (!*ret_done && rest == argc)
        return pl_error_set(err, -EINVAL, "no module given: see pltrain --help");
    if (!*ret_done)
        r = parse_after_module(p, argc - rest - 1, argv + rest + 1, ret_done, err);
    if (r < 0 || *ret_done)
        return r;
    p->module = argv[rest];
    r = keep_in_trial(p, argc, argv, err);
    return r == 0 ? pl_pltrain_check(p, err) : r;
}
