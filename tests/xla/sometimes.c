/* SPDX-License-Identifier: MIT */
/* A module whose bias is used in two steps of three, and whose hooks read parameters, or, if built
 * with READS_GRADIENT, a gradient. SOMETIMES_BY_CALLS counts calls in place of steps: replicas
 * differ. SOMETIMES_BY_RANK: ranks do. */
#include <plume/module.h>

#include <stdio.h>
#include <stdlib.h>

static struct sometimes {
    plume_tensor *w, *b;
    int steps, calls;
} model;

static const struct plume_hparam hparams[] = {
    {"lr", "0.01", 0, 1e6, 0, NULL},
    {"batch_size", "8", 1, 65536, 1, NULL},
    {"epochs", "1", 0, 1e6, 1, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    model.w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){10, 64});
    model.b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){10});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    (void)stage;
    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[1].array = plume_open_npy(pl, "digits/train-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    int n = getenv("SOMETIMES_BY_CALLS")  ? model.calls
            : getenv("SOMETIMES_BY_RANK") ? (int)pl->rank
                                          : model.steps;
    plume_tensor *b = n % 3 ? model.b : NULL;

    model.calls++;
    *ret_loss = plume_cross_entropy(
        pl, plume_linear(pl, batch->field[0], model.w, b, PLUME_IDENTITY), batch->field[1]);
    return 0;
}

static int on_train_batch_end(struct plume_context *pl, const struct plume_batch *batch)
{
    double b[10];
#ifdef READS_GRADIENT
    int r = plume_read(pl, "b", PLUME_GRADIENT, 10, b);
#else
    int r = plume_read(pl, "b", PLUME_VALUE, 10, b);
#endif

    (void)batch;
    if (model.steps++ == 0)
        printf("rank %u: %d calls\n", pl->rank, model.calls);
    if (r == 0)
        printf("bias %.4f %.4f\n", b[0], b[9]);
    return r;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "sometimes",
    .summary = "a bias that is not always used",
    .hparams = hparams,
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .on_train_batch_end = on_train_batch_end,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
