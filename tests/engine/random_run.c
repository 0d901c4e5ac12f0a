/* SPDX-License-Identifier: MIT */
#include "tests/engine/random_run.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"

#include <stdlib.h>

const struct plume_hparam random_hparams[] = {{"lr", "0.05", 0, 1e6, 0, NULL},
                                              {"epochs", "1", 0, 1e6, 1, NULL},
                                              {"batch_size", "16", 1, 65536, 1, NULL},
                                              {0}};

int random_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    bool train = stage == PLUME_TRAIN;

    ret->n_fields = stage == PLUME_TEST ? 0 : 2;
    ret->field[0].array =
        plume_open_npy(pl, train ? "digits/train-images.npy" : "digits/val-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16;
    ret->field[1].array =
        plume_open_npy(pl, train ? "digits/train-labels.npy" : "digits/val-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

void random_train(const struct random_run *run, struct pl_comm *comm, char error[256])
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r = pl_hparams_init(&h, run->module->hparams, &err);

    for (size_t i = 0; r == 0 && i < RANDOM_HPARAMS; i++)
        if (run->hparams[i][0])
            r = pl_hparams_set(&h, run->hparams[i], &err);
    if (r == 0)
        r = pl_trainer_init(&trainer, run->module, &h, &run->options, comm, &report, &err);
    if (r == 0) {
        r = run->begun ? run->begun(run->ctx, &trainer, &err) : 0;
        if (r == 0)
            r = pl_trainer_fit(&trainer, &err);
        if (r == 0)
            r = run->ended(run->ctx, &trainer, &err);
        pl_trainer_finish(&trainer);
    }
    if (r < 0 && (comm->rank == 0 || !error[0]))
        snprintf(error, 256, "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
}

/* One parameter, in the real type of its values. */
static int
whole(const struct pl_trainer *t, const struct pl_param *p, void *ret, struct pl_error *err)
{
    const struct pl_params *params = &t->ctx.params;

    if (pl_params_partial(params))
        return pl_param_part_gather(params, params->shards, p,
                                    pl_shard_part(params, p, params->values), ret, err);
    return pl_param_part_gather(params, NULL, p, pl_param_value(params, p), ret, err);
}

int random_values(const struct pl_trainer *trainer, double *values, size_t n, struct pl_error *err)
{
    const struct pl_params *params = &trainer->ctx.params;
    size_t at = 0;
    int r = 0;

    for (size_t i = 0; i < params->n && r == 0; i++) {
        const struct pl_param *p = params->list[i];
        size_t count = p->whole ? p->whole->count : p->tensor->count;
        double *own = calloc(count, sizeof(*own));

        r = own ? whole(trainer, p, own, err) : -ENOMEM;
        for (size_t k = 0; r == 0 && trainer->comm->rank == 0 && k < count && at < n; k++)
            values[at++] = params->real == PL_REAL_F64 ? own[k] : (double)((float *)own)[k];
        free(own);
    }
    return r;
}
