/* SPDX-License-Identifier: MIT */
/* A training state's parameters and buffers, and arrays of a parameter's shape. */
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/train_state_private.h"

int pl_train_state_visit_own(const struct pl_visit *v,
                             const struct pl_train_state *s,
                             const char *prefix,
                             const struct pl_param *p,
                             void *own,
                             const struct pl_shard_span *span)
{
    enum plume_dtype dtype = pl_dtype_of_real(s->params->real);
    bool apart = span || pl_param_is_split(p);
    _cleanup_free_ char *whole = NULL;
    int r;

    if (v->parts && apart)
        return pl_state_parts_put(v->parts, s->params, p, own, span, v->err);
    if (v->parts) /* rank 0 has it, and has written it */
        return 0;
    if (!apart)
        return pl_visit_tensor(v, prefix, p->name, p->tensor, dtype, s->params->dev, own);
    if (v->pass == PL_VISIT_SAVE)
        return pl_visit_apart(v, prefix, p->name, p->whole, dtype);
    whole = malloc(p->whole->count * pl_dtype_size(dtype));
    if (!whole)
        return pl_error_set(v->err, -ENOMEM, "out of memory for a checkpoint");
    r = pl_visit_tensor(v, prefix, p->name, p->whole, dtype, pl_device_cpu(), whole);
    return r == 0 && v->pass == PL_VISIT_LOAD
               ? pl_param_part_put(s->params, p, own, span, whole, v->err)
               : r;
}

int pl_train_state_visit_value(const struct pl_visit *v,
                               const struct pl_train_state *s,
                               const char *prefix,
                               const struct pl_param *p,
                               const void *arena)
{
    const struct pl_params *params = s->params;
    struct pl_shard_span span = pl_shard_span(params, p);

    if (pl_params_partial(params))
        return pl_train_state_visit_own(v, s, prefix, p, pl_shard_part(params, p, arena), &span);
    return pl_train_state_visit_own(
        v, s, prefix, p, (char *)(uintptr_t)arena + p->offset * pl_real_size(params->real), NULL);
}

int pl_train_state_visit_values(const struct pl_visit *v,
                                const struct pl_train_state *s,
                                bool weights_only)
{
    const struct pl_params *params = s->params;
    bool averaged =
        weights_only && v->pass == PL_VISIT_SAVE && s->ema && s->ema->params && s->ema->steps > 0;
    void *values = averaged ? s->ema->values : params->values;
    size_t expected = params->n + params->n_buffers, have = 0;
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++)
        r = pl_train_state_visit_value(v, s, "", params->list[i], values);
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
