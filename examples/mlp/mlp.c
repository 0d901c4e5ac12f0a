/* SPDX-License-Identifier: MIT */
/* A perceptron with one hidden layer that classifies handwritten digits: the shortest complete
 * module. Copy it to start your own. */
#include <plume/module.h>

struct mlp {
    plume_tensor *w1, *b1, *w2, *b2;
};

#define PIXELS 64
#define CLASSES 10

static const struct plume_hparam hparams[] = {
    {"hidden", "64", 1, 65536, 1, "units of the hidden layer"},
    {"lr", "0.1", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {"batch_size", "8", 1, 65536, 1, NULL},
    {"epochs", "12", 0, 1e6, 1, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    struct mlp *mlp = pl->state;
    size_t hidden = (size_t)plume_hparam(pl, "hidden");

    mlp->w1 = plume_param(pl, "w1", PLUME_INIT_HE, 2, (size_t[]){hidden, PIXELS});
    mlp->b1 = plume_param(pl, "b1", PLUME_INIT_ZERO, 1, (size_t[]){hidden});
    mlp->w2 = plume_param(pl, "w2", PLUME_INIT_FAN_IN, 2, (size_t[]){CLASSES, hidden});
    mlp->b2 = plume_param(pl, "b2", PLUME_INIT_ZERO, 1, (size_t[]){CLASSES});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    static const char *const images[] = {"digits/train-images.npy", "digits/val-images.npy",
                                         "digits/test-images.npy"};
    static const char *const labels[] = {"digits/train-labels.npy", "digits/val-labels.npy",
                                         "digits/test-labels.npy"};

    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, images[stage]);
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16; /* pixels are 0 to 16 */
    ret->field[1].array = plume_open_npy(pl, labels[stage]);
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct mlp *mlp = pl->state;
    plume_tensor *hidden = plume_linear(pl, batch->field[0], mlp->w1, mlp->b1, PLUME_RELU);

    return plume_linear(pl, hidden, mlp->w2, mlp->b2, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = plume_cross_entropy(pl, forward(pl, batch), batch->field[1]);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_tensor *logits = forward(pl, batch);
    double n = (double)batch->rows;

    plume_log(pl, "loss", plume_cross_entropy(pl, logits, batch->field[1]), n, n);
    plume_log(pl, "acc", plume_correct(pl, logits, batch->field[1]), 1, n);
    return 0;
}

static int
predict_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_output)
{
    *ret_output = forward(pl, batch);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "mlp",
    .summary = "a perceptron with one hidden layer, on 8x8 handwritten digits",
    .hparams = hparams,
    .objective = "max:test_acc",
    .state_size = sizeof(struct mlp),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .predict_step = predict_step,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
