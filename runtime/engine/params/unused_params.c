/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/comm/comm.h"

/* True if the node adds to the parameter's gradient. */
static bool adds(const struct pl_tape *tape, size_t index, const plume_tensor *param)
{
    const struct pl_node *node = &tape->nodes[index];

    for (size_t k = 0; k < node->n_in && node->back; k++)
        if (node->in[k] && node->in[k]->wants_grad && pl_tensor_root(node->in[k]) == param)
            return true;
    return false;
}

/* The first such node; SIZE_MAX if there is none. */
static size_t first_node(const struct pl_tape *tape, const plume_tensor *param)
{
    for (size_t i = 0; i < tape->n; i++)
        if (adds(tape, i, param))
            return i;
    return SIZE_MAX;
}

static size_t last_node(const struct pl_tape *tape, const plume_tensor *param)
{
    size_t i = tape->n;

    while (i > 0 && !adds(tape, i - 1, param))
        i--;
    return i ? i - 1 : 0;
}

static size_t read_node(const struct pl_tape *tape, const plume_tensor *param)
{
    for (size_t i = 0; i < tape->n; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in; k++)
            if (tape->nodes[i].in[k] && pl_tensor_root(tape->nodes[i].in[k]) == param)
                return i;
    return SIZE_MAX;
}

void pl_unused_params_reset(struct pl_params *params)
{
    params->plans = 0;
}

bool pl_unused_params_find(struct pl_params *params, const struct pl_tape *const *tapes, size_t n)
{
    uint64_t plans = n;

    for (size_t i = 0; i < n; i++)
        plans += tapes[i]->plans << 8; /* at most 255 tapes */
    if (plans == params->plans)
        return false;
    params->plans = plans;
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        p->first_node = first_node(tapes[0], p->tensor);
        p->last_node = p->first_node == SIZE_MAX ? 0 : last_node(tapes[0], p->tensor);
        p->read_node = read_node(tapes[0], p->tensor);
        p->reached = p->first_node != SIZE_MAX;
        for (size_t k = 1; k < n && !p->reached; k++)
            p->reached = first_node(tapes[k], p->tensor) != SIZE_MAX;
    }
    return true;
}

static size_t flags_bytes(const struct pl_params *params)
{
    return (params->n + PL_PARAMS_SIGNALS) * pl_real_size(params->real);
}

static void set_flag(const struct pl_params *params, void *list, size_t i, bool value)
{
    if (params->real == PL_REAL_F64)
        ((double *)list)[i] = value;
    else
        ((float *)list)[i] = value;
}

static bool flag(const struct pl_params *params, const void *list, size_t i)
{
    return params->real == PL_REAL_F64 ? ((const double *)list)[i] != 0
                                       : ((const float *)list)[i] != 0;
}

int pl_unused_params_mark(struct pl_params *params, bool first, bool any, struct pl_error *err)
{
    size_t size = pl_real_size(params->real);
    struct pl_device_map map;
    int r = pl_device_map(params->dev, params->flag_list, flags_bytes(params), PL_DEVICE_WRITE,
                          &map, err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];
        bool mine = p->tensor->wants_grad;

        p->written = mine && any && p->first_node != SIZE_MAX;
        /* With a shard of the gradients, the reducer clears what was not written. */
        if (mine && first && !p->written && !pl_params_shard_grads(params) && p->tensor->grad)
            pl_device_zero(params->dev, p->tensor->grad, p->tensor->count * size);
        if (mine)
            p->used = (p->used && !first) || (any && p->reached);
        set_flag(params, map.data, i, mine && p->used);
    }
    for (size_t i = 0; i < PL_PARAMS_SIGNALS; i++)
        set_flag(params, map.data, params->n + i, params->signal[i]);
    pl_device_unmap(&map);
    return 0;
}

/* The sum of the flags of the node's ranks, if they are not summed yet. */
static bool any_flag(const struct pl_params *params, const void *list, size_t i)
{
    bool any = false;

    if (!params->apart)
        return flag(params, list, i);
    for (unsigned k = 0; k < params->by_node->size; k++)
        any |= flag(params, pl_comm_of_peer(params->by_node, params->flag_list, k), i);
    return any;
}

int pl_unused_params_collect(struct pl_params *params,
                             bool alone,
                             bool *ret_any,
                             struct pl_error *err)
{
    struct pl_device_map map = {0};
    bool any = false;
    int r = alone ? 0
                  : pl_device_map(params->dev, params->flag_list, flags_bytes(params),
                                  PL_DEVICE_READ, &map, err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < PL_PARAMS_SIGNALS; i++)
        params->heard[i] |= alone ? params->signal[i] : any_flag(params, map.data, params->n + i);
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        if (!p->tensor->wants_grad)
            continue;
        if (alone)
            p->unused = !p->used;
        else
            p->unused = !any_flag(params, map.data, i);
        any |= !p->unused;
    }
    pl_device_unmap(&map);
    *ret_any = any;
    return 0;
}
