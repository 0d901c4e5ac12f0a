/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/checkpointer.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/shared_fs.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "runtime/engine/checkpoint/resume_file.h"

#include <limits.h>
#include <math.h>
#include <string.h>

int pl_checkpointer_init(struct pl_checkpointer *checkpointer,
                         const struct pl_train_options *options,
                         const struct pl_hooks *hooks,
                         struct pl_train_state *state,
                         struct pl_error *err)
{
    const struct pl_train_options *o = options;
    bool on = o->checkpoint_dir && !o->fast_dev_run;
    int r;

    *checkpointer = (struct pl_checkpointer){
        .options = options,
        .hooks = hooks,
        .state = state,
        .on = on,
        .writes = on && hooks->ctx->comm->rank == 0,
        .lock = PL_FOLDER_LOCK_INIT,
    };
    if (!on)
        return 0;
    if (checkpointer->writes) {
        r = pl_mkdir_p(o->checkpoint_dir, 0777, err);
        if (r == 0)
            r = pl_folder_lock(o->checkpoint_dir, &checkpointer->lock, err);
        if (r < 0)
            return r;
    }
    r = pl_retention_init(&checkpointer->retention, o->checkpoint_dir, o->monitor, o->monitor_max,
                          o->save_top_k, err);
    if (r == 0 && checkpointer->writes)
        r = pl_ckpt_writer_create(&checkpointer->writer, err);
    if (r == 0)
        state->retention = &checkpointer->retention;
    else
        pl_checkpointer_finish(checkpointer);
    return r;
}

void pl_checkpointer_finish(struct pl_checkpointer *checkpointer)
{
    pl_ckpt_writer_destroy(checkpointer->writer);
    if (checkpointer->writes)
        pl_folder_unlock(&checkpointer->lock);
    pl_retention_finish(&checkpointer->retention);
    *checkpointer = (struct pl_checkpointer){0};
}

/* Ranks that share the state assist; whole parameters are nobody's business. */
static bool assisted(const struct pl_checkpointer *checkpointer, bool weights_only)
{
    const struct pl_train_state *state = checkpointer->state;

    return state->savers &&
           (!weights_only || pl_params_partial(state->params) || state->params->peers);
}

/* Tells the other ranks that have some of the state if rank 0 saves now; they are in follow(). */
static int announce(const struct pl_checkpointer *checkpointer,
                    bool weights_only,
                    bool saves,
                    struct pl_error *err)
{
    struct pl_comm *savers = checkpointer->state->savers;
    char word = saves;

    return assisted(checkpointer, weights_only) ? pl_comm_broadcast(savers, &word, 1, err) : 0;
}

/* Call on all ranks after the state was saved: they write the shards. job: on rank 0. */
static int put_shards(const struct pl_checkpointer *checkpointer,
                      bool weights_only,
                      struct pl_ckpt_job *job,
                      struct pl_error *err)
{
    const struct pl_train_state *state = checkpointer->state;
    _cleanup_(pl_state_parts_close) struct pl_state_parts parts = {.fd = -EBADF};
    size_t n = job ? pl_checkpoint_count_apart(&job->checkpoint) : 0;
    uint64_t *places = job ? calloc(n + 1, sizeof(*places)) : NULL;
    int r = 0;

    if (job)
        r = places ? pl_checkpoint_begin(&job->checkpoint, job->path, &job->temp, places, err)
                   : pl_error_nomem(err);
    if (r < 0) {
        free(places);
        return r;
    }
    r = pl_state_parts_open(&parts, state->savers, job ? job->path : NULL, job ? job->temp : NULL,
                            places, n, err);
    return r < 0 ? r : pl_train_state_put(state, weights_only, &parts, err);
}

/* On a rank that does not write: hands over its shards if rank 0 saves. */
static int
follow(const struct pl_checkpointer *checkpointer, bool weights_only, struct pl_error *err)
{
    struct pl_comm *savers = checkpointer->state->savers;
    char word = 0;
    int r = 0;

    if (checkpointer->on && assisted(checkpointer, weights_only))
        r = pl_comm_broadcast(savers, &word, 1, err);
    if (r < 0 || !word)
        return r;
    r = pl_train_state_assist(checkpointer->state, err);
    return r < 0 ? r : put_shards(checkpointer, weights_only, NULL, err);
}

static int make(const struct pl_checkpointer *checkpointer,
                bool weights_only,
                struct pl_ckpt_job *job,
                struct pl_error *err)
{
    const struct pl_hooks *hooks = checkpointer->hooks;
    int r = announce(checkpointer, weights_only, true, err);

    if (r == 0)
        r = pl_train_state_save(checkpointer->state, weights_only, &job->checkpoint, err);
    if (r < 0)
        return r;
    hooks->ctx->checkpoint = &job->checkpoint;
    r = pl_hooks_call(hooks, hooks->module->on_save_checkpoint, "on_save_checkpoint", err);
    hooks->ctx->checkpoint = NULL;
    if (r < 0 || !assisted(checkpointer, weights_only))
        return r;
    return put_shards(checkpointer, weights_only, job, err);
}

int pl_checkpointer_save_initial(struct pl_checkpointer *checkpointer, struct pl_error *err)
{
    const struct pl_train_options *o = checkpointer->options;
    struct pl_ckpt_job job = {0};
    int r;

    if (!checkpointer->writes)
        return follow(checkpointer, o->weights_only, err);
    job.path = pl_strf("%s/epoch=%llu-step=%llu.ckpt", o->checkpoint_dir,
                       (unsigned long long)checkpointer->state->epoch,
                       (unsigned long long)checkpointer->state->step);
    job.also = o->save_last ? pl_path_join(o->checkpoint_dir, "last.ckpt") : NULL;
    r = job.path && (job.also || !o->save_last) ? 0 : pl_error_nomem(err);
    if (r == 0)
        r = make(checkpointer, o->weights_only, &job, err);
    if (r == 0)
        return pl_ckpt_writer_submit(checkpointer->writer, &job, err);
    pl_ckpt_job_finish(&job);
    return r;
}

int pl_checkpointer_save(struct pl_checkpointer *checkpointer,
                         struct pl_metrics *metrics,
                         struct pl_error *err)
{
    _cleanup_(pl_ckpt_job_finish) struct pl_ckpt_job job = {0};
    const struct pl_train_options *o = checkpointer->options;
    const struct pl_train_state *state = checkpointer->state;
    double value = NAN;
    int kept = 0, r;

    if (!checkpointer->writes)
        return follow(checkpointer, o->weights_only, err);
    if (!o->monitor || pl_metrics_take(metrics, o->monitor, &value))
        kept = pl_retention_add(&checkpointer->retention, state->epoch, state->step, value,
                                &job.path, &job.remove);
    if (kept < 0)
        return pl_error_set(err, kept, "out of memory");
    if (o->save_last) {
        char *last = pl_path_join(o->checkpoint_dir, "last.ckpt");

        if (!last)
            return pl_error_set(err, -ENOMEM, "out of memory");
        *(kept ? &job.also : &job.path) = last;
    } else if (!kept)
        return announce(checkpointer, o->weights_only, false, err);
    r = make(checkpointer, o->weights_only, &job, err);
    return r < 0 ? r : pl_ckpt_writer_submit(checkpointer->writer, &job, err);
}

int pl_checkpointer_save_hpc(struct pl_checkpointer *checkpointer,
                             char **ret_path,
                             struct pl_error *err)
{
    _cleanup_(pl_ckpt_job_finish) struct pl_ckpt_job job = {0};
    int r;

    *ret_path = NULL;
    if (!checkpointer->writes)
        return follow(checkpointer, false, err);
    r = pl_hpc_next(checkpointer->options->checkpoint_dir, &job.path, err);
    if (r == 0)
        r = make(checkpointer, false, &job, err);
    if (r == 0)
        r = pl_ckpt_writer_flush(checkpointer->writer, err);
    if (r == 0)
        r = pl_ckpt_job_run(&job, err);
    if (r == 0)
        r = pl_hpc_remove_older(checkpointer->options->checkpoint_dir, err);
    if (r == 0)
        *ret_path = PL_TAKE(job.path);
    return r;
}

int pl_checkpointer_flush(struct pl_checkpointer *checkpointer, struct pl_error *err)
{
    return checkpointer->writer ? pl_ckpt_writer_flush(checkpointer->writer, err) : 0;
}

/* Only rank 0 searches: a shared folder may look different on other nodes for a while. "" = the run
 * does not resume. */
static int find(const struct pl_train_options *o, char path[PATH_MAX], struct pl_error *err)
{
    _cleanup_free_ char *from = NULL;
    int r = pl_resume_file(o->checkpoint_dir, o->resume, &from, err);

    path[0] = '\0';
    if (r < 0)
        return r;
    if (from && strlen(from) >= PATH_MAX)
        return pl_error_set(err, -ENAMETOOLONG, "the path '%s' is too long", from);
    if (from)
        memcpy(path, from, strlen(from) + 1);
    return 0;
}

/* A moving average that only the run or only the checkpoint has. */
static void tell_average(const struct pl_train_options *o,
                         const struct pl_train_state *state,
                         const struct pl_checkpoint *c,
                         const char *path)
{
    static const char prefix[] = PL_CHECKPOINT_PREFIX PL_EMA_PREFIX;
    bool saved = false;

    for (size_t i = 0; i < c->n && !saved; i++)
        saved = strncmp(c->tensors[i].name, prefix, sizeof(prefix) - 1) == 0;
    if (saved && o->ema == 0)
        pl_log_warn("train",
                    "'%s' has a moving average of the parameters: this run drops it, as it has no "
                    "--ema",
                    path);
    if (!saved && o->ema > 0 && state->step > 0)
        pl_log_warn("train", "'%s' has no moving average of the parameters: --ema starts anew",
                    path);
}

/* True if an optimizer of this run has the slot whose saved name, after the prefix, is
 * INDEX/SLOT/PARAMETER. */
static bool slot_goes_on(const struct pl_train_state *state, const char *name)
{
    char *end;
    unsigned long index = strtoul(name, &end, 10);
    const struct pl_optimizer *o;

    if (*end != '/' || index >= state->optimizers->n)
        return false;
    o = &state->optimizers->list[index];
    for (size_t slot = 0; slot < pl_optimizer_slots(o); slot++) {
        const char *own = pl_optimizer_slot_name(o, slot);
        size_t len = strlen(own);

        if (strncmp(end + 1, own, len) != 0 || end[1 + len] != '/')
            continue;
        for (size_t i = 0; i < state->params->n; i++)
            if (strcmp(state->params->list[i]->name, end + len + 2) == 0)
                return pl_optimizer_has(o, state->params->list[i]);
    }
    return false;
}

/* State of optimizers that this run's do not take over, such as that of a momentum that is 0 now.
 */
static void
tell_slots(const struct pl_train_state *state, const struct pl_checkpoint *c, const char *path)
{
    static const char prefix[] = PL_CHECKPOINT_PREFIX "optimizer_states/";
    const char *first = NULL;
    size_t n = 0;

    for (size_t i = 0; i < c->n; i++) {
        const char *name = c->tensors[i].name;

        if (strncmp(name, prefix, sizeof(prefix) - 1) != 0 ||
            slot_goes_on(state, name + sizeof(prefix) - 1))
            continue;
        first = first ? first : name + sizeof(PL_CHECKPOINT_PREFIX) - 1;
        n++;
    }
    if (n > 0)
        pl_log_warn(
            "train",
            "'%s' has optimizer state that this run's optimizers do not have: this run drops "
            "'%s'%s",
            path, first, n > 1 ? " and more" : "");
}

/* Rates go on where they were, as by PyTorch's load_state_dict(): whoever gives another one may not
 * expect that. */
static void tell_rates(const struct pl_train_state *state, const char *path)
{
    for (size_t i = 0; i < state->optimizers->n; i++) {
        const struct pl_optimizer *o = &state->optimizers->list[i];

        if (o->schedule.plain != o->options.lr)
            pl_log_warn("train",
                        "the run goes on with the learning rate %g of '%s', not with %g: another "
                        "one needs a new start, with --weights",
                        o->schedule.plain, path, o->options.lr);
    }
}

/* The begin of a checkpoint has the checksum of all of it. */
struct version {
    uint64_t bytes;
    char begin[128];
};

/* Each rank has opened the path by itself: a node may still see a file that was replaced since, or
 * have a folder of its own. */
static int check_version(struct pl_comm *comm,
                         const struct pl_checkpoint *c,
                         const char *path,
                         struct pl_error *err)
{
    struct version mine = {.bytes = c->map_bytes}, first;
    bool same;
    int r;

    memcpy(mine.begin, c->map, PL_MIN(sizeof(mine.begin), c->map_bytes));
    first = mine;
    r = pl_comm_broadcast(comm, &first, sizeof(first), err);
    if (r == 0)
        r = pl_comm_agree(comm, memcmp(&first, &mine, sizeof(mine)) == 0, &same, err);
    if (r == 0 && !same)
        r = pl_error_set(err, -ESTALE,
                         "cannot resume from '%s': the ranks read different versions of it: is its "
                         "folder the same on all nodes?",
                         path);
    return r;
}

static int load(struct pl_checkpointer *checkpointer, const char *path, struct pl_error *err)
{
    _cleanup_(pl_checkpoint_finish) struct pl_checkpoint checkpoint = {0};
    const struct pl_hooks *hooks = checkpointer->hooks;
    int r;

    pl_dir_renew_of(path); /* for the file that rank 0 sees */
    r = pl_checkpoint_read(path, &checkpoint, err);
    if (r == 0) {
        r = check_version(hooks->ctx->comm, &checkpoint, path, err);
        if (r < 0)
            return r;
        r = pl_train_state_load(checkpointer->state, &checkpoint, err);
    }
    if (r < 0)
        return pl_error_wrap(err, r, "cannot resume from '%s'", path);
    if (hooks->ctx->comm->rank == 0) {
        tell_average(checkpointer->options, checkpointer->state, &checkpoint, path);
        tell_slots(checkpointer->state, &checkpoint, path);
        tell_rates(checkpointer->state, path);
    }
    if (hooks->ctx->comm->rank == 0 && checkpointer->options->out) {
        fprintf(checkpointer->options->out, "resuming from '%s': epoch %llu, step %llu\n", path,
                (unsigned long long)checkpointer->state->epoch + 1,
                (unsigned long long)checkpointer->state->step);
        fflush(checkpointer->options->out);
    }
    hooks->ctx->checkpoint = &checkpoint;
    r = pl_hooks_call(hooks, hooks->module->on_load_checkpoint, "on_load_checkpoint", err);
    hooks->ctx->checkpoint = NULL;
    return r;
}

int pl_checkpointer_resume(struct pl_checkpointer *checkpointer, struct pl_error *err)
{
    struct pl_comm *comm = checkpointer->hooks->ctx->comm;
    char path[PATH_MAX] = {0};
    int r = 0;

    if (!checkpointer->options->resume && !checkpointer->on)
        return 0;
    if (comm->rank == 0)
        r = find(checkpointer->options, path, err);
    if (r == 0)
        r = pl_comm_broadcast(comm, path, sizeof(path), err);
    return r == 0 && path[0] ? load(checkpointer, path, err) : r;
}
