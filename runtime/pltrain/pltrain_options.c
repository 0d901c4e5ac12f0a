/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/pltrain_options.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/optim/precision.h"
#include "runtime/engine/reduce/strategy.h"

#include <math.h>
#include <string.h>

enum option_id {
    OPT_HPARAM,
    OPT_LIST_HPARAMS,
    OPT_SEED,
    OPT_DETERMINISTIC,
    OPT_OPTIMIZER,
    OPT_PRECISION,
    OPT_AMP_LEVEL,
    OPT_ACCUMULATE,
    OPT_CLIP,
    OPT_CLIP_BY,
    OPT_EPOCHS,
    OPT_MIN_EPOCHS,
    OPT_MAX_STEPS,
    OPT_MIN_STEPS,
    OPT_MAX_TIME,
    OPT_LIMIT_TRAIN,
    OPT_LIMIT_VAL,
    OPT_LIMIT_TEST,
    OPT_VAL_CHECK,
    OPT_VAL_EVERY,
    OPT_SANITY,
    OPT_OVERFIT,
    OPT_WORKERS,
    OPT_FAST_DEV_RUN,
    OPT_EARLY_STOP,
    OPT_EARLY_STOP_MODE,
    OPT_PATIENCE,
    OPT_MIN_DELTA,
    OPT_LOG_EVERY,
    OPT_LOG_DIR,
    OPT_CHECKPOINT_DIR,
    OPT_MONITOR,
    OPT_MONITOR_MODE,
    OPT_SAVE_TOP_K,
    OPT_SAVE_LAST,
    OPT_SAVE_WEIGHTS_ONLY,
    OPT_RESUME,
    OPT_WEIGHTS,
    OPT_STRATEGY,
    OPT_ACCELERATOR,
    OPT_SYNC_BATCHNORM,
    OPT_DEVICES,
    OPT_GPUS,
    OPT_TF32,
    OPT_NO_GRAPHS,
    OPT_COMM,
    OPT_REDUCE_DTYPE,
    OPT_PROCESSES,
    OPT_NODES,
    OPT_PER_NODE,
};

static const struct pl_option options[] = {
    {"hparam", 0, "NAME=VALUE", "Training", "set a hyper-parameter; repeatable", OPT_HPARAM},
    {"list-hparams", 0, NULL, NULL, "show the module's hyper-parameters and exit",
     OPT_LIST_HPARAMS},
    {"seed", 0, "N", NULL, "seed of the initial parameters and of shuffling (0)", OPT_SEED},
    {"deterministic", 0, NULL, NULL,
     "add gradients in the order of ranks: the result has the same bits on any nodes and with any "
     "--comm (slower between nodes)",
     OPT_DETERMINISTIC},
    {"optimizer", 0, "KIND", NULL,
     "sgd (default), adam or adamw, if the module does not choose one", OPT_OPTIMIZER},
    {"precision", 0, "BITS", NULL, "32 (default), 64, bf16 or 16; bf16 and 16 are mixed precision",
     OPT_PRECISION},
    {"amp-level", 0, "LEVEL", NULL,
     "mixed precision as in NVIDIA Apex: O0 off, O1 matmul and convolution (default), O2 also "
     "weights, O3 all",
     OPT_AMP_LEVEL},
    {"accumulate", 0, "N", NULL,
     "accumulate the gradients of N batches per optimizer step (1); 1,5:4 = four from epoch 5",
     OPT_ACCUMULATE},
    {"clip", 0, "VALUE", NULL, "clip gradients to VALUE (0 = off)", OPT_CLIP},
    {"clip-by", 0, "HOW", NULL, "norm (default): the L2 norm of all gradients; value: each element",
     OPT_CLIP_BY},

    {"epochs", 0, "N", "Duration", "the same as --hparam epochs=N", OPT_EPOCHS},
    {"min-epochs", 0, "N", NULL, "no early stopping before N epochs", OPT_MIN_EPOCHS},
    {"max-steps", 0, "N", NULL, "stop after N optimizer steps", OPT_MAX_STEPS},
    {"min-steps", 0, "N", NULL, "no early stopping before N optimizer steps", OPT_MIN_STEPS},
    {"max-time", 0, "TIME", NULL, "stop after TIME, in a format of Slurm: MINUTES, HH:MM:SS, D-HH",
     OPT_MAX_TIME},
    {"early-stop", 0, "NAME", NULL,
     "stop when the logged value NAME, e.g. val_loss, stops improving", OPT_EARLY_STOP},
    {"early-stop-mode", 0, "MODE", NULL, "min (default) or max is better", OPT_EARLY_STOP_MODE},
    {"patience", 0, "N", NULL, "stop after N validations without improvement (3)", OPT_PATIENCE},
    {"min-delta", 0, "X", NULL, "a change below X is no improvement (0)", OPT_MIN_DELTA},

    {"limit-train-batches", 0, "N", "Batches",
     "batches per epoch: a number, or with a decimal point a fraction: 0.1", OPT_LIMIT_TRAIN},
    {"limit-val-batches", 0, "N", NULL, "the same for each validation", OPT_LIMIT_VAL},
    {"limit-test-batches", 0, "N", NULL, "the same for the test", OPT_LIMIT_TEST},
    {"val-check-interval", 0, "N", NULL,
     "validate every N batches, or with a decimal point every fraction of an epoch (1.0)",
     OPT_VAL_CHECK},
    {"check-val-every-n-epoch", 0, "N", NULL, "validate only in every Nth epoch (1)",
     OPT_VAL_EVERY},
    {"num-sanity-val-steps", 0, "N", NULL, "run N validation batches before training (2)",
     OPT_SANITY},
    {"overfit-batches", 0, "N", NULL,
     "train on the same N batches in every epoch (number or fraction; 0 = off)", OPT_OVERFIT},
    {"num-workers", 0, "N", NULL,
     "threads that prepare batches in advance: 0 or 1 (1 if the rank has more than one CPU)",
     OPT_WORKERS},
    {"fast-dev-run", 0, "[N]", NULL,
     "run one epoch with N batches (1) per stage, without checkpoints", OPT_FAST_DEV_RUN},

    {"log-every", 0, "N", "Files and reports", "report the loss every N steps (10)", OPT_LOG_EVERY},
    {"log-dir", 0, "DIR", NULL, "write metrics.csv and TensorBoard event files to DIR",
     OPT_LOG_DIR},
    {"checkpoint-dir", 0, "DIR", NULL, "write checkpoints to DIR", OPT_CHECKPOINT_DIR},
    {"monitor", 0, "NAME", NULL,
     "keep the checkpoints with the best value NAME, e.g. val_acc; default: the newest",
     OPT_MONITOR},
    {"monitor-mode", 0, "MODE", NULL, "min (default) or max is better", OPT_MONITOR_MODE},
    {"save-top-k", 0, "K", NULL, "keep K checkpoints (1); 0 = none, -1 = all", OPT_SAVE_TOP_K},
    {"save-last", 0, NULL, NULL, "also keep the newest checkpoint as last.ckpt", OPT_SAVE_LAST},
    {"save-weights-only", 0, NULL, NULL,
     "write checkpoints without optimizer state: for --weights, not for --resume",
     OPT_SAVE_WEIGHTS_ONLY},
    {"weights", 0, "FILE", NULL,
     "start with the parameters of a checkpoint; everything else starts anew", OPT_WEIGHTS},
    {"resume", 0, "FILE", NULL,
     "continue from a checkpoint; 'last' is last.ckpt of --checkpoint-dir, if it exists",
     OPT_RESUME},

    {"strategy", 0, "KIND", "Ranks and devices", "auto (default), single, dp, ddp, ddp2 or horovod",
     OPT_STRATEGY},
    {"accelerator", 0, "KIND", NULL,
     "auto (default; the CPU), cpu or gpu (NVIDIA; not yet tried on a real GPU)", OPT_ACCELERATOR},
    {"sync-batchnorm", 0, NULL, NULL, "batch normalization over the batches of all ranks",
     OPT_SYNC_BATCHNORM},
    {"devices", 0, "K", NULL,
     "devices per node: auto (default), a number or a list; one rank per device, with dp and ddp2 "
     "one process for all",
     OPT_DEVICES},
    {"gpus", 0, "K", NULL, "the same as --accelerator gpu --devices K", OPT_GPUS},
    {"tf32", 0, NULL, NULL, "let GPUs round the inputs of 32-bit matmul and convolution to TF32",
     OPT_TF32},
    {"no-cuda-graphs", 0, NULL, NULL,
     "launch each kernel of each step instead of replaying CUDA graphs", OPT_NO_GRAPHS},
    {"comm", 0, "KIND", NULL,
     "how ranks communicate: auto (shared memory on a node; between nodes mpi if MPI started the "
     "job, else tcp; NCCL for GPUs if possible), shm, tcp, mpi, or nccl (NCCL for GPUs, else an "
     "error)",
     OPT_COMM},
    {"reduce-dtype", 0, "TYPE", NULL,
     "type in which NCCL reduces gradients: f32 (default), or bf16 or f16 for half the bytes "
     "(with --comm nccl)",
     OPT_REDUCE_DTYPE},

    {"processes", 0, "N", "Without a launcher", "start N ranks on this machine", OPT_PROCESSES},
    {"num-nodes", 0, "N", NULL, "simulate N nodes with --processes ranks each", OPT_NODES},
    {"processes-per-node", 0, "N", NULL, "with --processes: simulate nodes with N ranks each",
     OPT_PER_NODE},
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
};

/* *ret = which of the words it is; they end with NULL. */
static int
parse_choice(const char *value, const char *const *words, int64_t *ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf list = {0};

    for (size_t i = 0; words[i]; i++) {
        if (strcmp(value, words[i]) == 0) {
            *ret = (int64_t)i;
            return 0;
        }
        if (pl_buf_addf(&list, "%s%s", i ? ", " : "", words[i]) < 0)
            return pl_error_set(err, -ENOMEM, "out of memory");
    }
    return pl_error_set(err, -EINVAL, "'%s' is none of %s", value, pl_buf_str(&list));
}

static int parse_mode(const char *value, bool *ret_max, struct pl_error *err)
{
    int64_t which;
    int r = parse_choice(value, (const char *const[]){"min", "max", NULL}, &which, err);

    if (r == 0)
        *ret_max = which == 1;
    return r;
}

static int parse_count(const char *value, int64_t min, uint64_t *ret, struct pl_error *err)
{
    int64_t number;
    int r = pl_parse_int(value, min, INT64_MAX, &number, err);

    if (r == 0)
        *ret = (uint64_t)number;
    return r;
}

static int parse_real(const char *value, double min, double *ret, struct pl_error *err)
{
    double number;
    int r = pl_parse_double(value, &number, err);

    if (r == 0 && !(number >= min && isfinite(number)))
        r = pl_error_set(err, -ERANGE, "'%s' must be a number from %g on", value, min);
    if (r == 0)
        *ret = number;
    return r;
}

/* N, and behind it EPOCH:N as often as need be, by ascending epochs (the first is 1). */
static int parse_accumulate(const char *value, struct pl_train_options *t, struct pl_error *err)
{
    _cleanup_free_ char *copy = strdup(value);
    char *rest = copy, *word = strsep(&rest, ","), *n;
    uint64_t last = 0;
    int r;

    if (!copy)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = parse_count(word, 1, &t->accumulate, err);
    t->n_accumulate_from = 0;
    while (r == 0 && (word = strsep(&rest, ","))) {
        struct pl_accumulate *a = &t->accumulate_from[t->n_accumulate_from];

        n = strchr(word, ':');
        if (!n || t->n_accumulate_from == PL_ACCUMULATE_MAX)
            return pl_error_set(err, -EINVAL, "'%s' is not N,EPOCH:N,... (%d times at most)", value,
                                PL_ACCUMULATE_MAX);
        *n++ = '\0';
        r = parse_count(word, 1, &a->epoch, err);
        if (r == 0)
            r = parse_count(n, 1, &a->n, err);
        if (r == 0 && a->epoch <= last)
            r = pl_error_set(err, -EINVAL, "epochs must ascend");
        last = a->epoch--;
        t->n_accumulate_from++;
    }
    return r;
}

/* A share has a point in it: 1.0 is all, 1 is one. */
static int parse_limit(const char *value, struct pl_limit *ret, struct pl_error *err)
{
    struct pl_limit limit = {.is_share = strchr(value, '.') != NULL};
    int r = parse_real(value, 0, &limit.value, err);

    if (r < 0)
        return r;
    if (limit.is_share ? limit.value > 1 : limit.value != floor(limit.value))
        return pl_error_set(
            err, -ERANGE, "'%s' is neither a whole number of batches nor a share up to 1.0", value);
    *ret = limit;
    return 0;
}

/* "auto", a number, or a list of devices that differ; "3," is the list of device 3. */
static int parse_devices(struct pl_pltrain *p, const char *value, struct pl_error *err)
{
    _cleanup_free_ char *copy = strdup(value);
    char *rest = copy, *word;
    int64_t device;
    int r;

    if (!copy)
        return pl_error_set(err, -ENOMEM, "out of memory");
    p->n_device = 0;
    p->devices = 0;
    if (strcmp(value, "auto") == 0)
        return 0;
    if (!strchr(value, ','))
        return pl_parse_int(value, 1, PL_PLTRAIN_DEVICES_MAX, &p->devices, err);
    while ((word = strsep(&rest, ","))) {
        if (!rest && !*word && p->n_device)
            break;
        r = pl_parse_int(word + strspn(word, " "), 0, 1023, &device, err);
        if (r < 0)
            return r;
        if (p->n_device == PL_PLTRAIN_DEVICES_MAX)
            return pl_error_set(err, -E2BIG, "a node has at most %d devices",
                                PL_PLTRAIN_DEVICES_MAX);
        for (size_t i = 0; i < p->n_device; i++)
            if (p->device[i] == (unsigned)device)
                return pl_error_set(err, -EINVAL, "device %lld is there twice", (long long)device);
        p->device[p->n_device++] = (unsigned)device;
    }
    p->devices = (int64_t)p->n_device;
    return 0;
}

static int parse_comm(struct pl_pltrain *p, const char *value, struct pl_error *err)
{
    static const char *const names[] = {"auto", "shm", "tcp", "mpi", "nccl", NULL};
    int64_t n = PL_COMM_AUTO;
    int r = parse_choice(value, names, &n, err);

    p->nccl = n > PL_COMM_MPI     ? PL_NCCL_ALWAYS
              : n == PL_COMM_AUTO ? PL_NCCL_IF_POSSIBLE
                                  : PL_NCCL_NEVER;
    p->comm = n > PL_COMM_MPI ? PL_COMM_AUTO : (enum pl_comm_kind)n;
    return r;
}

static int parse_reduce(struct pl_pltrain *p, const char *value, struct pl_error *err)
{
    int64_t n = 0;
    int r = parse_choice(value, (const char *const[]){"f32", "bf16", "f16", NULL}, &n, err);

    p->train.reduce_in = (enum pl_half)n; /* in its order */
    return r;
}

static int parse_accelerator(struct pl_pltrain *p, const char *value, struct pl_error *err)
{
    int64_t which = 0;
    int r = parse_choice(value, (const char *const[]){"auto", "cpu", "gpu", NULL}, &which, err);

    p->gpu = which == 2;
    return r;
}

static int set_length(struct pl_pltrain *p, int id, const char *value, struct pl_error *err)
{
    struct pl_train_options *t = &p->train;
    uint64_t n;
    int r;

    switch (id) {
    case OPT_EPOCHS:
        r = parse_count(value, 0, &n, err);
        if (r == 0) {
            snprintf(p->epochs, sizeof(p->epochs), "epochs=%llu", (unsigned long long)n);
            p->hparams[p->n_hparams++] = p->epochs;
        }
        return r;
    case OPT_MIN_EPOCHS:
        return parse_count(value, 0, &t->min_epochs, err);
    case OPT_MAX_STEPS:
        return parse_count(value, 0, &t->max_steps, err);
    case OPT_MIN_STEPS:
        return parse_count(value, 0, &t->min_steps, err);
    case OPT_MAX_TIME:
        r = pl_parse_slurm_time(value, &n, err);
        if (r == 0)
            t->max_seconds = n == UINT64_MAX ? INFINITY : (double)n;
        return r;
    case OPT_EARLY_STOP:
        t->stop.monitor = value;
        return 0;
    case OPT_EARLY_STOP_MODE:
        return parse_mode(value, &t->stop.maximize, err);
    case OPT_PATIENCE:
        return parse_count(value, 0, &t->stop.patience, err);
    default:
        return parse_real(value, 0, &t->stop.min_delta, err);
    }
}

static int set_batches(struct pl_train_options *t, int id, const char *value, struct pl_error *err)
{
    int64_t n = 0;
    int r;

    switch (id) {
    case OPT_LIMIT_TRAIN:
        return parse_limit(value, &t->limit[0], err);
    case OPT_LIMIT_VAL:
        return parse_limit(value, &t->limit[1], err);
    case OPT_LIMIT_TEST:
        return parse_limit(value, &t->limit[2], err);
    case OPT_VAL_CHECK:
        r = parse_limit(value, &t->val_check, err);
        return r == 0 && t->val_check.value == 0 ? pl_error_set(err, -ERANGE, "must not be 0") : r;
    case OPT_VAL_EVERY:
        return parse_count(value, 1, &t->val_every, err);
    case OPT_SANITY:
        return parse_count(value, 0, &t->sanity_steps, err);
    case OPT_OVERFIT:
        return parse_limit(value, &t->overfit, err);
    case OPT_WORKERS:
        r = pl_parse_int(value, 0, 1, &n, err);
        t->prefetch = (int)n;
        return r;
    default:
        t->fast_dev_run = 1;
        return value ? parse_count(value, 1, &t->fast_dev_run, err) : 0;
    }
}

static int set_file(struct pl_train_options *t, int id, const char *value, struct pl_error *err)
{
    int64_t n;
    int r;

    switch (id) {
    case OPT_LOG_EVERY:
        return parse_count(value, 1, &t->log_every, err);
    case OPT_LOG_DIR:
        t->log_dir = value;
        return 0;
    case OPT_CHECKPOINT_DIR:
        t->checkpoint_dir = value;
        return 0;
    case OPT_MONITOR:
        t->monitor = value;
        return 0;
    case OPT_MONITOR_MODE:
        return parse_mode(value, &t->monitor_max, err);
    case OPT_SAVE_TOP_K:
        r = pl_parse_int(value, -1, 1000000, &n, err);
        if (r == 0)
            t->save_top_k = (int)n;
        return r;
    case OPT_SAVE_LAST:
        t->save_last = true;
        return 0;
    case OPT_SAVE_WEIGHTS_ONLY:
        t->weights_only = true;
        return 0;
    case OPT_WEIGHTS:
        t->weights = value;
        return 0;
    default:
        t->resume = value;
        return 0;
    }
}

static int set_ranks(struct pl_pltrain *p, int id, const char *value, struct pl_error *err)
{
    int64_t n = 0;
    int r;

    switch (id) {
    case OPT_STRATEGY:
        r = parse_choice(value, pl_strategy_names, &n, err);
        p->train.strategy = (enum pl_strategy_kind)n;
        return r;
    case OPT_ACCELERATOR:
        return parse_accelerator(p, value, err);
    case OPT_SYNC_BATCHNORM:
        p->train.sync_batchnorm = true;
        return 0;
    case OPT_DEVICES:
        return parse_devices(p, value, err);
    case OPT_GPUS:
        p->gpu = true;
        return parse_devices(p, value, err);
    case OPT_TF32:
        p->tf32 = true;
        return 0;
    case OPT_NO_GRAPHS:
        p->train.graphs = false;
        return 0;
    case OPT_COMM:
        return parse_comm(p, value, err);
    case OPT_REDUCE_DTYPE:
        return parse_reduce(p, value, err);
    case OPT_PROCESSES:
        return pl_parse_int(value, 1, 1024, &p->processes, err);
    case OPT_NODES:
        return pl_parse_int(value, 1, 1024, &p->nodes, err);
    default:
        return pl_parse_int(value, 1, 1024, &p->per_node, err);
    }
}

static int set_training(struct pl_pltrain *p, int id, const char *value, struct pl_error *err)
{
    struct pl_train_options *t = &p->train;
    int64_t n = 0;
    int r;

    switch (id) {
    case OPT_HPARAM:
        p->hparams[p->n_hparams++] = value;
        return 0;
    case OPT_LIST_HPARAMS:
        p->list = true;
        return 0;
    case OPT_SEED:
        return parse_count(value, 0, &t->seed, err);
    case OPT_DETERMINISTIC:
        t->deterministic = true;
        return 0;
    case OPT_OPTIMIZER:
        return pl_optimizer_kind_parse(value, &t->optimizer, err);
    case OPT_PRECISION:
        r = parse_choice(value, pl_precision_names, &n, err);
        t->precision = (enum pl_precision)n;
        return r;
    case OPT_AMP_LEVEL:
        r = parse_choice(value, (const char *const[]){"O0", "O1", "O2", "O3", NULL}, &n, err);
        t->amp_level = (int)n;
        return r;
    case OPT_ACCUMULATE:
        return parse_accumulate(value, t, err);
    case OPT_CLIP:
        return parse_real(value, 0, &t->clip, err);
    default:
        r = parse_choice(value, (const char *const[]){"norm", "value", NULL}, &n, err);
        t->clip_by = n ? PL_CLIP_VALUE : PL_CLIP_NORM;
        return r;
    }
}

static int
set_option(void *ctx, const struct pl_option *option, const char *value, struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int id = option->id, r;

    if (id < OPT_EPOCHS)
        r = set_training(p, id, value, err);
    else if (id < OPT_LIMIT_TRAIN || (id >= OPT_EARLY_STOP && id <= OPT_MIN_DELTA))
        r = set_length(p, id, value, err);
    else if (id < OPT_EARLY_STOP)
        r = set_batches(&p->train, id, value, err);
    else if (id < OPT_STRATEGY)
        r = set_file(&p->train, id, value, err);
    else
        r = set_ranks(p, id, value, err);
    return r < 0 ? pl_error_wrap(err, r, "option '--%s'", option->name) : 0;
}

/* "--NAME VALUE" or "--NAME=VALUE" of a hyper-parameter; words it took, or an error. */
static int take_hparam(struct pl_pltrain *p, int argc, char **argv, struct pl_error *err)
{
    const char *word = argv[0] + 2, *equals = strchr(word, '=');
    char *text;

    if (!equals && argc < 2)
        return pl_error_set(err, -EINVAL, "'%s' needs a value", argv[0]);
    text = equals ? strdup(word) : pl_strf("%s=%s", word, argv[1]);
    if (!text)
        return pl_error_set(err, -ENOMEM, "out of memory");
    p->owned[p->n_owned++] = text;
    p->hparams[p->n_hparams++] = text;
    return equals ? 1 : 2;
}

static int
parse_behind(struct pl_pltrain *p, int argc, char **argv, bool *ret_done, struct pl_error *err)
{
    for (int i = 0; i < argc && !*ret_done;) {
        const struct pl_option *o = pl_options_find(&command, argv[i]);
        bool builtin = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "--version") == 0;
        char *words[4] = {argv[i], argv[i], i + 1 < argc ? argv[i + 1] : NULL, NULL};
        int n = o && o->arg && o->arg[0] != '[' && !strchr(argv[i], '=') ? 2 : 1, rest, r;

        if (o || builtin) {
            r = pl_options_parse(&command, PL_MIN(n, argc - i) + 1, words, set_option, p, &rest,
                                 ret_done, err);
            if (r < 0)
                return r;
        } else if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            n = take_hparam(p, argc - i, argv + i, err);
            if (n < 0)
                return n;
        } else {
            return pl_error_set(err, -EINVAL, "'%s': more than one module given", argv[i]);
        }
        i += n;
    }
    return 0;
}

static int check_together(const struct pl_pltrain *p, struct pl_error *err)
{
    const struct pl_train_options *t = &p->train;

    if (p->per_node && (!p->processes || p->nodes))
        return pl_error_set(err, -EINVAL,
                            "option '--processes-per-node' needs '--processes', and no "
                            "'--num-nodes'");
    if (t->deterministic && !isinf(t->max_seconds))
        return pl_error_set(err, -EINVAL,
                            "option '--deterministic' and a stop by the clock ('--max-time') "
                            "disagree: choose '--max-steps'");
    if (t->reduce_in != PL_HALF_NONE &&
        (p->nccl != PL_NCCL_ALWAYS || t->precision == PL_PRECISION_64))
        return pl_error_set(err, -EINVAL, "option '--reduce-dtype' %s",
                            p->nccl == PL_NCCL_ALWAYS ? "and '--precision 64' disagree"
                                                      : "needs '--comm nccl'");
    if (p->tf32 && !p->gpu)
        return pl_error_set(err, -EINVAL, "option '--tf32' needs '--accelerator gpu'");
    if (p->nccl == PL_NCCL_ALWAYS && (!p->gpu || t->deterministic))
        return pl_error_set(err, -EINVAL, "option '--comm nccl' %s",
                            p->gpu
                                ? "adds up in an order of its own, which '--deterministic' rules "
                                  "out"
                                : "needs '--accelerator gpu'");
    if (!t->checkpoint_dir && (t->monitor || t->save_last || t->weights_only ||
                               (t->resume && strcmp(t->resume, "last") == 0)))
        return pl_error_set(err, -EINVAL,
                            "options '--monitor', '--save-last', '--save-weights-only' and "
                            "'--resume last' need '--checkpoint-dir'");
    return 0;
}

int pl_pltrain_init(struct pl_pltrain *p, int argc, struct pl_error *err)
{
    *p = (struct pl_pltrain){
        .hparams = calloc((size_t)argc + 1, sizeof(*p->hparams)),
        .owned = calloc((size_t)argc + 1, sizeof(*p->owned)),
        .train = pl_train_options_default(),
    };
    p->train.out = stdout;
    p->train.sanity_steps = 2;
    p->train.stop.patience = 3;
    return p->hparams && p->owned ? 0 : pl_error_set(err, -ENOMEM, "out of memory");
}

void pl_pltrain_finish(struct pl_pltrain *p)
{
    while (p->n_owned)
        free(p->owned[--p->n_owned]);
    free(p->owned);
    free(p->hparams);
}

int pl_pltrain_parse(
    struct pl_pltrain *p, int argc, char **argv, bool *ret_done, struct pl_error *err)
{
    int rest, r = pl_options_parse(&command, argc, argv, set_option, p, &rest, ret_done, err);

    if (r < 0)
        return r;
    if (!*ret_done && rest == argc)
        return pl_error_set(err, -EINVAL, "no module given: see pltrain --help");
    if (!*ret_done)
        r = parse_behind(p, argc - rest - 1, argv + rest + 1, ret_done, err);
    if (r < 0 || *ret_done)
        return r;
    p->module = argv[rest];
    return check_together(p, err);
}

/* Ranks that somebody else has started: their number is theirs to say. */
static int plan_started(struct pl_pltrain *p, unsigned local_size, bool whole, struct pl_error *err)
{
    if (p->processes || p->per_node)
        return pl_error_set(err, -EINVAL,
                            "option '--processes' is for runs without a launcher, but the ranks "
                            "are started already (RANK is set, or by MPI)");
    if (!whole && p->devices && p->devices != local_size)
        return pl_error_set(err, -EINVAL,
                            "%lld devices are asked for, but %u ranks are on this node: with srun, "
                            "--ntasks-per-node=%lld",
                            (long long)p->devices, local_size, (long long)p->devices);
    return 0;
}

int pl_pltrain_plan(struct pl_pltrain *p,
                    bool started,
                    unsigned local_size,
                    unsigned *ret_ranks,
                    unsigned *ret_per_node,
                    struct pl_error *err)
{
    enum pl_strategy_kind kind = p->train.strategy;
    bool whole = kind == PL_STRATEGY_DP || kind == PL_STRATEGY_DDP2; /* a process has them all */
    int64_t per_node = p->processes ? p->processes : whole || !p->devices ? 1 : p->devices;
    int r = started ? plan_started(p, local_size, whole, err) : 0;

    if (r < 0)
        return r;
    if (!started && !whole && p->processes && p->devices && p->devices != p->processes)
        return pl_error_set(err, -EINVAL,
                            "'--devices %lld' and '--processes %lld' disagree: a rank has a device",
                            (long long)p->devices, (long long)p->processes);
    p->train.devices = whole && p->devices ? (unsigned)p->devices : 1;
    *ret_ranks = (unsigned)(per_node * PL_MAX(p->nodes, (int64_t)1));
    *ret_per_node = (unsigned)(p->nodes ? per_node : p->per_node);
    if (kind == PL_STRATEGY_SINGLE && !started && p->devices > 1)
        return pl_error_set(err, -EINVAL, "strategy single has one device, not %lld",
                            (long long)p->devices);
    return 0;
}
