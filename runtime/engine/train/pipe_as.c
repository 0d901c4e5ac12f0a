/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/pipe_as.h"
#include "common/base/buf.h"
#include "runtime/engine/params/stages.h"

#include <string.h>

static void drop_slot(struct pl_pipe_slot *slot, bool recompute)
{
    if (!slot)
        return;
    pl_stage_tape_finish(&slot->own);
    slot->recordings = 0;
    slot->lane.parts.root->tape.recompute = recompute;
}

/* Stages' tapes are built anew, with the options that are now in effect. */
static void drop_tapes(struct pl_pipe *pipe)
{
    for (int kind = PLUME_TRAIN; kind <= PLUME_TEST; kind++) {
        struct pl_pipe_slots *slots = &pipe->slots[kind];
        bool recompute = kind == PLUME_TRAIN && pipe->options->recompute;

        for (size_t i = 0; i < slots->n; i++)
            drop_slot(slots->list[i], recompute);
        drop_slot(slots->tail, recompute);
    }
}

/* Notes anew which stages use which parameter: the cut decides it. */
static int note_uses(struct pl_pipe *pipe, struct pl_error *err)
{
    for (size_t i = 0; i < pipe->params->n; i++)
        pipe->params->list[i]->borrowers = 0;
    return pl_pipe_note_uses(pipe, err);
}

/* The costs of a microbatch of other rows on more devices like these. What ops keep grows with the
 * rows; their times do, too, and compare as before. */
static int more_costs(struct pl_pipe *pipe, const struct pl_pipe_was *was, struct pl_error *err)
{
    const struct pl_pipe_costs *old = &was->costs;
    struct pl_pipe_costs *c = &pipe->costs;
    size_t rows = pl_loader_dry(&pipe->stages[PLUME_TRAIN].loader)->rows, n = c->n, chunk;
    size_t microbatches = pl_pipe_microbatches(pipe, rows, &chunk);
    double share = (double)chunk / (double)PL_MAX(old->rows, (size_t)1);
    double limit = old->limit[0];

    c->seconds = calloc(pipe->n_stages * n + 1, sizeof(double));
    c->kept = calloc(n + 1, sizeof(double));
    c->entering = calloc(n + 1, sizeof(double));
    c->limit = calloc(pipe->n_stages, sizeof(double));
    c->in_flight = calloc(pipe->n_stages, sizeof(double));
    if (!c->seconds || !c->kept || !c->entering || !c->limit || !c->in_flight)
        return pl_error_nomem(err);
    for (unsigned s = 0; s < was->n_stages; s++)
        limit = PL_MIN(limit, old->limit[s]);
    for (unsigned s = 0; s < pipe->n_stages; s++) {
        memcpy(c->seconds + s * n, old->seconds + (s % was->n_stages) * n, n * sizeof(double));
        c->limit[s] = limit;
        c->in_flight[s] = (double)pl_pipe_kept_by(pipe, s, microbatches);
    }
    for (size_t i = 0; i < n; i++) {
        c->kept[i] = old->kept[i] * share;
        c->entering[i] = old->entering[i] * share;
    }
    return 0;
}

static int cut_as(struct pl_pipe *pipe,
                  const struct pl_pipe_as *as,
                  struct pl_pipe_was *was,
                  struct pl_error *err)
{
    struct pl_cut_problem problem;
    size_t bytes;
    int r = 0;

    if (as->stages)
        pipe->n_stages = as->stages;
    bytes = (pipe->n_stages + 1) * sizeof(*pipe->cut);
    pipe->cut = calloc(1, bytes);
    if (!pipe->cut)
        return pl_error_nomem(err);
    if (as->cut)
        memcpy(pipe->cut, as->cut, bytes);
    else
        r = more_costs(pipe, was, err);
    if (r == 0 && !as->cut) {
        problem = pl_pipe_problem(pipe);
        problem.even = true;
        r = pl_pipe_choose(pipe, &problem, pipe->cut, &was->fullest, err);
    }
    if (r == 0)
        pipe->params->stages = (struct pl_param_stages){.n = pipe->n_stages, .cut = pipe->cut};
    return r;
}

int pl_pipe_as_begin(struct pl_pipe *pipe,
                     const struct pl_pipe_as *as,
                     struct pl_pipe_was *was,
                     struct pl_error *err)
{
    int r = 0;

    *was = (struct pl_pipe_was){
        .options = *pipe->options,
        .before = pipe->options,
        .n_stages = pipe->n_stages,
        .stage = pipe->stage,
        .cut = pipe->cut,
        .own_from = pipe->params->own_from,
        .own_to = pipe->params->own_to,
        .costs = pipe->costs,
        .stages = pipe->params->stages,
        .cuts = as->stages || as->cut,
    };
    if (as->microbatches)
        was->options.microbatches = as->microbatches;
    if (as->in_turn)
        was->options.pipe_order = PL_PIPE_1F1B;
    was->options.recompute |= as->recompute;
    pipe->options = &was->options;
    if (was->cuts)
        r = cut_as(pipe, as, was, err);
    drop_tapes(pipe);
    if (r < 0)
        pl_pipe_as_end(pipe, was);
    return r;
}

int pl_pipe_as_stage(struct pl_pipe *pipe, unsigned stage, struct pl_error *err)
{
    int r;

    pipe->stage = pipe->params->stages.own = stage;
    drop_tapes(pipe);
    r = pl_stages_set_bounds(pipe->params, err);
    return r < 0 ? r : note_uses(pipe, err);
}

void pl_pipe_as_end(struct pl_pipe *pipe, struct pl_pipe_was *was)
{
    struct pl_pipe_costs *c = &pipe->costs;

    if (was->cuts) {
        if (pipe->params->stages.bounds != was->stages.bounds)
            free(pipe->params->stages.bounds);
        if (c->seconds != was->costs.seconds) {
            free(c->seconds);
            free(c->kept);
            free(c->entering);
            free(c->limit);
            free(c->in_flight);
        }
        free(pipe->cut);
        pipe->costs = was->costs;
        pipe->cut = was->cut;
        pipe->n_stages = was->n_stages;
        pipe->stage = was->stage;
        pipe->params->stages = was->stages;
        pipe->params->own_from = was->own_from;
        pipe->params->own_to = was->own_to;
        (void)note_uses(pipe, NULL); /* it has been possible before */
    }
    pipe->options = was->before;
    drop_tapes(pipe);
}

/* ---- where nothing fits ---- */

/* Adds options to the text if a cut fits with them. Collective. */
static int try_options(struct pl_pipe *pipe,
                       const struct pl_pipe_as *as,
                       const char *options,
                       struct pl_buf *text,
                       bool *ret,
                       struct pl_error *err)
{
    struct pl_pipe_was was;
    struct pl_error own = {0};
    int r = pl_pipe_as_begin(pipe, as, &was, &own);

    *ret = r == 0 && was.fullest <= 1;
    if (r == 0)
        pl_pipe_as_end(pipe, &was);
    if (*ret) {
        r = pl_buf_addf(text, "%s%s", text->len ? ", or " : "", options);
    }
    if (r == 0 || r == -EINVAL) /* the verdict of all ranks */
        return 0;
    return pl_error_set(err, r, "%s", pl_error_text(&own));
}

/* Not --recompute: how much it saves depends on the cut. */
static int find_options(struct pl_pipe *pipe, struct pl_buf *text, struct pl_error *err)
{
    size_t rows = pl_loader_dry(&pipe->stages[PLUME_TRAIN].loader)->rows, chunk;
    size_t n = pl_pipe_microbatches(pipe, rows, &chunk);
    size_t most = PL_MIN(rows, (size_t)PL_PIPE_MICROBATCHES_MAX);
    unsigned stages = pipe->n_stages, ranks = pipe->world->size / stages;
    struct pl_pipe_as as = {.stages = stages};
    char options[96];
    bool fits = false;
    int r = 0;

    if (pipe->peers)
        ranks *= pipe->peers->size;
    if (pipe->options->pipe_order == PL_PIPE_GPIPE) {
        as.in_turn = true;
        r = try_options(pipe, &as, "--schedule 1f1b", text, &fits, err);
        as.in_turn = fits = false;
    }
    while (n < most && r == 0 && !fits) {
        as.microbatches = n = PL_MIN(2 * n, most);
        snprintf(options, sizeof(options), "--microbatches %zu", n);
        r = try_options(pipe, &as, options, text, &fits, err);
    }
    fits = false;
    for (unsigned s = 2 * stages; s <= PL_STAGES_MAX && r == 0 && !fits; s *= 2) {
        snprintf(options, sizeof(options), "--stages %u, on %u ranks with as much memory each", s,
                 s * ranks);
        r = try_options(pipe, &(struct pl_pipe_as){.stages = s}, options, text, &fits, err);
    }
    return r;
}

int pl_pipe_cut_as(struct pl_pipe *pipe, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    struct pl_error own = {0};
    int r = pl_pipe_cut(pipe, err), code;

    if (r != -ENOSPC)
        return r;
    code = find_options(pipe, &text, &own);
    if (code < 0)
        return pl_error_set(err, code, "%s", pl_error_text(&own));
    if (!text.len)
        return pl_error_wrap(err, r, "neither more microbatches nor more stages help");
    snprintf(own.text, sizeof(own.text), "%s", pl_error_text(err));
    return pl_error_set(err, r, "%s; by the same estimates a cut fits with %s", own.text,
                        pl_buf_str(&text));
}
