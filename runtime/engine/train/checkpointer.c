/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/checkpointer.h"
#include "common/base/fs.h"
#include "runtime/engine/train/train_state.h"
#include "runtime/engine/train/trainer.h"

#include <limits.h>
#include <math.h>
#include <string.h>

int pl_checkpointer_init(struct pl_checkpointer *checkpointer,
                         struct pl_trainer *t,
                         struct pl_error *err)
{
    const struct pl_train_options *o = t->options;
    int r;

    *checkpointer = (struct pl_checkpointer){
        .on = o->checkpoint_dir && !o->fast_dev_run,
        .writes = o->checkpoint_dir && !o->fast_dev_run && t->comm->rank == 0,
    };
    if (!checkpointer->on)
        return 0;
    if (checkpointer->writes && (r = pl_mkdir_p(o->checkpoint_dir, 0777, err)) < 0)
        return r;
    r = pl_retention_init(&checkpointer->best, o->checkpoint_dir, o->monitor, o->monitor_max,
                          o->save_top_k, err);
    if (r == 0 && checkpointer->writes)
        r = pl_ckpt_writer_create(&checkpointer->writer, err);
    if (r < 0)
        pl_checkpointer_finish(checkpointer);
    return r;
}

void pl_checkpointer_finish(struct pl_checkpointer *checkpointer)
{
    pl_ckpt_writer_destroy(checkpointer->writer);
    pl_retention_finish(&checkpointer->best);
    *checkpointer = (struct pl_checkpointer){0};
}

/* What callbacks remember: {"early_stopping":{...},"model_checkpoint":{...}} */
static int callbacks_of(const struct pl_checkpointer *checkpointer,
                        const struct pl_trainer *t,
                        struct pl_buf *ret)
{
    int r =
        pl_buf_addf(ret, "{\"early_stopping\":{\"any\":%d,\"waited\":%llu,\"best\":", t->stop.any,
                    (unsigned long long)t->stop.waited);

    if (r == 0)
        r = pl_json_add_double(ret, t->stop.best);
    if (r == 0)
        r = pl_buf_adds(ret, "},\"model_checkpoint\":");
    if (r == 0)
        r = pl_retention_save(&checkpointer->best, ret);
    return r == 0 ? pl_buf_adds(ret, "}") : r;
}

static void
take_callbacks(struct pl_checkpointer *checkpointer, struct pl_trainer *t, const char *json)
{
    _cleanup_free_ char *stop = json ? pl_json_get_text(json, "early_stopping") : NULL;
    _cleanup_free_ char *best = json ? pl_json_get_text(json, "model_checkpoint") : NULL;
    int64_t any = 0, waited = 0;
    double value = 0;

    if (stop && pl_mini_get_int(stop, "any", &any) == 0 &&
        pl_mini_get_int(stop, "waited", &waited) == 0 &&
        pl_json_get_double(stop, "best", &value) == 0)
        t->stop =
            (struct pl_early_stop){.any = any != 0, .best = value, .waited = (uint64_t)waited};
    if (best && checkpointer->on)
        pl_retention_load(&checkpointer->best, best); /* what does not fit is forgotten */
}

static struct pl_state state_of(struct pl_trainer *t, uint64_t batches)
{
    uint64_t per_step = t->stage[PLUME_TRAIN].loader.options.batch_size * (uint64_t)t->comm->size;

    return (struct pl_state){
        .module = t->module->name,
        .params = &t->ctx.params,
        .buffers = t->ctx.params.buffers,
        .n_buffers = t->ctx.params.n_buffers,
        .optimizers = &t->optimizers,
        .scaler = &t->scaler,
        .hparams = t->hparams,
        .seed = t->options->seed,
        .epoch = t->epoch,
        .global_step = t->step,
        .batches = batches,
        .samples = batches * per_step,
        .samples_per_step = per_step,
    };
}

static int make(const struct pl_checkpointer *checkpointer,
                struct pl_trainer *t,
                uint64_t batches,
                bool weights_only,
                struct pl_checkpoint *ret,
                struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf callbacks = {0};
    struct pl_state state = state_of(t, batches);
    int r;

    if (callbacks_of(checkpointer, t, &callbacks) < 0)
        return pl_error_set(err, -ENOMEM, "out of memory");
    state.callbacks = callbacks.data;
    r = pl_train_state_save(&state, weights_only, ret, err);
    if (r < 0)
        return r;
    t->ctx.checkpoint = ret;
    r = pl_hooks_call(&t->hooks, t->module->on_save_checkpoint, "on_save_checkpoint", err);
    t->ctx.checkpoint = NULL;
    return r;
}

int pl_checkpointer_save(struct pl_checkpointer *checkpointer,
                         struct pl_trainer *t,
                         uint64_t batches,
                         struct pl_error *err)
{
    _cleanup_(pl_ckpt_job_finish) struct pl_ckpt_job job = {0};
    double value = t->options->monitor ? pl_metrics_get(&t->metrics, t->options->monitor) : NAN;
    int kept, r;

    if (!checkpointer->on)
        return 0;
    if (t->options->monitor && !pl_metrics_has(&t->metrics, t->options->monitor))
        return pl_error_set(err, -ENOENT,
                            "checkpoints are chosen by '%s', which nothing has logged: validation "
                            "values are called val_NAME",
                            t->options->monitor);
    if (!checkpointer->writes)
        return 0;
    kept = pl_retention_add(&checkpointer->best, t->epoch, t->step, value, &job.path, &job.remove);
    if (kept < 0)
        return pl_error_set(err, kept, "out of memory");
    if (t->options->save_last) {
        char *last = pl_path_join(t->options->checkpoint_dir, "last.ckpt");

        if (!last)
            return pl_error_set(err, -ENOMEM, "out of memory");
        *(kept ? &job.also : &job.path) = last;
    } else if (!kept)
        return 0;
    r = make(checkpointer, t, batches, t->options->weights_only, &job.checkpoint, err);
    return r < 0 ? r : pl_ckpt_writer_submit(checkpointer->writer, &job, err);
}

int pl_checkpointer_save_hpc(struct pl_checkpointer *checkpointer,
                             struct pl_trainer *t,
                             uint64_t batches,
                             char **ret_path,
                             struct pl_error *err)
{
    _cleanup_(pl_ckpt_job_finish) struct pl_ckpt_job job = {0};
    int r;

    *ret_path = NULL;
    if (!checkpointer->writes)
        return 0;
    r = pl_hpc_next(t->options->checkpoint_dir, &job.path, err);
    if (r == 0)
        r = make(checkpointer, t, batches, false, &job.checkpoint, err);
    if (r == 0)
        r = pl_ckpt_writer_flush(checkpointer->writer, err);
    if (r == 0)
        r = pl_ckpt_job_run(&job, err);
    if (r == 0)
        *ret_path = PL_TAKE(job.path);
    return r;
}

int pl_checkpointer_flush(struct pl_checkpointer *checkpointer, struct pl_error *err)
{
    return checkpointer->writer ? pl_ckpt_writer_flush(checkpointer->writer, err) : 0;
}

/* Rank 0 looks, since folders may be seen differently for a while. "" = nothing to begin with. */
static int find(const struct pl_trainer *t, char path[PATH_MAX], struct pl_error *err)
{
    const struct pl_train_options *o = t->options;
    _cleanup_free_ char *hpc = NULL, *last = NULL;
    const char *from = NULL;
    int r;

    path[0] = '\0';
    if (o->checkpoint_dir) {
        r = pl_hpc_latest(o->checkpoint_dir, &hpc, err);
        if (r < 0)
            return r;
        from = hpc;
    }
    if (!from && o->resume && strcmp(o->resume, "last") == 0) {
        last = o->checkpoint_dir ? pl_path_join(o->checkpoint_dir, "last.ckpt") : NULL;
        from = last && access(last, F_OK) == 0 ? last : NULL;
    } else if (!from)
        from = o->resume;
    if (from && strlen(from) >= PATH_MAX)
        return pl_error_set(err, -ENAMETOOLONG, "the path '%s' is too long", from);
    if (from)
        memcpy(path, from, strlen(from) + 1);
    return 0;
}

static int load(struct pl_checkpointer *checkpointer,
                struct pl_trainer *t,
                const char *path,
                struct pl_error *err)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint checkpoint = {0};
    _cleanup_free_ char *callbacks = NULL;
    struct pl_state state = state_of(t, 0);
    int r = pl_checkpoint_read(path, &checkpoint, err);

    if (r == 0)
        r = pl_train_state_load(&state, &checkpoint, err);
    if (r < 0)
        return pl_error_wrap(err, r, "cannot resume from '%s'", path);
    callbacks = state.callbacks;
    take_callbacks(checkpointer, t, callbacks);
    t->epoch = state.epoch;
    t->step = state.global_step;
    t->resume_batches = state.batches;
    t->ctx.checkpoint = &checkpoint;
    r = pl_hooks_call(&t->hooks, t->module->on_load_checkpoint, "on_load_checkpoint", err);
    t->ctx.checkpoint = NULL;
    return r;
}

int pl_checkpointer_take_weights(struct pl_trainer *t, struct pl_error *err)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint checkpoint = {0};
    struct pl_state state = state_of(t, 0);
    const char *path = t->options->weights;
    int r;

    if (!path)
        return 0;
    state.optimizers = NULL;
    r = pl_checkpoint_read(path, &checkpoint, err);
    if (r == 0)
        r = pl_train_state_load(&state, &checkpoint, err);
    return r < 0 ? pl_error_wrap(err, r, "cannot take weights from '%s'", path) : 0;
}

int pl_checkpointer_resume(struct pl_checkpointer *checkpointer,
                           struct pl_trainer *t,
                           struct pl_error *err)
{
    char path[PATH_MAX] = {0};
    int r = 0;

    if (!t->options->resume && !checkpointer->on)
        return 0;
    if (t->comm->rank == 0)
        r = find(t, path, err);
    if (r == 0)
        r = pl_comm_broadcast(t->comm, path, sizeof(path), err);
    return r == 0 && path[0] ? load(checkpointer, t, path, err) : r;
}
