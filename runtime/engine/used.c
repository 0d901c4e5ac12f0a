/* SPDX-License-Identifier: MIT */
#include "runtime/engine/used.h"

#include <string.h>

/* The first node that adds to the parameter's gradient; SIZE_MAX where none does. */
static size_t first_node(const struct pl_tape *tape, const plume_tensor *param)
{
    for (size_t i = 0; i < tape->n; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in && tape->nodes[i].back; k++) {
            plume_tensor *in = tape->nodes[i].in[k];

            if (in && in->wants_grad && pl_tensor_root(in) == param)
                return i;
        }
    return SIZE_MAX;
}

void pl_used_forget(struct pl_params *params)
{
    params->plans = 0;
}

bool pl_used_look(struct pl_params *params, const struct pl_tape *const *tapes, size_t n)
{
    uint64_t plans = n;

    for (size_t i = 0; i < n; i++)
        plans += tapes[i]->plans << 8; /* more tapes than 255 there are not */
    if (plans == params->plans)
        return false;
    params->plans = plans;
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        p->first_node = first_node(tapes[0], p->tensor);
        p->reached = p->first_node != SIZE_MAX;
        for (size_t k = 1; k < n && !p->reached; k++)
            p->reached = first_node(tapes[k], p->tensor) != SIZE_MAX;
    }
    return true;
}

static void *flag(const struct pl_params *params, size_t i)
{
    return (char *)params->grads + (params->flags + i) * pl_real_size(params->real);
}

void pl_used_add(struct pl_params *params, bool first, bool any)
{
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        if (!p->tensor->wants_grad)
            continue;
        if (first && !(any && p->first_node != SIZE_MAX))
            memset(p->tensor->grad, 0, p->tensor->count * pl_real_size(params->real));
        p->used = (p->used && !first) || (any && p->reached);
        if (params->real == PL_REAL_F64)
            *(double *)flag(params, i) = p->used;
        else
            *(float *)flag(params, i) = p->used;
    }
}

bool pl_used_take(struct pl_params *params)
{
    bool any = false;

    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        if (!p->tensor->wants_grad)
            continue;
        p->unused = params->real == PL_REAL_F64 ? *(const double *)flag(params, i) == 0
                                                : *(const float *)flag(params, i) == 0;
        any |= !p->unused;
    }
    return any;
}
