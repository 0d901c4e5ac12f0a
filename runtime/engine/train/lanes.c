/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/lanes.h"
#include "runtime/engine/params/unused_params.h"
#include "runtime/engine/train/train_step.h"

int pl_lanes_init(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_stage *first = &t->stage[PLUME_TRAIN];
    int r = 0;

    t->n_turns = 1;
    if (!t->module->step_per_optimizer || t->optimizers.n == 1)
        return 0;
    t->turns = calloc(t->optimizers.n - 1, sizeof(*t->turns));
    if (!t->turns)
        return pl_error_set(err, -ENOMEM, "out of memory");
    t->n_turns = (unsigned)t->optimizers.n;
    for (unsigned i = 1; i < t->n_turns && r == 0; i++)
        r = pl_trainer_tapes(t, PLUME_TRAIN, i, &t->turns[i - 1].stage, err);
    /* As the first one's: by a dry step they learn what is logged. */
    for (unsigned i = 1; i < t->n_turns && r == 0; i++) {
        struct pl_stage *s = &t->turns[i - 1].stage;
        plume_tensor *loss;

        pl_lanes_set(t, i);
        r = pl_train_step_trace(t, PLUME_TRAIN, pl_loader_dry(&first->loader), &loss, err);
        s->logs.closed = true;
        for (unsigned k = 0; s->parts && k < s->parts->k; k++)
            s->parts->list[k].logs = s->logs;
    }
    pl_lanes_set(t, 0);
    /* The first one's tape has gradients for all parameters yet. */
    pl_tape_begin(&first->tape);
    pl_tape_end(&first->tape);
    for (unsigned i = 0; first->parts && i < first->parts->k; i++) {
        pl_tape_begin(&first->parts->list[i].tape);
        pl_tape_end(&first->parts->list[i].tape);
    }
    return r;
}

void pl_lanes_finish(struct pl_trainer *t)
{
    for (unsigned i = 1; i < t->n_turns; i++) {
        pl_tape_finish(&t->turns[i - 1].stage.tape);
        pl_parts_destroy(t->turns[i - 1].stage.parts);
        pl_reducer_finish(&t->turns[i - 1].reducer);
    }
    free(t->turns);
    t->turns = NULL;
    t->n_turns = 0;
}

void pl_lanes_set(struct pl_trainer *t, unsigned turn)
{
    const struct pl_params *params = &t->ctx.params;

    if (t->n_turns == 1)
        return;
    t->turn = t->ctx.pub.optimizer = turn;
    for (size_t i = 0; i < params->n; i++)
        params->list[i]->tensor->wants_grad =
            pl_optimizer_has(&t->optimizers.list[turn], params->list[i]);
    pl_unused_params_reset(&t->ctx.params);
}

struct pl_stage *pl_lanes_stage(struct pl_trainer *t)
{
    return t->turn ? &t->turns[t->turn - 1].stage : &t->stage[PLUME_TRAIN];
}

struct pl_reducer *pl_lanes_reducer(struct pl_trainer *t)
{
    return t->turn ? &t->turns[t->turn - 1].reducer : &t->reducer;
}
