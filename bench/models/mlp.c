/* SPDX-License-Identifier: MIT */
/* 784-1024-1024-10, as in engine_models.py. */
#include <plume/module.h>

#define TIMED_INPUT PLUME_F32
#include "bench/models/timed.h"

struct mlp {
    plume_tensor *w[3], *b[3];
};

static const struct plume_hparam hparams[] = {
    {"lr", "0.01", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {"batch_size", "512", 1, 65536, 1, NULL},
    {"epochs", "1000000", 0, 1e6, 1, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    static const char *const w[] = {"w1", "w2", "w3"}, *const b[] = {"b1", "b2", "b3"};
    static const size_t width[] = {784, 1024, 1024, 10};
    struct mlp *mlp = pl->state;

    for (int i = 0; i < 3; i++) {
        mlp->w[i] = plume_param(pl, w[i], PLUME_INIT_FAN_IN, 2, (size_t[]){width[i + 1], width[i]});
        mlp->b[i] = plume_param(pl, b[i], PLUME_INIT_ZERO, 1, &width[i + 1]);
    }
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct mlp *mlp = pl->state;
    plume_tensor *h = batch->field[0];

    for (int i = 0; i < 3; i++)
        h = plume_linear(pl, h, mlp->w[i], mlp->b[i], i < 2 ? PLUME_RELU : PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, batch->field[1]);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "mlp",
    .hparams = hparams,
    .state_size = sizeof(struct mlp),
    .configure = configure,
    .training_step = training_step,
};

const struct plume_module *plume_module_entry(void)
{
    return timed_entry(&module);
}
