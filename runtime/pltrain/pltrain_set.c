/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/pltrain_set.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/reduce/strategy.h"
#include "runtime/engine/train/weights.h"
#include "runtime/pltrain/pltrain_options.h"

#include <math.h>
#include <string.h>

int pl_pltrain_set_hparam(void *ctx,
                          const struct pl_option *o,
                          const char *value,
                          struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    p->hparams[p->n_hparams++] = value;
    return 0;
}

/* The hyper-parameter NAME=value; the caller has counted its words in pl_pltrain_init(). */
int pl_pltrain_add_hparam(struct pl_pltrain *p,
                          const char *name,
                          const char *value,
                          struct pl_error *err)
{
    char *text = pl_strf("%s=%s", name, value);

    if (!text)
        return pl_error_nomem(err);
    p->owned[p->n_owned++] = text;
    p->hparams[p->n_hparams++] = text;
    return 0;
}

int pl_pltrain_set_epochs(void *ctx,
                          const struct pl_option *o,
                          const char *value,
                          struct pl_error *err)
{
    int64_t n;
    int r = pl_parse_int(value, 0, INT64_MAX, &n, err);

    return r < 0 ? r : pl_pltrain_add_hparam(ctx, "epochs", value, err);
}

/* A hyper-parameter that each module has, before MODULE. */
int pl_pltrain_set_common_hparam(void *ctx,
                                 const struct pl_option *o,
                                 const char *value,
                                 struct pl_error *err)
{
    return pl_pltrain_add_hparam(ctx, o->name, value, err);
}

int pl_pltrain_set_weights_map(void *ctx,
                               const struct pl_option *o,
                               const char *value,
                               struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int r = pl_weights_map_check(value, err);

    if (r == 0)
        p->weights_maps[p->train.n_weights_maps++] = value;
    return r;
}

int pl_pltrain_set_optimizer(void *ctx,
                             const struct pl_option *o,
                             const char *value,
                             struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    return pl_optimizer_kind_parse(value, &p->train.optimizer, err);
}

int pl_pltrain_set_max_time(void *ctx,
                            const struct pl_option *o,
                            const char *value,
                            struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    uint64_t seconds;
    int r = pl_parse_slurm_time(value, &seconds, err);

    if (r == 0)
        p->train.max_seconds = seconds == UINT64_MAX ? INFINITY : (double)seconds;
    return r;
}

/* min or max, into a bool that is true for max. */
int pl_pltrain_set_mode(void *ctx,
                        const struct pl_option *o,
                        const char *value,
                        struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    bool *maximize = (bool *)((char *)ctx + o->target.at);
    int which;
    int r = pl_parse_choice(value, (const char *const[]){"min", "max", NULL}, &which, err);

    if (r == 0)
        *maximize = which == 1;
    *(maximize == &p->train.monitor_max ? &p->monitor_mode_given : &p->stop_mode_given) = true;
    return r;
}

static int parse_count(const char *value, uint64_t *ret, struct pl_error *err)
{
    int64_t number;
    int r = pl_parse_int(value, 1, INT64_MAX, &number, err);

    if (r == 0)
        *ret = (uint64_t)number;
    return r;
}

/* N, then any number of EPOCH:N by ascending epochs (the first is 1). */
int pl_pltrain_set_accumulate(void *ctx,
                              const struct pl_option *o,
                              const char *value,
                              struct pl_error *err)
{
    struct pl_train_options *t = &((struct pl_pltrain *)ctx)->train;
    _cleanup_free_ char *copy = strdup(value);
    char *rest = copy, *word = strsep(&rest, ","), *n;
    uint64_t last = 0;
    int r;

    if (!copy)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = parse_count(word, &t->accumulate, err);
    t->n_accumulate_from = 0;
    while (r == 0 && (word = strsep(&rest, ","))) {
        struct pl_accumulate *a = &t->accumulate_from[t->n_accumulate_from];

        n = strchr(word, ':');
        if (!n)
            return pl_error_set(err, -EINVAL,
                                "'%s' in '%s' is not EPOCH:N, such as 5:4 for 4 batches per step "
                                "from epoch 5",
                                word, value);
        if (t->n_accumulate_from == PL_ACCUMULATE_MAX)
            return pl_error_set(err, -EINVAL, "at most %d changes are allowed after the first N",
                                PL_ACCUMULATE_MAX);
        *n++ = '\0';
        r = parse_count(word, &a->epoch, err);
        if (r < 0)
            return pl_error_wrap(err, r, "EPOCH of '%s:%s'", word, n);
        r = parse_count(n, &a->n, err);
        if (r < 0)
            return pl_error_wrap(err, r, "N of '%s:%s'", word, n);
        if (a->epoch <= last)
            return pl_error_set(err, -EINVAL, "its epochs must ascend");
        last = a->epoch--;
        t->n_accumulate_from++;
    }
    return r;
}

/* A share has a decimal point: 1.0 is all batches, 1 is one batch. */
static int parse_limit(const char *value, struct pl_limit *ret, struct pl_error *err)
{
    struct pl_limit limit = {.is_share = strchr(value, '.') != NULL};
    int r = pl_parse_double(value, &limit.value, err);

    if (r < 0)
        return r;
    if (limit.value < 0)
        return pl_error_set(err, -ERANGE, "'%s' must be at least 0", value);
    if (limit.is_share ? limit.value > 1 : limit.value != floor(limit.value))
        return pl_error_set(
            err, -ERANGE, "'%s' is neither a whole number of batches nor a share up to 1.0", value);
    *ret = limit;
    return 0;
}

int pl_pltrain_set_limit(void *ctx,
                         const struct pl_option *o,
                         const char *value,
                         struct pl_error *err)
{
    return parse_limit(value, (struct pl_limit *)((char *)ctx + o->target.at), err);
}

int pl_pltrain_set_val_check(void *ctx,
                             const struct pl_option *o,
                             const char *value,
                             struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int r = parse_limit(value, &p->train.val_check, err);

    return r == 0 && p->train.val_check.value == 0 ? pl_error_set(err, -ERANGE, "must not be 0")
                                                   : r;
}

int pl_pltrain_set_fast_dev_run(void *ctx,
                                const struct pl_option *o,
                                const char *value,
                                struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    p->train.fast_dev_run = 1;
    return value ? parse_count(value, &p->train.fast_dev_run, err) : 0;
}

int pl_pltrain_set_clip(void *ctx,
                        const struct pl_option *o,
                        const char *value,
                        struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    p->clip_given = true;
    return pl_option_set_real(ctx, o, value, err);
}

int pl_pltrain_set_clip_by(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    static const char *const names[] = {
        [PL_CLIP_NORM] = "norm", [PL_CLIP_VALUE] = "value", [PL_CLIP_VALUE + 1] = NULL};
    struct pl_pltrain *p = ctx;
    int which = 0;
    int r = pl_parse_choice(value, names, &which, err);

    p->train.clip_by = (enum pl_clip)which;
    p->clip_by_given = true;
    return r;
}

int pl_pltrain_set_profile(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    if (value && !*value)
        return pl_error_set(err, -EINVAL, "must not be empty");
    p->train.profile = true;
    p->train.profile_file = value;
    return 0;
}

/* "auto", a number, or a list of different devices; "3," and "[3]" are the list of device 3. */
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
    if (!strchr(value, ',') && value[0] != '[')
        return pl_parse_int(value, 1, PL_PLTRAIN_DEVICES_MAX, &p->devices, err);
    if (copy[0] == '[' && copy[strlen(copy) - 1] == ']') { /* Python's list */
        copy[strlen(copy) - 1] = '\0';
        rest++;
    }
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
                return pl_error_set(err, -EINVAL, "device %lld is given twice", (long long)device);
        p->device[p->n_device++] = (unsigned)device;
    }
    p->devices = (int64_t)p->n_device;
    return 0;
}

/* As parse_devices(), counted from `first` on. Of one name the last one counts. */
static int take_devices(struct pl_pltrain *p,
                        const struct pl_option *o,
                        const char *value,
                        unsigned first,
                        struct pl_error *err)
{
    struct pl_pltrain_devices *given = p->given_devices;
    int r = parse_devices(p, value, err);

    for (size_t i = 0; i < p->n_device && r == 0; i++) {
        if (p->device[i] < first)
            return pl_error_set(err, -EINVAL, "cores count from 1");
        p->device[i] -= first;
    }
    while (given->option && strcmp(given->option, o->name) != 0)
        given++;
    given->option = o->name;
    given->n = p->devices;
    given->n_device = p->n_device;
    memcpy(given->device, p->device, sizeof(given->device));
    return r;
}

int pl_pltrain_set_devices(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    return take_devices(ctx, o, value, 0, err);
}

int pl_pltrain_set_gpus(void *ctx,
                        const struct pl_option *o,
                        const char *value,
                        struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    p->auto_gpu = false;
    p->gpu = true;
    return pl_pltrain_set_devices(ctx, o, value, err);
}

/* As Lightning: the first N cores, or one core by its number from 1 on, in brackets. */
int pl_pltrain_set_tpu_cores(void *ctx,
                             const struct pl_option *o,
                             const char *value,
                             struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int r = take_devices(p, o, value, 1, err);

    if (r == 0 && p->devices == 0)
        r = pl_error_set(err, -EINVAL, "give a number of cores, or one core as [K]");
    p->auto_gpu = false;
    p->tpu = p->tpu_cores = true;
    return r;
}

int pl_pltrain_set_comm(void *ctx,
                        const struct pl_option *o,
                        const char *value,
                        struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    static const char *const names[] = {"auto", "shm", "tcp", "mpi", "nccl", NULL};
    int n = PL_COMM_AUTO;
    int r = pl_parse_choice(value, names, &n, err);

    p->nccl = n > PL_COMM_MPI     ? PL_NCCL_ALWAYS
              : n == PL_COMM_AUTO ? PL_NCCL_IF_POSSIBLE
                                  : PL_NCCL_NEVER;
    p->comm = n > PL_COMM_MPI ? PL_COMM_AUTO : (enum pl_comm_kind)n;
    return r;
}

int pl_pltrain_set_accelerator(void *ctx,
                               const struct pl_option *o,
                               const char *value,
                               struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int which = 0;
    int r = pl_parse_choice(value, (const char *const[]){"auto", "cpu", "gpu", "tpu", NULL}, &which,
                            err);

    p->auto_gpu = which == 0;
    p->cpu = which == 1;
    p->gpu = which == 2;
    p->tpu = which == 3 || p->plugin || p->tpu_cores;
    return r;
}

/* A plugin is an accelerator by itself. */
int pl_pltrain_set_pjrt_plugin(void *ctx,
                               const struct pl_option *o,
                               const char *value,
                               struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    if (!*value)
        return pl_error_set(err, -EINVAL, "must not be empty");
    p->tpu = true;
    p->plugin = value;
    return 0;
}

int pl_pltrain_set_shard(void *ctx,
                         const struct pl_option *o,
                         const char *value,
                         struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int which = 0;
    int r = pl_parse_choice(value, pl_shard_names, &which, err);

    p->train.shard = PL_SHARD_OS + (enum pl_shard_kind)which;
    return r;
}

int pl_pltrain_set_shard_group(void *ctx,
                               const struct pl_option *o,
                               const char *value,
                               struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int which = 0;
    int r = pl_parse_choice(value, (const char *const[]){"all", "node", NULL}, &which, err);

    p->train.shard_in_node = which == 1;
    return r;
}

int pl_pltrain_set_tensor_parallel(void *ctx,
                                   const struct pl_option *o,
                                   const char *value,
                                   struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int64_t n;
    int r = pl_parse_int(value, 1, PL_TENSOR_PARALLEL_MAX, &n, err);

    if (r == 0)
        p->train.tensor_parallel = (unsigned)n;
    return r;
}

int pl_pltrain_set_stages(void *ctx,
                          const struct pl_option *o,
                          const char *value,
                          struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int64_t n;
    int r = pl_parse_int(value, 1, PL_STAGES_MAX, &n, err);

    if (r == 0)
        p->train.stages = (unsigned)n;
    return r;
}

int pl_pltrain_set_microbatches(void *ctx,
                                const struct pl_option *o,
                                const char *value,
                                struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int64_t n;
    int r = pl_parse_int(value, 1, PL_PIPE_MICROBATCHES_MAX, &n, err);

    if (r == 0)
        p->train.microbatches = (uint64_t)n;
    return r;
}

int pl_pltrain_set_balance(void *ctx,
                           const struct pl_option *o,
                           const char *value,
                           struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int64_t n;
    int r = pl_parse_int(value, 0, INT64_MAX, &n, err);

    if (r == 0) {
        p->train.balance_every = (uint64_t)n;
        p->balance_given = true;
    }
    return r;
}

int pl_pltrain_set_schedule(void *ctx,
                            const struct pl_option *o,
                            const char *value,
                            struct pl_error *err)
{
    struct pl_pltrain *p = ctx;
    int which = 0;
    int r = pl_parse_choice(value, pl_pipe_order_names, &which, err);

    p->train.pipe_order = (enum pl_pipe_order)which;
    p->schedule_given = true;
    return r;
}

int pl_pltrain_set_run(void *ctx,
                       const struct pl_option *o,
                       const char *value,
                       struct pl_error *err)
{
    struct pl_pltrain *p = ctx;

    if (p->train.run != PL_RUN_TRAIN && p->train.run != (enum pl_run_kind)o->target.key)
        return pl_error_set(err, -EINVAL, "a run does one of --validate, --test and --predict");
    p->train.run = (enum pl_run_kind)o->target.key;
    return 0;
}
