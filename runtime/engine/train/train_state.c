/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_state.h"
#include "common/base/options.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/train/train_state_private.h"

#include <string.h>

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

/* Checkpoints of earlier versions lack it, or "due". */
static void visit_epoch(struct pl_visit_object *loops, struct pl_train_state *s)
{
    struct pl_mini_value unused;
    uint64_t open = s->open, due = loops->saving && s->due;

    if (!loops->saving && (!loops->text || pl_mini_find(loops->text, "open", &unused) < 0)) {
        s->open = s->due = false;
        s->loss[0] = s->loss[1] = 0;
        return;
    }
    pl_visit_u64(loops, "open", &open, 1);
    pl_visit_double(loops, "loss_sum", &s->loss[0]);
    pl_visit_double(loops, "loss_weight", &s->loss[1]);
    s->open = open;
    if (loops->saving || pl_mini_find(loops->text, "due", &unused) >= 0)
        pl_visit_u64(loops, "due", &due, 1);
    s->due = due;
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
    /* Another world's last batch may be longer: an epoch that was complete stays so. */
    if (s->samples_per_step && s->samples && samples >= s->samples)
        s->batch = (s->samples + s->samples_per_step - 1) / s->samples_per_step;
    return r;
}

/* The value that early stopping watches, with its direction: `best` is one of it. */
static int save_rule(struct pl_visit_object *stop, const struct pl_early_stop_rule *rule)
{
    int r = stop->r;

    if (!rule || !rule->monitor)
        return r;
    if (r == 0)
        r = pl_visit_key(&stop->buf, "monitor");
    if (r == 0)
        r = pl_mini_quote(&stop->buf, rule->monitor);
    if (r == 0)
        r = pl_visit_key(&stop->buf, "mode");
    return r < 0 ? r : pl_mini_quote(&stop->buf, rule->maximize ? "max" : "min");
}

/* Checkpoints of earlier versions do not name the value. */
static bool is_of_rule(const char *saved, const struct pl_early_stop_rule *rule)
{
    _cleanup_free_ char *monitor = NULL, *mode = NULL;

    if (!rule)
        return true;
    if (!rule->monitor)
        return false;
    if (!saved || pl_mini_get_string(saved, "monitor", &monitor) < 0 ||
        pl_mini_get_string(saved, "mode", &mode) < 0)
        return true;
    return strcmp(monitor, rule->monitor) == 0 && strcmp(mode, rule->maximize ? "max" : "min") == 0;
}

static int save_callbacks(const struct pl_visit *v, struct pl_train_state *s)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    struct pl_visit_object stop = pl_visit_open(v, NULL);
    uint64_t any = s->stop.any, ended = s->stop.ended;
    int r;

    pl_visit_u64(&stop, "any", &any, 1);
    pl_visit_u64(&stop, "waited", &s->stop.waited, UINT64_MAX);
    pl_visit_double(&stop, "best", &s->stop.best);
    pl_visit_u64(&stop, "ended", &ended, 1);
    r = save_rule(&stop, s->stop_rule);
    r = r < 0 ? r : pl_buf_addf(&b, "{\"early_stopping\":{%s}", pl_buf_str(&stop.buf));
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
    struct pl_mini_value metrics, unused;
    uint64_t any = 0, ended = 0;

    pl_visit_u64(&stop, "any", &any, INT64_MAX);
    pl_visit_u64(&stop, "waited", &next.waited, INT64_MAX);
    pl_visit_double(&stop, "best", &next.best);
    /* Checkpoints of earlier versions lack it. */
    if (stop.text && pl_mini_find(stop.text, "ended", &unused) == 0)
        pl_visit_u64(&stop, "ended", &ended, 1);
    next.any = any != 0;
    next.ended = ended != 0;
    if (!is_of_rule(stop.text, s->stop_rule))
        s->stop = (struct pl_early_stop){0};
    else if (stop.r == 0)
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
    int r = pl_train_state_visit_values(v, s, weights_only);

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
    if (r == 0 && v->pass == PL_VISIT_SAVE && weights_only)
        r = pl_train_state_visit_ema(v, s, true);
    if (r < 0 || weights_only)
        return r;
    if (v->pass == PL_VISIT_SAVE)
        r = save_callbacks(v, s);
    else if (v->pass == PL_VISIT_LOAD)
        load_callbacks(v, s);
    if (r == 0)
        r = pl_train_state_visit_optimizers(v, s);
    if (r == 0)
        r = pl_train_state_visit_ema(v, s, false);
    return r < 0 ? r : pl_train_state_visit_scaler(v, s->scaler);
}

/* The stages of a pipeline change their own buffers. */
static int share_buffers(const struct pl_train_state *s, struct pl_error *err)
{
    return s->params->stages.n ? pl_stages_share_buffers(s->params, s->params->shards, err) : 0;
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
        r = pl_train_state_visit_values(&v, state, weights_only);
    for (size_t i = 0; !weights_only && i < state->optimizers->n && r == 0; i++)
        r = pl_train_state_visit_slots(&v, state, i);
    if (r == 0 && shared && !weights_only)
        r = pl_train_state_visit_ema(&v, state, false);
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
