/* SPDX-License-Identifier: MIT */
/* A training state's optimizers with their schedules, the loss scale and the average. */
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/train_state_private.h"

#include <math.h>
#include <string.h>

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

int pl_train_state_visit_slots(const struct pl_visit *v,
                               const struct pl_train_state *s,
                               size_t index)
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
            r = pl_train_state_visit_own(v, s, prefix, p, data,
                                         s->params->shard || s->params->stages.n ? &span : NULL);
        }
    }
    return r;
}

int pl_train_state_visit_optimizers(const struct pl_visit *v, const struct pl_train_state *s)
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
            r = pl_train_state_visit_slots(v, s, i);
    }
    if (r == 0 && v->pass == PL_VISIT_SAVE)
        r = pl_visit_list_set(v, "optimizer_states", &states);
    return r == 0 && v->pass == PL_VISIT_SAVE ? pl_visit_list_set(v, "lr_schedulers", &schedules)
                                              : r;
}

int pl_train_state_visit_scaler(const struct pl_visit *v, struct pl_scaler *scaler)
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

int pl_train_state_visit_ema(const struct pl_visit *v,
                             const struct pl_train_state *s,
                             bool only_note)
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
    for (size_t i = 0; visits && !only_note && i < params->n && r == 0; i++)
        r = pl_train_state_visit_value(v, s, prefix, params->list[i], ema->values);
    if (r == 0 && v->pass == PL_VISIT_LOAD && visits)
        ema->steps = steps;
    return r;
}
