/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_state.h"
#include "common/base/options.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/train/visit.h"

#include <math.h>
#include <string.h>

/* ---- values ---- */

/* A parameter, or a slot of one, of which each rank has a part. */
static int visit_shards(const struct pl_visit *v,
                        const struct pl_train_state *s,
                        const char *prefix,
                        const struct pl_param *p,
                        void *own,
                        struct pl_shard_span span)
{
    enum plume_dtype dtype = pl_dtype_of_real(s->params->real);
    size_t size = pl_dtype_size(dtype);
    _cleanup_free_ char *whole = NULL;
    int r;

    if (v->parts)
        return pl_state_parts_put(v->parts, s->params, p, own, span, v->err);
    if (v->pass == PL_VISIT_SAVE)
        return pl_visit_apart(v, prefix, p->name, p->tensor, dtype);
    whole = malloc(p->tensor->count * size);
    if (!whole)
        return pl_error_set(v->err, -ENOMEM, "out of memory for a checkpoint");
    r = pl_visit_tensor(v, prefix, p->name, p->tensor, dtype, pl_device_cpu(), whole);
    if (r == 0 && v->pass == PL_VISIT_LOAD)
        pl_device_upload(s->params->dev, own, whole + span.from * size, span.count * size);
    return r;
}

/* The same of one that tensor parallel ranks have parts of. own: this rank's, in device memory. */
static int visit_parts(const struct pl_visit *v,
                       const struct pl_train_state *s,
                       const char *prefix,
                       const struct pl_param *p,
                       void *own)
{
    enum plume_dtype dtype = pl_dtype_of_real(s->params->real);
    _cleanup_free_ char *whole = NULL;
    int r;

    if (v->parts)
        return pl_state_parts_put_split(v->parts, s->params, p, own, v->err);
    if (v->pass == PL_VISIT_SAVE)
        return pl_visit_apart(v, prefix, p->name, p->whole, dtype);
    whole = malloc(p->whole->count * pl_dtype_size(dtype));
    if (!whole)
        return pl_error_set(v->err, -ENOMEM, "out of memory for a checkpoint");
    r = pl_visit_tensor(v, prefix, p->name, p->whole, dtype, pl_device_cpu(), whole);
    return r == 0 && v->pass == PL_VISIT_LOAD ? pl_param_part_put(s->params, p, own, whole, v->err)
                                              : r;
}

/* An array of a parameter's shape at `own` in this rank's memory. */
static int visit_own(const struct pl_visit *v,
                     const struct pl_train_state *s,
                     const char *prefix,
                     const struct pl_param *p,
                     void *own)
{
    if (pl_param_is_split(p))
        return visit_parts(v, s, prefix, p, own);
    if (v->parts) /* rank 0 has it, and has written it */
        return 0;
    return pl_visit_tensor(v, prefix, p->name, p->tensor, pl_dtype_of_real(s->params->real),
                           s->params->dev, own);
}

static int visit_values(const struct pl_visit *v, const struct pl_train_state *s)
{
    const struct pl_params *params = s->params;
    size_t expected = params->n + params->n_buffers, have = 0;
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        const struct pl_param *p = params->list[i];

        if (pl_params_partial(params))
            r = visit_shards(v, s, "", p, pl_shard_part(params, p, params->values),
                             pl_shard_span(params, p));
        else
            r = visit_own(v, s, "", p, pl_param_value(params, p));
    }
    if (r < 0 || v->parts)
        return r;
    for (size_t i = 0; i < params->n_buffers && r == 0; i++) {
        const struct pl_buffer *b = &params->buffers[i];

        r = pl_visit_tensor(v, "", b->name, b->tensor, b->tensor->dtype, params->dev,
                            b->tensor->data);
    }
    for (size_t i = 0; i < v->c->n; i++)
        have += !pl_visit_is_state(v->c->tensors[i].name);
    if (r == 0 && have != expected)
        return pl_error_set(v->err, -EINVAL,
                            "the checkpoint has %zu parameters and buffers, the model %zu: it is "
                            "of another model",
                            have, expected);
    return r;
}

/* ---- optimizers ---- */

static void visit_schedule(struct pl_visit_object *o, struct pl_schedule *schedule)
{
    struct pl_schedule s = *schedule;
    uint64_t bad = (uint64_t)s.bad, cooling = (uint64_t)s.cooling;

    pl_visit_u64(o, "t", &s.t, INT64_MAX);
    pl_visit_u64(o, "bad", &bad, INT32_MAX);
    pl_visit_u64(o, "cooling", &cooling, INT32_MAX);
    pl_visit_double(o, "plain", &s.plain);
    pl_visit_double(o, "factor", &s.factor);
    pl_visit_double(o, "lr", &s.lr);
    pl_visit_double(o, "best", &s.best);
    if (o->saving || o->r < 0)
        return;
    if (!(s.factor > 0))
        o->r = -EINVAL;
    s.bad = (int)bad;
    s.cooling = (int)cooling;
    pl_schedule_restore(schedule, &s);
}

/* Steps of the optimizer that left a parameter out, by name; 0 is not saved. */
static int visit_missed(const struct pl_visit *v,
                        const struct pl_params *params,
                        const struct pl_optimizer *o,
                        struct pl_visit_object *state)
{
    struct pl_visit_object missed = {.saving = state->saving};
    int r = 0;

    if (!missed.saving)
        missed.text = pl_json_get_text(state->text, "missed");
    for (size_t i = 0; i < o->n_ranges && r == 0; i++)
        for (size_t k = o->ranges[i].first; k < o->ranges[i].first + o->ranges[i].n && r == 0;
             k++) {
            struct pl_param *p = params->order[k];
            double n = missed.saving ? (double)p->missed : 0;

            if (missed.saving && p->missed)
                pl_visit_double(&missed, p->name, &n);
            if (!missed.saving && missed.text &&
                pl_json_get_double(missed.text, p->name, &n) == -EINVAL)
                n = -1;
            if (!missed.saving && !(n >= 0 && n <= (double)o->steps))
                r = pl_error_set(v->err, -EINVAL,
                                 "the checkpoint's optimizer state of '%s' is malformed", p->name);
            if (r == 0 && v->pass == PL_VISIT_LOAD)
                p->missed = (uint64_t)n;
        }
    if (r == 0 && missed.saving && missed.r == 0)
        missed.r = pl_visit_key(&state->buf, "missed");
    if (r == 0 && missed.saving && missed.r == 0)
        missed.r = pl_buf_addf(&state->buf, "{%s}", pl_buf_str(&missed.buf));
    if (missed.r < 0)
        state->r = missed.r;
    pl_visit_close(&missed);
    return r;
}

static int
visit_kind(const struct pl_visit *v, const struct pl_optimizer *o, struct pl_visit_object *state)
{
    const char *kind = pl_optimizer_kind_name(o->options.kind);
    _cleanup_free_ char *saved = NULL;

    if (state->saving) {
        state->r = pl_buf_addf(&state->buf, "\"kind\":\"%s\"", kind);
        return 0;
    }
    if (pl_mini_get_string(state->text, "kind", &saved) < 0 || strcmp(saved, kind) != 0)
        return pl_error_set(v->err, -EINVAL,
                            "the checkpoint is of optimizer '%s', this run's is '%s'",
                            saved ? saved : "", kind);
    return 0;
}

/* The rates are saved by the group's number, so the parameters of that number must be the same.
 * Checkpoints of earlier versions have no patterns. */
static int visit_pattern(const struct pl_visit *v,
                         const struct pl_group *g,
                         size_t index,
                         struct pl_visit_object *group)
{
    _cleanup_free_ char *saved = NULL;

    if (group->saving) {
        group->r = pl_visit_key(&group->buf, "pattern");
        if (group->r == 0)
            group->r = pl_mini_quote(&group->buf, g->pattern);
        return 0;
    }
    if (pl_mini_get_string(group->text, "pattern", &saved) < 0 || strcmp(saved, g->pattern) == 0)
        return 0;
    return pl_error_set(v->err, -EINVAL,
                        "group %zu of the checkpoint's optimizer is '%s', the module's is '%s': "
                        "give the module the same groups in the same order, or start anew with "
                        "--weights",
                        index, saved, g->pattern);
}

/* The schedules of an optimizer's groups, as a list in the object of its own schedule. */
static int
visit_groups(const struct pl_visit *v, struct pl_optimizer *o, struct pl_visit_object *schedule)
{
    char key[32];
    int r = 0, told = 0;

    for (size_t i = 0; i < o->n_groups && r == 0; i++) {
        struct pl_visit_object group = {.saving = schedule->saving};

        snprintf(key, sizeof(key), "group_%zu", i);
        if (!group.saving)
            group.text = pl_json_get_text(schedule->text, key);
        if (!group.saving && !group.text)
            r = -EINVAL;
        else
            visit_schedule(&group, &o->groups[i].schedule);
        if (r == 0)
            r = group.r;
        if (r == 0)
            told = r = visit_pattern(v, &o->groups[i], i, &group);
        if (r == 0)
            r = group.r;
        if (r == 0 && group.saving)
            r = pl_visit_key(&schedule->buf, key);
        if (r == 0 && group.saving)
            r = pl_buf_addf(&schedule->buf, "{%s}", pl_buf_str(&group.buf));
        pl_visit_close(&group);
    }
    snprintf(key, sizeof(key), "group_%zu", o->n_groups);
    if (r == 0 && !schedule->saving) {
        _cleanup_free_ char *more = pl_json_get_text(schedule->text, key);

        r = more ? -EINVAL : 0;
    }
    if (r == -EINVAL && told == 0)
        return pl_error_set(v->err, r,
                            "the checkpoint's optimizer does not have %zu groups of "
                            "parameters, as the module's has",
                            o->n_groups);
    return r;
}

/* The header's part of one optimizer. */
static int visit_optimizer(const struct pl_visit *v,
                           const struct pl_train_state *s,
                           size_t index,
                           struct pl_visit_object *state,
                           struct pl_visit_object *schedule)
{
    struct pl_optimizer o = s->optimizers->list[index];
    int r;

    if (v->pass != PL_VISIT_SAVE && (!state->text || !schedule->text))
        return pl_error_set(v->err, -EINVAL, "the checkpoint has no optimizer %zu", index);
    r = visit_kind(v, &o, state);
    if (r < 0)
        return r;
    pl_visit_u64(state, "step", &o.steps, INT64_MAX);
    visit_schedule(schedule, &o.schedule);
    if (schedule->r == 0) {
        r = visit_groups(v, &o, schedule);
        if (r < 0)
            return r;
    }
    if (v->pass != PL_VISIT_SAVE && (state->r < 0 || schedule->r < 0))
        return pl_error_set(v->err, -EINVAL, "the checkpoint's optimizer %zu is malformed", index);
    r = visit_missed(v, s->params, &o, state);
    if (r == 0 && v->pass == PL_VISIT_LOAD)
        s->optimizers->list[index] = o;
    return r;
}

static int visit_slots(const struct pl_visit *v, const struct pl_train_state *s, size_t index)
{
    const struct pl_optimizer *o = &s->optimizers->list[index];
    char prefix[64];
    int r = 0;

    for (size_t slot = 0; slot < pl_optimizer_slots(o); slot++) {
        snprintf(prefix, sizeof(prefix), PL_CHECKPOINT_PREFIX "optimizer_states/%zu/%s/", index,
                 pl_optimizer_slot_name(o, slot));
        for (size_t i = 0; i < s->params->n && r == 0; i++) {
            const struct pl_param *p = s->params->list[i];
            struct pl_shard_span span;
            void *data = pl_optimizer_state(s->optimizers, o, slot, p, &span.from, &span.count);

            if (!pl_optimizer_has(o, p))
                continue;
            if (s->params->shard || s->params->stages.n)
                r = visit_shards(v, s, prefix, p, data, span);
            else
                r = visit_own(v, s, prefix, p, data);
        }
    }
    return r;
}

static int visit_optimizers(const struct pl_visit *v, const struct pl_train_state *s)
{
    _cleanup_(pl_buf_finish) struct pl_buf states = {0}, schedules = {0};
    _cleanup_free_ char *more = pl_visit_list_entry(v, "optimizer_states", s->optimizers->n);
    int r = 0;

    if (more)
        return pl_error_set(v->err, -EINVAL, "the checkpoint has more than %zu optimizers",
                            s->optimizers->n);
    for (size_t i = 0; i < s->optimizers->n && r == 0; i++) {
        struct pl_visit_object state =
            pl_visit_open(v, pl_visit_list_entry(v, "optimizer_states", i));
        struct pl_visit_object schedule =
            pl_visit_open(v, pl_visit_list_entry(v, "lr_schedulers", i));

        r = visit_optimizer(v, s, i, &state, &schedule);
        if (v->pass == PL_VISIT_SAVE) {
            pl_visit_list_add(&states, &state);
            pl_visit_list_add(&schedules, &schedule);
            r = state.r < 0 ? state.r : schedule.r;
        }
        pl_visit_close(&state);
        pl_visit_close(&schedule);
        if (r == 0)
            r = visit_slots(v, s, i);
    }
    if (r == 0 && v->pass == PL_VISIT_SAVE)
        r = pl_visit_list_set(v, "optimizer_states", &states);
    return r == 0 && v->pass == PL_VISIT_SAVE ? pl_visit_list_set(v, "lr_schedulers", &schedules)
                                              : r;
}

/* A run whose precision has no loss scale ignores a saved one; without a saved one the scale starts
 * anew, as in Lightning. */
static int visit_scaler(const struct pl_visit *v, struct pl_scaler *scaler)
{
    struct pl_visit_object o = pl_visit_open(v, pl_visit_top(v, "amp_scaling_state"));
    uint64_t good_steps, skipped;
    double scale;

    if (!scaler || !scaler->enabled || (v->pass != PL_VISIT_SAVE && !o.text)) {
        pl_visit_close(&o);
        return 0;
    }
    good_steps = scaler->good_steps;
    skipped = scaler->skipped;
    scale = (double)scaler->scale;
    pl_visit_u64(&o, "growth_tracker", &good_steps, UINT32_MAX);
    pl_visit_u64(&o, "skipped", &skipped, INT64_MAX);
    pl_visit_double(&o, "scale", &scale);
    if (pl_visit_set(v, "amp_scaling_state", &o) == 0 && v->pass != PL_VISIT_SAVE &&
        (!(scale > 0) || !isfinite(scale)))
        o.r = -EINVAL;
    pl_visit_close(&o);
    if (o.r == -EINVAL)
        return pl_error_set(v->err, -EINVAL, "the checkpoint's amp_scaling_state is malformed");
    if (o.r == 0 && v->pass == PL_VISIT_LOAD) {
        scaler->good_steps = (uint32_t)good_steps;
        scaler->skipped = skipped;
        scaler->scale = (float)scale;
    }
    return o.r;
}

/* A run without an average ignores a saved one; without a saved one the average starts anew. */
static int visit_ema(const struct pl_visit *v, const struct pl_train_state *s)
{
    const struct pl_params *params = s->params;
    const char *prefix = PL_CHECKPOINT_PREFIX PL_EMA_PREFIX;
    struct pl_ema *ema = s->ema;
    struct pl_visit_object o = pl_visit_open(v, pl_visit_top(v, "ema"));
    uint64_t steps = ema ? ema->steps : 0;
    bool visits = ema && ema->params && (v->pass == PL_VISIT_SAVE ? steps > 0 : o.text != NULL);
    int r = 0;

    if (visits && !v->parts) {
        pl_visit_u64(&o, "steps", &steps, INT64_MAX);
        r = pl_visit_set(v, "ema", &o);
    }
    pl_visit_close(&o);
    if (r == -EINVAL)
        return pl_error_set(v->err, r, "the checkpoint's ema is malformed");
    for (size_t i = 0; visits && i < params->n && r == 0; i++) {
        const struct pl_param *p = params->list[i];

        if (pl_params_partial(params))
            r = visit_shards(v, s, prefix, p, pl_shard_part(params, p, ema->values),
                             pl_shard_span(params, p));
        else
            r = visit_own(v, s, prefix, p, pl_ema_value(ema, p));
    }
    if (r == 0 && v->pass == PL_VISIT_LOAD && visits)
        ema->steps = steps;
    return r;
}

/* ---- position and callbacks ---- */

static int save_hparams(const struct pl_visit *v, const struct pl_hparams *hparams)
{
    struct pl_visit_object o = pl_visit_open(v, NULL);
    int r;

    for (size_t i = 0; hparams && i < hparams->n; i++)
        pl_visit_double(&o, hparams->list[i].name, &hparams->list[i].value);
    r = pl_visit_set(v, "hyper_parameters", &o);
    pl_visit_close(&o);
    return r;
}

/* Checkpoints of earlier versions lack it. */
static void visit_epoch(struct pl_visit_object *loops, struct pl_train_state *s)
{
    struct pl_mini_value unused;
    uint64_t open = s->open;

    if (!loops->saving && (!loops->text || pl_mini_find(loops->text, "open", &unused) < 0)) {
        s->open = false;
        s->loss[0] = s->loss[1] = 0;
        return;
    }
    pl_visit_u64(loops, "open", &open, 1);
    pl_visit_double(loops, "loss_sum", &s->loss[0]);
    pl_visit_double(loops, "loss_weight", &s->loss[1]);
    s->open = open;
}

static int visit_position(const struct pl_visit *v, struct pl_train_state *s)
{
    struct pl_visit_object loops = pl_visit_open(v, pl_visit_top(v, "loops"));
    struct pl_visit_object sampler = pl_visit_open(v, pl_visit_top(v, "sampler"));
    uint64_t samples = s->batch * s->samples_per_step, seed = s->seed;
    int r = pl_visit_top_u64(v, "epoch", &s->epoch);

    if (r == 0)
        r = pl_visit_top_u64(v, "global_step", &s->step);
    pl_visit_u64(&loops, "batches", &s->batch, INT64_MAX);
    pl_visit_u64(&loops, "samples", &samples, INT64_MAX);
    visit_epoch(&loops, s);
    pl_visit_u64(&sampler, "seed", &seed, INT64_MAX);
    r = r < 0 ? r : pl_visit_set(v, "loops", &loops);
    r = r < 0 ? r : pl_visit_set(v, "sampler", &sampler);
    pl_visit_close(&loops);
    pl_visit_close(&sampler);
    if (r == -EINVAL)
        return pl_error_set(
            v->err, r, "the checkpoint has no valid position (epoch, global_step, loops, sampler)");
    if (r == 0 && seed != s->seed)
        return pl_error_set(v->err, -EINVAL,
                            "the checkpoint is of a run with seed %llu: give --seed %llu to go on "
                            "with it",
                            (unsigned long long)seed, (unsigned long long)seed);
    if (s->samples_per_step)
        s->batch = samples / s->samples_per_step;
    return r;
}

static int save_callbacks(const struct pl_visit *v, struct pl_train_state *s)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    struct pl_visit_object stop = pl_visit_open(v, NULL);
    uint64_t any = s->stop.any;
    int r;

    pl_visit_u64(&stop, "any", &any, 1);
    pl_visit_u64(&stop, "waited", &s->stop.waited, UINT64_MAX);
    pl_visit_double(&stop, "best", &s->stop.best);
    r = stop.r < 0 ? stop.r : pl_buf_addf(&b, "{\"early_stopping\":{%s}", pl_buf_str(&stop.buf));
    pl_visit_close(&stop);
    if (r == 0 && s->retention)
        r = pl_buf_adds(&b, ",\"model_checkpoint\":");
    if (r == 0 && s->retention)
        r = pl_retention_save(s->retention, &b);
    if (r == 0 && s->metrics)
        r = pl_buf_adds(&b, ",\"metrics\":");
    if (r == 0 && s->metrics)
        r = pl_metrics_save(s->metrics, &b);
    if (r == 0)
        r = pl_buf_addc(&b, '}');
    return r < 0 ? r : pl_checkpoint_set(v->c, "callbacks", pl_buf_str(&b));
}

/* Callbacks that are not readable start anew. */
static void load_callbacks(const struct pl_visit *v, struct pl_train_state *s)
{
    _cleanup_free_ char *json = pl_checkpoint_get(v->c, "callbacks");
    struct pl_visit_object stop =
        pl_visit_open(v, json ? pl_json_get_text(json, "early_stopping") : NULL);
    _cleanup_free_ char *kept = json ? pl_json_get_text(json, "model_checkpoint") : NULL;
    struct pl_early_stop next = {0};
    struct pl_mini_value metrics;
    uint64_t any = 0;

    pl_visit_u64(&stop, "any", &any, INT64_MAX);
    pl_visit_u64(&stop, "waited", &next.waited, INT64_MAX);
    pl_visit_double(&stop, "best", &next.best);
    next.any = any != 0;
    if (stop.r == 0)
        s->stop = next;
    pl_visit_close(&stop);
    if (kept && s->retention)
        pl_retention_load(s->retention, kept);
    if (json && s->metrics && pl_mini_find(json, "metrics", &metrics) == 0)
        pl_metrics_load(s->metrics, &metrics);
}

/* ---- the walk ---- */

static bool has_optimizers(const struct pl_visit *v)
{
    _cleanup_free_ char *states = pl_visit_top(v, "optimizer_states");

    return states != NULL;
}

static int visit_state(const struct pl_visit *v, struct pl_train_state *s, bool weights_only)
{
    int r = visit_values(v, s);

    if (r == 0 && v->pass != PL_VISIT_SAVE && !weights_only && !has_optimizers(v))
        r = pl_error_set(v->err, -EINVAL,
                         "the checkpoint has weights only: give it to --weights instead");
    if (r == 0 && v->pass == PL_VISIT_SAVE)
        r = pl_visit_save_string(v, "version", pl_version());
    if (r == 0 && v->pass == PL_VISIT_SAVE)
        r = pl_visit_save_string(v, "module", s->module);
    if (r == 0)
        r = visit_position(v, s);
    if (r == 0 && v->pass == PL_VISIT_SAVE)
        r = save_hparams(v, s->hparams);
    if (r == 0 && v->pass == PL_VISIT_SAVE && weights_only) /* with what was validated */
        r = visit_ema(v, s);
    if (r < 0 || weights_only)
        return r;
    if (v->pass == PL_VISIT_SAVE)
        r = save_callbacks(v, s);
    else if (v->pass == PL_VISIT_LOAD)
        load_callbacks(v, s);
    if (r == 0)
        r = visit_optimizers(v, s);
    if (r == 0)
        r = visit_ema(v, s);
    return r < 0 ? r : visit_scaler(v, s->scaler);
}

/* The stages of a pipeline change their own buffers. */
static int share_buffers(const struct pl_train_state *s, struct pl_error *err)
{
    return s->params->stages.n ? pl_stages_share_buffers(s->params, s->shards, err) : 0;
}

int pl_train_state_save(const struct pl_train_state *state,
                        bool weights_only,
                        struct pl_checkpoint *ret,
                        struct pl_error *err)
{
    struct pl_error own = {0};
    const struct pl_visit v = {.pass = PL_VISIT_SAVE, .c = ret, .err = err ? err : &own};
    struct pl_train_state s = *state;
    int r = pl_params_fetch(s.params, v.err);

    if (r == 0)
        r = share_buffers(&s, v.err);
    if (r == 0)
        r = visit_state(&v, &s, weights_only);

    return r < 0 && !v.err->code ? pl_error_set(err, r, "out of memory for a checkpoint") : r;
}

int pl_train_state_assist(const struct pl_train_state *state, struct pl_error *err)
{
    return share_buffers(state, err);
}

int pl_train_state_put(const struct pl_train_state *state,
                       bool weights_only,
                       struct pl_state_parts *parts,
                       struct pl_error *err)
{
    const struct pl_visit v = {PL_VISIT_SAVE, NULL, err, parts};
    bool shared = pl_params_partial(state->params) || state->params->peers;
    int r = 0;

    if (shared)
        r = visit_values(&v, state);
    for (size_t i = 0; !weights_only && i < state->optimizers->n && r == 0; i++)
        r = visit_slots(&v, state, i);
    if (r == 0 && shared)
        r = visit_ema(&v, state);
    return r < 0 ? r : pl_state_parts_end(parts, err);
}

static void values_change(const struct pl_train_state *state)
{
    state->params->values_version++;
    state->params->buffers_version++;
}

int pl_train_state_load(struct pl_train_state *state,
                        const struct pl_checkpoint *checkpoint,
                        struct pl_error *err)
{
    struct pl_visit v = {.pass = PL_VISIT_CHECK,
                         .c =
                             (struct pl_checkpoint *)checkpoint, /* only PL_VISIT_SAVE changes it */
                         .err = err};
    struct pl_train_state next = *state;
    int r = visit_state(&v, &next, false);

    if (r < 0)
        return r;
    v.pass = PL_VISIT_LOAD;
    values_change(state);
    r = visit_state(&v, &next, false);
    if (r == 0)
        *state = next;
    return r;
}
