/* SPDX-License-Identifier: MIT */
/* The tensors that a hook may use. */
#include "runtime/engine/module/context.h"

/* True for a tape of a part that has given an output. */
static bool has_given(const struct plume_outputs *outputs, const struct pl_tape *tape)
{
    for (size_t i = 0; outputs && i < outputs->n; i++)
        for (unsigned k = 0; k < outputs->parts; k++)
            if (outputs->list[i].part[k] && outputs->list[i].part[k]->tape == tape)
                return true;
    return false;
}

bool pl_context_is_of_step(const struct pl_context *ctx, const plume_tensor *t)
{
    const struct pl_tape *tape = t->tape;

    if (!tape) /* a parameter, a buffer or a field */
        return true;
    return (tape == ctx->tape || has_given(ctx->ended, tape)) && t->node < tape->cursor &&
           tape->nodes[t->node].out == t;
}
