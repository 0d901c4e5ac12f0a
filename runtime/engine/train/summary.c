/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/summary.h"
#include "runtime/engine/train/memory_need.h"

#include <string.h>

#define MIB (1.0 / (1 << 20))

static void print_row(FILE *out, const char *kind, const char *name, const plume_tensor *t)
{
    char text[96];

    fprintf(out, "%-9s %-32s %-26s %12zu\n", kind, name, pl_tensor_text(t, text, sizeof(text)),
            t->count);
}

/* *ret: the bytes of parameters and of buffers. */
static void print_params(const struct pl_params *params, FILE *out, double ret[2])
{
    size_t count = 0, buffers = 0, own = 0;

    fprintf(out, "%-9s %-32s %-26s %12s\n", "", "name", "shape", "numbers");
    for (size_t i = 0; i < params->n; i++) {
        print_row(out, "parameter", params->list[i]->name, params->list[i]->whole);
        count += params->list[i]->whole->count;
        own += params->list[i]->tensor->count;
    }
    ret[0] = (double)(params->count * pl_real_size(params->real));
    ret[1] = 0;
    for (size_t i = 0; i < params->n_buffers; i++) {
        const plume_tensor *t = params->buffers[i].tensor;

        print_row(out, "buffer", params->buffers[i].name, t);
        buffers += t->count;
        ret[1] += (double)(t->count * pl_dtype_size(t->dtype));
    }
    fprintf(out, "%zu parameters of %zu numbers", params->n, count);
    if (params->peers)
        fprintf(out, ", %zu of them on this rank", own);
    fprintf(out, ", %zu buffers of %zu\n\n", params->n_buffers, buffers);
}

static bool alike(const struct pl_node *a, const struct pl_node *b)
{
    return a->op == b->op && a->out->dtype == b->out->dtype && a->out->rank == b->out->rank &&
           memcmp(a->out->shape, b->out->shape, a->out->rank * sizeof(a->out->shape[0])) == 0;
}

static double flops_of(const struct pl_node *node, bool backward)
{
    return node->op->flops && (!backward || node->back) ? node->op->flops(node, backward) : 0;
}

/* The ops that run, those with outputs of the same type and shape in one line, where the first of
 * them is. Adds to total: forward, backward. */
static void print_ops(const struct pl_tape *tape, FILE *out, double total[2])
{
    char text[96];

    fprintf(out, "%-20s %-26s %5s %14s %14s\n", "op", "output", "calls", "forward Mflop",
            "backward Mflop");
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        double flops[2] = {0};
        size_t calls = 0, first = 0;

        if (node->op->view || node->unread)
            continue;
        while (tape->nodes[first].unread || !alike(&tape->nodes[first], node))
            first++;
        if (first < i)
            continue;
        for (size_t k = i; k < tape->n; k++)
            if (alike(&tape->nodes[k], node) && !tape->nodes[k].unread) {
                flops[0] += flops_of(&tape->nodes[k], false);
                flops[1] += flops_of(&tape->nodes[k], true);
                calls++;
            }
        total[0] += flops[0];
        total[1] += flops[1];
        fprintf(out, "%-20s %-26s %5zu %14.3f %14.3f\n", node->op->name,
                pl_tensor_text(node->out, text, sizeof(text)), calls, flops[0] * 1e-6,
                flops[1] * 1e-6);
    }
}

static void print_stage_memory(const struct pl_trainer *t, const double bytes[2], FILE *out)
{
    double size = (double)pl_real_size(t->ctx.params.real), state = 0;
    double own = size * (double)pl_params_held(&t->ctx.params);
    char text[2][PL_MEMORY_TEXT];

    for (size_t i = 0; i < t->optimizers.n; i++)
        state += (double)pl_optimizer_slots(&t->optimizers.list[i]) * size *
                 (double)t->optimizers.list[i].count;
    fprintf(out,
            "MiB of this rank's stage: parameters %.3f, gradients %.3f, optimizers %.3f, "
            "buffers %.3f\nneeds by stage: ",
            own * MIB, own * MIB, state * MIB, bytes[1] * MIB);
    for (unsigned s = 0; s < t->pipe.n_stages; s++)
        fprintf(out, "%s%s of %s", s ? ", " : "", pl_memory_text(t->pipe.needs[s], text[0]),
                pl_memory_text(t->pipe.limits[s], text[1]));
    fputs(" a rank\n\n", out);
}

static void print_memory(struct pl_trainer *t, const struct pl_memory_need *need, FILE *out)
{
    char text[2][PL_MEMORY_TEXT];

    fprintf(out, "MiB of this rank: parameters %.3f, ", need->params * MIB);
    if (t->units.n)
        fprintf(out, "gathered %.3f, ", need->gathered * MIB);
    fprintf(out,
            "gradients %.3f, optimizers %.3f, average %.3f, buffers %.3f, step %.3f (%.3f without "
            "reuse), validation and test %.3f, in all %.3f\n",
            need->grads * MIB, need->state * MIB, need->average * MIB, need->buffers * MIB,
            need->step * MIB, need->unshared * MIB, need->evaluation * MIB, need->all * MIB);
    fprintf(out, "needs %s of %s per rank\n\n", pl_memory_text(need->all, text[0]),
            pl_memory_text(pl_memory_limit(t), text[1]));
}

/* No rank of a pipeline plans the whole step: finds the ops that run, forward and backward. */
static int mark_runs(struct pl_part *part, plume_tensor *loss, struct pl_error *err)
{
    struct pl_tape *tape = &part->tape;
    struct pl_tape_flow flow;
    int r = pl_tape_flow_init(&flow, tape, loss, err);

    tape->n_roots = 0;
    if (loss)
        tape->roots[tape->n_roots++] = loss;
    for (size_t i = 0; i < part->logs.n_pending && tape->n_roots < PL_TAPE_ROOTS_MAX; i++)
        tape->roots[tape->n_roots++] = part->logs.pending[i].value;
    pl_tape_plan_unread(tape);
    for (size_t i = 0; r == 0 && i < tape->n; i++)
        tape->nodes[i].back = flow.back[i];
    if (r == 0)
        pl_tape_flow_finish(&flow);
    return r;
}

/* Traces the step of a pipeline on a full batch. */
static int trace_step(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_stage *stage = &trainer->stage[PLUME_TRAIN];
    struct pl_lane *lane = &stage->lanes[0];
    plume_tensor *loss = NULL;
    int r = pl_lane_trace(stage, lane, pl_loader_dry(&stage->loader), &loss, err);

    return r < 0 ? r : mark_runs(&lane->parts.list[0], loss, err);
}

int pl_summary_print(struct pl_trainer *trainer, FILE *out, struct pl_error *err)
{
    struct pl_stage *stage = &trainer->stage[PLUME_TRAIN];
    double bytes[2], flops[2] = {0};
    struct pl_memory_need need;
    int r = trainer->pipe.on ? trace_step(trainer, err) : pl_memory_need(trainer, &need, err);

    if (r < 0)
        return r;
    print_params(&trainer->ctx.params, out, bytes);
    for (unsigned i = 0; i < stage->n_lanes; i++) {
        const struct pl_tape *tape = &stage->lanes[i].parts.list[0].tape;

        pl_stage_enter_lane(stage, &trainer->optimizers, i); /* ops count by what wants gradients */
        if (stage->n_lanes > 1)
            fprintf(out, "optimizer %u:\n", i);
        print_ops(tape, out, flops);
    }
    pl_stage_enter_lane(stage, &trainer->optimizers, 0);
    fprintf(out, "a step: %.3f Mflop forward, %.3f backward%s\n", flops[0] * 1e-6, flops[1] * 1e-6,
            trainer->strategy.devices > 1 ? ", on the first device" : "");
    if (trainer->pipe.on)
        print_stage_memory(trainer, bytes, out);
    else
        print_memory(trainer, &need, out);
    fflush(out);
    return 0;
}
