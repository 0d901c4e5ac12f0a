/* SPDX-License-Identifier: MIT */
/* A training state's parameters and buffers, and arrays of a parameter's shape. */
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/train_state_private.h"

/* A parameter, or a slot of one, of which each rank has a part. */
int pl_train_state_visit_shards(const struct pl_visit *v,
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
int pl_train_state_visit_own(const struct pl_visit *v,
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

int pl_train_state_visit_values(const struct pl_visit *v, const struct pl_train_state *s)
{
    const struct pl_params *params = s->params;
    size_t expected = params->n + params->n_buffers, have = 0;
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        const struct pl_param *p = params->list[i];

        if (pl_params_partial(params))
            r = pl_train_state_visit_shards(v, s, "", p, pl_shard_part(params, p, params->values),
                                            pl_shard_span(params, p));
        else
            r = pl_train_state_visit_own(v, s, "", p, pl_param_value(params, p));
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
