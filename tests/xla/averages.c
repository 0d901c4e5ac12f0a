/* SPDX-License-Identifier: MIT */
/* A module with batch normalization and dropout that compiles in a second. */
#include <plume/module.h>

#define WIDTH 8

static struct averages {
    plume_tensor *in, *scale, *shift, *mean, *var, *out;
} model;

static const struct plume_hparam hparams[] = {
    {"lr", "0.05", 0, 1e6, 0, NULL},
    {"batch_size", "8", 1, 65536, 1, NULL},
    {"epochs", "1", 0, 1e6, 1, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    model.in = plume_param(pl, "in", PLUME_INIT_FAN_IN, 2, (size_t[]){WIDTH, 64});
    model.scale = plume_param(pl, "scale", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    model.shift = plume_param(pl, "shift", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
    model.out = plume_param(pl, "out", PLUME_INIT_FAN_IN, 2, (size_t[]){10, WIDTH});
    model.mean = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, (size_t[]){WIDTH});
    model.var = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, (size_t[]){WIDTH});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    int train = stage == PLUME_TRAIN;

    ret->n_fields = 2;
    ret->field[0].array =
        plume_open_npy(pl, train ? "digits/train-images.npy" : "digits/val-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16;
    ret->field[1].array =
        plume_open_npy(pl, train ? "digits/train-labels.npy" : "digits/val-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static plume_tensor *loss_of(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_tensor *x = plume_linear(pl, batch->field[0], model.in, NULL, PLUME_IDENTITY);

    x = plume_batchnorm(pl, x, model.scale, model.shift, model.mean, model.var, 0, 0,
                        PLUME_IDENTITY);
    x = plume_dropout(pl, plume_activate(pl, x, PLUME_TANH), 0.3);
    return plume_cross_entropy(pl, plume_linear(pl, x, model.out, NULL, PLUME_IDENTITY),
                               batch->field[1]);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = loss_of(pl, batch);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_log(pl, "loss", loss_of(pl, batch), (double)batch->rows, (double)batch->rows);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "averages",
    .summary = "running averages and dropout",
    .hparams = hparams,
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
