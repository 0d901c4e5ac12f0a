/* SPDX-License-Identifier: MIT */
/* A variational autoencoder (Kingma and Welling 2013, arXiv 1312.6114) of handwritten digits, with
 * the layers and names of PyTorch's own example. The noise comes from counters, so a resumed run
 * draws the same. vae.py is the same in PyTorch, noise included. */
#include <plume/module.h>
#include <plume/ops_nn.h>

#define PIXELS 64

struct vae {
    size_t latent;
    struct layer {
        plume_tensor *w, *b;
    } fc1, fc21, fc22, fc3, fc4;
};

static const struct plume_hparam hparams[] = {
    {"hidden", "64", 1, 65536, 1, "units of each hidden layer"},
    {"latent", "8", 1, 65536, 1, "numbers that describe a digit"},
    {"lr", "0.003", 0, 1e6, 0, NULL},
    {"batch_size", "32", 1, 65536, 1, NULL},
    {"epochs", "20", 0, 1e6, 1, NULL},
    {0},
};

static struct layer
layer(struct plume_context *pl, const char *weight, const char *bias, size_t out, size_t in)
{
    return (struct layer){
        .w = plume_param(pl, weight, PLUME_INIT_FAN_IN, 2, (size_t[]){out, in}),
        .b = plume_param(pl, bias, PLUME_INIT_ZERO, 1, &out),
    };
}

static int configure(struct plume_context *pl)
{
    struct vae *vae = pl->state;
    size_t hidden = (size_t)plume_hparam(pl, "hidden");

    vae->latent = (size_t)plume_hparam(pl, "latent");
    vae->fc1 = layer(pl, "fc1.weight", "fc1.bias", hidden, PIXELS);
    vae->fc21 = layer(pl, "fc21.weight", "fc21.bias", vae->latent, hidden);
    vae->fc22 = layer(pl, "fc22.weight", "fc22.bias", vae->latent, hidden);
    vae->fc3 = layer(pl, "fc3.weight", "fc3.bias", hidden, vae->latent);
    vae->fc4 = layer(pl, "fc4.weight", "fc4.bias", PIXELS, hidden);
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    static const char *const images[] = {"digits/train-images.npy", "digits/val-images.npy",
                                         "digits/test-images.npy"};

    ret->n_fields = 1;
    ret->field[0].array = plume_open_npy(pl, images[stage]);
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16; /* pixels are 0 to 16 */
    return 0;
}

/* The mean of a digit's description, and the logarithm of its variance. */
static plume_tensor *encode(struct plume_context *pl, plume_tensor *x, plume_tensor **ret_log_var)
{
    struct vae *vae = pl->state;
    plume_tensor *h = plume_linear(pl, x, vae->fc1.w, vae->fc1.b, PLUME_RELU);

    *ret_log_var = plume_linear(pl, h, vae->fc22.w, vae->fc22.b, PLUME_IDENTITY);
    return plume_linear(pl, h, vae->fc21.w, vae->fc21.b, PLUME_IDENTITY);
}

static plume_tensor *decode(struct plume_context *pl, plume_tensor *z, enum plume_activation act)
{
    struct vae *vae = pl->state;

    z = plume_linear(pl, z, vae->fc3.w, vae->fc3.b, PLUME_RELU);
    return plume_linear(pl, z, vae->fc4.w, vae->fc4.b, act);
}

/* The negative lower bound of the likelihood, per digit: binary cross-entropy of the pixels, and
 * the divergence of the description from a normal distribution, (mean^2 + var - 1 - log var) / 2.
 */
static plume_tensor *loss(struct plume_context *pl, const struct plume_batch *batch)
{
    struct vae *vae = pl->state;
    plume_tensor *x = plume_reshape(pl, batch->field[0], 2, (size_t[]){batch->rows, PIXELS});
    plume_tensor *log_var, *mean = encode(pl, x, &log_var), *deviation, *noise, *logits, *far;

    deviation = plume_exp(pl, plume_scale(pl, log_var, 0.5, 0));
    noise = plume_normal(pl, 2, (size_t[]){batch->rows, vae->latent}, 0, 1);
    logits = decode(pl, plume_add(pl, mean, plume_mul(pl, deviation, noise)), PLUME_IDENTITY);
    far = plume_add(pl, plume_mul(pl, mean, mean), plume_exp(pl, log_var));
    far = plume_mean_of_all(pl, plume_scale(pl, plume_sub(pl, far, log_var), 1, -1));
    return plume_add(pl, plume_scale(pl, plume_bce_with_logits(pl, logits, x), PIXELS, 0),
                     plume_scale(pl, far, 0.5 * (double)vae->latent, 0));
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = loss(pl, batch);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    double n = (double)batch->rows;

    plume_log(pl, "loss", loss(pl, batch), n, n);
    return 0;
}

/* The digits as decoded from the means. */
static int
predict_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_output)
{
    plume_tensor *x = plume_reshape(pl, batch->field[0], 2, (size_t[]){batch->rows, PIXELS});
    plume_tensor *log_var;

    *ret_output = decode(pl, encode(pl, x, &log_var), PLUME_SIGMOID);
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    (void)pl;
    ret->kind = PLUME_ADAM;
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "vae",
    .summary = "a variational autoencoder of handwritten digits",
    .hparams = hparams,
    .objective = "min:test_loss",
    .state_size = sizeof(struct vae),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .configure_optimizers = configure_optimizers,
    .predict_step = predict_step,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
