/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/train_state.h"
#include "common/base/fs.h"
#include "common/base/options.h"

#include <math.h>
#include <string.h>

static int set_int(struct pl_checkpoint *c, const char *key, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
    return pl_checkpoint_set(c, key, text);
}

static int set_string(struct pl_checkpoint *c, const char *key, const char *value)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    int r = pl_mini_quote(&b, value);

    return r < 0 ? r : pl_checkpoint_set(c, key, pl_buf_str(&b));
}

static int add_number(struct pl_buf *b, const char *key, double value)
{
    int r = b->len && b->data[b->len - 1] != '{' ? pl_buf_addc(b, ',') : 0;

    if (r == 0)
        r = pl_mini_quote(b, key);
    if (r == 0)
        r = pl_buf_addc(b, ':');
    return r < 0 ? r : pl_json_add_double(b, value);
}

static int save_hparams(const struct pl_state *s, struct pl_checkpoint *c)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    int r = pl_buf_addc(&b, '{');

    for (size_t i = 0; s->hparams && i < s->hparams->n && r == 0; i++)
        r = add_number(&b, s->hparams->list[i].name, s->hparams->list[i].value);
    if (r == 0)
        r = pl_buf_addc(&b, '}');
    return r < 0 ? r : pl_checkpoint_set(c, "hyper_parameters", pl_buf_str(&b));
}

/* By parameter: the steps of its optimizer that it was left out of, where there are any. */
static int add_missed(const struct pl_state *s, const struct pl_optimizer *o, struct pl_buf *ret)
{
    int r = 0;

    for (size_t i = 0; i < o->n_ranges; i++)
        for (size_t k = o->ranges[i].first; k < o->ranges[i].first + o->ranges[i].n; k++) {
            const struct pl_param *p = s->params->order[k];

            if (p->missed && r == 0)
                r = add_number(ret, p->name, (double)p->missed);
        }
    return r;
}

static int save_lists(const struct pl_state *s, struct pl_checkpoint *c)
{
    _cleanup_(pl_buf_finish) struct pl_buf states = {0}, schedules = {0};
    int r = pl_buf_addc(&states, '[');

    if (r == 0)
        r = pl_buf_addc(&schedules, '[');
    for (size_t i = 0; i < s->optimizers->n && r == 0; i++) {
        const struct pl_optimizer *o = &s->optimizers->list[i];
        const struct pl_schedule *p = &o->schedule;

        r = pl_buf_addf(&states, "%s{\"kind\":\"%s\",\"step\":%llu,\"missed\":{", i ? "," : "",
                        pl_optimizer_kind_name(o->options.kind), (unsigned long long)o->steps);
        r = r < 0 ? r : add_missed(s, o, &states);
        r = r < 0 ? r : pl_buf_adds(&states, "}}");
        if (r == 0)
            r = pl_buf_addf(&schedules, "%s{\"t\":%llu,\"bad\":%d,\"cooling\":%d", i ? "," : "",
                            (unsigned long long)p->t, p->bad, p->cooling);
        r = r < 0 ? r : add_number(&schedules, "plain", p->plain);
        r = r < 0 ? r : add_number(&schedules, "factor", p->factor);
        r = r < 0 ? r : add_number(&schedules, "lr", p->lr);
        r = r < 0 ? r : add_number(&schedules, "best", p->best);
        r = r < 0 ? r : pl_buf_addc(&schedules, '}');
    }
    r = r < 0 ? r : pl_buf_addc(&states, ']');
    r = r < 0 ? r : pl_buf_addc(&schedules, ']');
    r = r < 0 ? r : pl_checkpoint_set(c, "optimizer_states", pl_buf_str(&states));
    return r < 0 ? r : pl_checkpoint_set(c, "lr_schedulers", pl_buf_str(&schedules));
}

static int save_scaler(const struct pl_state *s, struct pl_checkpoint *c)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    int r = pl_buf_addf(&b, "{\"growth_tracker\":%u,\"skipped\":%llu", s->scaler->good_steps,
                        (unsigned long long)s->scaler->skipped);

    r = r < 0 ? r : add_number(&b, "scale", (double)s->scaler->scale);
    r = r < 0 ? r : pl_buf_addc(&b, '}');
    return r < 0 ? r : pl_checkpoint_set(c, "amp_scaling_state", pl_buf_str(&b));
}

static int save_keys(const struct pl_state *s, bool weights_only, struct pl_checkpoint *c)
{
    char loops[96], sampler[64];
    int r = set_string(c, "version", pl_version());

    snprintf(loops, sizeof(loops), "{\"batches\":%llu,\"samples\":%llu}",
             (unsigned long long)s->batches, (unsigned long long)s->samples);
    snprintf(sampler, sizeof(sampler), "{\"seed\":%llu}", (unsigned long long)s->seed);
    r = r < 0 ? r : set_string(c, "module", s->module);
    r = r < 0 ? r : set_int(c, "epoch", s->epoch);
    r = r < 0 ? r : set_int(c, "global_step", s->global_step);
    r = r < 0 ? r : pl_checkpoint_set(c, "loops", loops);
    r = r < 0 ? r : pl_checkpoint_set(c, "sampler", sampler);
    r = r < 0 ? r : save_hparams(s, c);
    if (weights_only)
        return r;
    r = r < 0 ? r : pl_checkpoint_set(c, "callbacks", s->callbacks ? s->callbacks : "{}");
    r = r < 0 ? r : save_lists(s, c);
    return r < 0 || !s->scaler || !s->scaler->enabled ? r : save_scaler(s, c);
}

static int add_tensor(struct pl_checkpoint *c,
                      const char *prefix,
                      const char *name,
                      const plume_tensor *t,
                      enum plume_dtype dtype,
                      struct pl_device *dev,
                      const void *data,
                      struct pl_error *err)
{
    _cleanup_free_ char *full = pl_strf("%s/%s", prefix, name);
    struct pl_device_map map;
    int r;

    if (!full)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = pl_device_map(dev, (void *)data, t->count * pl_dtype_size(dtype), PL_DEVICE_READ, &map,
                      err);
    if (r < 0)
        return r;
    r = pl_checkpoint_add(c, full, dtype, t->rank, t->shape, map.data, err);
    pl_device_unmap(&map);
    return r;
}

/* Masters, not their 16-bit copies: the arena of values has the parameters of all types. */
static void *value_of(const struct pl_params *params, const struct pl_param *p)
{
    return (char *)params->values + p->offset * pl_real_size(params->real);
}

static int save_optimizer(const struct pl_state *s,
                          size_t index,
                          struct pl_checkpoint *c,
                          struct pl_error *err)
{
    const struct pl_optimizer *o = &s->optimizers->list[index];
    char prefix[64];
    int r = 0;

    for (size_t slot = 0; slot < pl_optimizer_slots(o); slot++) {
        snprintf(prefix, sizeof(prefix), "optimizer_states/%zu/%s", index,
                 pl_optimizer_slot_name(o, slot));
        for (size_t i = 0; i < s->params->n && r == 0; i++) {
            const struct pl_param *p = s->params->list[i];
            const void *data = pl_optimizer_state(s->optimizers, o, slot, p);

            if (data)
                r = add_tensor(c, prefix, p->name, p->tensor, pl_dtype_of_real(s->params->real),
                               s->params->dev, data, err);
        }
    }
    return r;
}

int pl_train_state_save(const struct pl_state *state,
                        bool weights_only,
                        struct pl_checkpoint *ret,
                        struct pl_error *err)
{
    int r = save_keys(state, weights_only, ret);

    if (r < 0)
        return pl_error_set(err, r, "out of memory for a checkpoint");
    for (size_t i = 0; i < state->params->n && r == 0; i++) {
        const struct pl_param *p = state->params->list[i];

        r = add_tensor(ret, "state_dict", p->name, p->tensor, pl_dtype_of_real(state->params->real),
                       state->params->dev, value_of(state->params, p), err);
    }
    for (size_t i = 0; i < state->n_buffers && r == 0; i++)
        r = add_tensor(ret, "state_dict", state->buffers[i].name, state->buffers[i].tensor,
                       state->buffers[i].tensor->dtype, state->params->dev,
                       state->buffers[i].tensor->data, err);
    for (size_t i = 0; !weights_only && i < state->optimizers->n && r == 0; i++)
        r = save_optimizer(state, i, ret, err);
    return r;
}

static void convert(void *to, enum plume_dtype to_type, const struct pl_checkpoint_tensor *from)
{
    if (to_type == from->dtype)
        memcpy(to, from->data, from->bytes);
    else if (to_type == PLUME_F64)
        for (size_t i = 0; i < from->bytes / sizeof(float); i++)
            ((double *)to)[i] = (double)((const float *)from->data)[i];
    else
        for (size_t i = 0; i < from->bytes / sizeof(double); i++)
            ((float *)to)[i] = (float)((const double *)from->data)[i];
}

static bool convertible(enum plume_dtype a, enum plume_dtype b)
{
    return a == b || ((a == PLUME_F32 || a == PLUME_F64) && (b == PLUME_F32 || b == PLUME_F64));
}

/* Finds PREFIX/NAME and looks whether it fits; `to` NULL only looks. */
static int load_tensor(const struct pl_checkpoint *c,
                       const char *prefix,
                       const char *name,
                       const plume_tensor *t,
                       enum plume_dtype dtype,
                       struct pl_device *dev,
                       void *to,
                       struct pl_error *err)
{
    _cleanup_free_ char *full = pl_strf("%s/%s", prefix, name);
    const struct pl_checkpoint_tensor *from;
    struct pl_device_map map;
    int r;

    if (!full)
        return pl_error_set(err, -ENOMEM, "out of memory");
    from = pl_checkpoint_find(c, full);
    if (!from)
        return pl_error_set(err, -EINVAL, "the checkpoint has no '%s': it is of another model",
                            full);
    if (from->rank != t->rank || memcmp(from->shape, t->shape, t->rank * sizeof(*t->shape)) != 0 ||
        !convertible(dtype, from->dtype))
        return pl_error_set(err, -EINVAL,
                            "the checkpoint's '%s' has another shape or type: it is of another "
                            "model",
                            full);
    if (!to)
        return 0;
    r = pl_device_map(dev, to, t->count * pl_dtype_size(dtype), PL_DEVICE_WRITE, &map, err);
    if (r < 0)
        return r;
    convert(map.data, dtype, from);
    pl_device_unmap(&map);
    return 0;
}

static int load_values(const struct pl_state *s,
                       const struct pl_checkpoint *c,
                       bool look,
                       struct pl_error *err)
{
    size_t expected = s->params->n + s->n_buffers, have = 0;
    int r = 0;

    for (size_t i = 0; i < s->params->n && r == 0; i++) {
        const struct pl_param *p = s->params->list[i];

        r = load_tensor(c, "state_dict", p->name, p->tensor, pl_dtype_of_real(s->params->real),
                        s->params->dev, look ? NULL : value_of(s->params, p), err);
    }
    for (size_t i = 0; i < s->n_buffers && r == 0; i++) {
        plume_tensor *t = s->buffers[i].tensor;

        r = load_tensor(c, "state_dict", s->buffers[i].name, t, t->dtype, s->params->dev,
                        look ? NULL : t->data, err);
    }
    for (size_t i = 0; i < c->n; i++)
        have += strncmp(c->tensors[i].name, "state_dict/", 11) == 0;
    if (r == 0 && have != expected)
        return pl_error_set(err, -EINVAL,
                            "the checkpoint has %zu parameters and buffers, the model %zu: it is "
                            "of another model",
                            have, expected);
    return r;
}

/* Entry `index` of a list by key, as a new string; NULL where there is none. */
static char *entry_of(const struct pl_checkpoint *c, const char *key, size_t index)
{
    struct pl_mini_value list, entry;
    size_t pos = 0;

    if (!c->header || pl_mini_find(c->header, key, &list) < 0 || list.type != PL_MINI_ARRAY)
        return NULL;
    for (size_t i = 0; pl_mini_next(&list, &pos, &entry) == 1; i++)
        if (i == index)
            return strndup(entry.start, entry.len);
    return NULL;
}

/* What add_missed() made; nothing of a checkpoint of before. */
static int read_missed(const struct pl_state *s,
                       const struct pl_optimizer *o,
                       const char *state,
                       bool look,
                       struct pl_error *err)
{
    _cleanup_free_ char *missed = pl_json_get_text(state, "missed");

    for (size_t i = 0; i < o->n_ranges; i++)
        for (size_t k = o->ranges[i].first; k < o->ranges[i].first + o->ranges[i].n; k++) {
            struct pl_param *p = s->params->order[k];
            double n = 0;

            if (missed && pl_json_get_double(missed, p->name, &n) == -EINVAL)
                n = -1;
            if (!(n >= 0 && n <= (double)o->steps))
                return pl_error_set(
                    err, -EINVAL, "the checkpoint's optimizer state of '%s' is malformed", p->name);
            if (!look)
                p->missed = (uint64_t)n;
        }
    return 0;
}

/* The JSON side of an optimizer, into a copy. */
static int read_optimizer(const struct pl_state *s,
                          const struct pl_checkpoint *c,
                          size_t index,
                          bool look,
                          struct pl_optimizer *o,
                          struct pl_error *err)
{
    _cleanup_free_ char *state = entry_of(c, "optimizer_states", index), *kind = NULL;
    _cleanup_free_ char *schedule = entry_of(c, "lr_schedulers", index);
    struct pl_schedule saved = {0};
    int64_t steps, t, bad, cooling;

    if (!state || !schedule)
        return pl_error_set(err, -EINVAL, "the checkpoint has no optimizer %zu", index);
    if (pl_mini_get_string(state, "kind", &kind) < 0 ||
        strcmp(kind, pl_optimizer_kind_name(o->options.kind)) != 0)
        return pl_error_set(err, -EINVAL, "the checkpoint is of optimizer '%s', this run's is '%s'",
                            kind ? kind : "", pl_optimizer_kind_name(o->options.kind));
    if (pl_mini_get_int(state, "step", &steps) < 0 || steps < 0 ||
        pl_mini_get_int(schedule, "t", &t) < 0 || t < 0 ||
        pl_mini_get_int(schedule, "bad", &bad) < 0 || bad < 0 || bad > INT32_MAX ||
        pl_mini_get_int(schedule, "cooling", &cooling) < 0 || cooling < 0 || cooling > INT32_MAX ||
        pl_json_get_double(schedule, "plain", &saved.plain) < 0 ||
        pl_json_get_double(schedule, "factor", &saved.factor) < 0 ||
        pl_json_get_double(schedule, "lr", &saved.lr) < 0 ||
        pl_json_get_double(schedule, "best", &saved.best) < 0 || !(saved.factor > 0))
        return pl_error_set(err, -EINVAL, "the checkpoint's optimizer %zu is malformed", index);
    saved.t = (uint64_t)t;
    saved.bad = (int)bad;
    saved.cooling = (int)cooling;
    o->steps = (uint64_t)steps;
    pl_schedule_restore(&o->schedule, &saved);
    return read_missed(s, o, state, look, err);
}

static int load_slots(const struct pl_state *s,
                      const struct pl_checkpoint *c,
                      size_t index,
                      bool look,
                      struct pl_error *err)
{
    const struct pl_optimizer *o = &s->optimizers->list[index];
    char prefix[64];
    int r = 0;

    for (size_t slot = 0; slot < pl_optimizer_slots(o); slot++) {
        snprintf(prefix, sizeof(prefix), "optimizer_states/%zu/%s", index,
                 pl_optimizer_slot_name(o, slot));
        for (size_t i = 0; i < s->params->n && r == 0; i++) {
            const struct pl_param *p = s->params->list[i];
            void *to = pl_optimizer_state(s->optimizers, o, slot, p);

            if (to)
                r = load_tensor(c, prefix, p->name, p->tensor, pl_dtype_of_real(s->params->real),
                                s->params->dev, look ? NULL : to, err);
        }
    }
    return r;
}

static int
load_optimizers(struct pl_state *s, const struct pl_checkpoint *c, bool look, struct pl_error *err)
{
    _cleanup_free_ char *more = entry_of(c, "optimizer_states", s->optimizers->n);
    int r = 0;

    if (more)
        return pl_error_set(err, -EINVAL, "the checkpoint has more than %zu optimizers",
                            s->optimizers->n);
    for (size_t i = 0; i < s->optimizers->n && r == 0; i++) {
        struct pl_optimizer o = s->optimizers->list[i];

        r = read_optimizer(s, c, i, look, &o, err);
        if (r == 0)
            r = load_slots(s, c, i, look, err);
        if (r == 0 && !look)
            s->optimizers->list[i] = o;
    }
    return r;
}

static int read_scaler(const struct pl_checkpoint *c, struct pl_scaler *scaler)
{
    _cleanup_free_ char *text = pl_checkpoint_get(c, "amp_scaling_state");
    int64_t good, skipped;
    double scale;

    if (!text || !scaler || !scaler->enabled)
        return 0; /* another precision than then: begins anew, as in Lightning */
    if (pl_mini_get_int(text, "growth_tracker", &good) < 0 || good < 0 || good > UINT32_MAX ||
        pl_mini_get_int(text, "skipped", &skipped) < 0 || skipped < 0 ||
        pl_json_get_double(text, "scale", &scale) < 0 || !(scale > 0) || !isfinite(scale))
        return -EINVAL;
    scaler->good_steps = (uint32_t)good;
    scaler->skipped = (uint64_t)skipped;
    scaler->scale = (float)scale;
    return 0;
}

/* Position, scaler and callbacks into *s. */
static int read_keys(struct pl_state *s, const struct pl_checkpoint *c, struct pl_error *err)
{
    _cleanup_free_ char *loops = pl_checkpoint_get(c, "loops");
    _cleanup_free_ char *sampler = pl_checkpoint_get(c, "sampler");
    int64_t epoch, step, batches, samples, seed;

    if (!loops || !sampler || pl_checkpoint_get_int(c, "epoch", &epoch) < 0 || epoch < 0 ||
        pl_checkpoint_get_int(c, "global_step", &step) < 0 || step < 0 ||
        pl_mini_get_int(loops, "batches", &batches) < 0 || batches < 0 ||
        pl_mini_get_int(loops, "samples", &samples) < 0 || samples < 0 ||
        pl_mini_get_int(sampler, "seed", &seed) < 0)
        return pl_error_set(err, -EINVAL, "the checkpoint does not say where training was");
    if ((uint64_t)seed != s->seed)
        return pl_error_set(err, -EINVAL,
                            "the checkpoint is of a run with seed %lld: give --seed %lld to go on "
                            "with it",
                            (long long)seed, (long long)seed);
    s->epoch = (uint64_t)epoch;
    s->global_step = (uint64_t)step;
    s->samples = (uint64_t)samples;
    s->batches = s->samples_per_step ? s->samples / s->samples_per_step : (uint64_t)batches;
    return 0;
}

int pl_train_state_load(struct pl_state *state,
                        const struct pl_checkpoint *checkpoint,
                        struct pl_error *err)
{
    struct pl_scaler scaler = state->scaler ? *state->scaler : (struct pl_scaler){0};
    struct pl_state next = *state;
    _cleanup_free_ char *optimizers = pl_checkpoint_get(checkpoint, "optimizer_states");
    int r = load_values(state, checkpoint, true, err);

    if (r == 0 && state->optimizers && !optimizers)
        return pl_error_set(err, -EINVAL,
                            "the checkpoint has weights only: give it to --weights instead");
    if (r == 0 && state->optimizers) {
        r = load_optimizers(state, checkpoint, true, err);
        if (r == 0)
            r = read_keys(&next, checkpoint, err);
        if (r == 0 && read_scaler(checkpoint, &scaler) < 0)
            r = pl_error_set(err, -EINVAL, "the checkpoint's amp_scaling_state is malformed");
    }
    if (r == 0) {
        state->params->values_version++;
        state->params->buffers_version++;
        r = load_values(state, checkpoint, false, err);
    }
    if (r < 0 || !state->optimizers)
        return r;
    r = load_optimizers(state, checkpoint, false, err);
    if (r < 0)
        return r;
    next.callbacks = pl_checkpoint_get(checkpoint, "callbacks");
    *state = next;
    if (state->scaler)
        *state->scaler = scaler;
    return 0;
}
