/* SPDX-License-Identifier: MIT */
/* A module with everything that must move between the parts of a batch and the first device:
 * outputs that are views of one tensor, a field of the batch, a parameter, a loss; parameters that
 * only training_step_end uses; a buffer that no batch norm writes; logs of values, parameters and
 * buffers; a tail of fewer rows than parts. With -DSCATTERED_TURNS it has two optimizers with
 * step_per_optimizer. */
#include <plume/module.h>

#include <stdlib.h>
#include <string.h>

#define IN 12
#define CHANNELS 6
#define INNER 2
#define CLASSES 5

struct net {
    plume_tensor *w1, *b1, *gamma, *beta, *w2, *root, *scale; /* parameters */
    plume_tensor *mean, *var, *ones;                          /* buffers */
};

static const struct plume_hparam hparams[] = {
    {"samples", "29", 1, 1e6, 1, NULL},
    {"batch_size", "9", 1, 65536, 1, NULL},
    {"dropout", "0.2", 0, 1, 0, NULL},
    {"epochs", "3", 0, 1e6, 1, NULL},
    {"lr", "0.05", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;
    const size_t one = 1, channels = CHANNELS, classes = CLASSES;

    net->root = plume_param(pl, "root", PLUME_INIT_ONE, 1, &classes);
    net->w1 =
        plume_param(pl, "w1", PLUME_INIT_HE, 2, (size_t[]){(size_t)CHANNELS * INNER, (size_t)IN});
    net->mean = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, &channels);
    net->b1 = plume_param(pl, "b1", PLUME_INIT_ZERO, 1, (size_t[]){(size_t)CHANNELS * INNER});
    net->gamma = plume_param(pl, "gamma", PLUME_INIT_ONE, 1, &channels);
    net->beta = plume_param(pl, "beta", PLUME_INIT_ZERO, 1, &channels);
    net->var = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, &channels);
    net->ones = plume_buffer(pl, "ones", PLUME_INIT_ONE, 1, &one);
    net->w2 = plume_param(pl, "w2", PLUME_INIT_FAN_IN, 2,
                          (size_t[]){(size_t)2 * CLASSES, (size_t)CHANNELS * INNER});
    net->scale = plume_param(pl, "scale", PLUME_INIT_ONE, 1, &one);
    return 0;
}

static uint32_t next(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static int fill(void *ctx, uint64_t epoch, uint64_t sample, void *const *out, size_t real_bytes)
{
    uint32_t state = (uint32_t)sample * 77 + 5;
    int32_t label = (int32_t)(sample % CLASSES);

    for (size_t i = 0; i < IN; i++) {
        double x = (double)(next(&state) % 1000) / 500 - 1 + (i == (size_t)label ? 1 : 0);

        if (real_bytes == sizeof(double))
            ((double *)out[0])[i] = x;
        else
            ((float *)out[0])[i] = (float)x;
    }
    memcpy(out[1], &label, sizeof(label));
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    ret->n_fields = 2;
    ret->length = (size_t)plume_hparam(pl, "samples");
    ret->fill = fill;
    ret->field[0].dtype = PLUME_F32;
    ret->rank[0] = 1;
    ret->shape[0][0] = IN;
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

/* [rows, 2 CLASSES] */
static plume_tensor *logits_of(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    plume_tensor *h = plume_linear(pl, batch->field[0], net->w1, net->b1, PLUME_IDENTITY);

    h = plume_reshape(pl, h, 3, (size_t[]){0, CHANNELS, INNER});
    h = plume_batchnorm(pl, h, net->gamma, net->beta, net->mean, net->var, 0, 0, PLUME_RELU);
    h = plume_reshape(pl, h, 2, (size_t[]){0, (size_t)CHANNELS * INNER});
    h = plume_dropout(pl, h, plume_hparam(pl, "dropout"));
    h = plume_mul(pl, plume_mul(pl, h, net->ones), net->scale);
    return plume_linear(pl, h, net->w2, NULL, PLUME_IDENTITY);
}

/* The part that all steps share; returns the part's loss. */
static plume_tensor *step(struct plume_context *pl, const struct plume_batch *batch)
{
    struct net *net = pl->state;
    plume_tensor *logits = logits_of(pl, batch), *left, *loss;

    left = plume_slice(pl, logits, 1, 0, CLASSES);
    loss = plume_cross_entropy(pl, left, batch->field[1]);
    plume_output(pl, "left", left);
    plume_output(pl, "right", plume_slice(pl, logits, 1, CLASSES, CLASSES));
    plume_output(pl, "both", logits);
    plume_output(pl, "x", batch->field[0]);
    plume_output(pl, "unused", plume_relu(pl, left));
    plume_output(pl, "scale", net->scale);
    plume_log(pl, "part_loss", loss, (double)batch->rows, (double)batch->rows);
    plume_log(pl, "scale", net->scale, 1, 1);
    plume_log(pl, "ones", net->ones, 1, 1);
    return loss;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = step(pl, batch);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_output(pl, "part_loss", step(pl, batch));
    return 0;
}

static plume_tensor *mean_square(struct plume_context *pl, plume_tensor *x)
{
    size_t shape[PLUME_RANK_MAX], rank = plume_shape(pl, x, shape), count = 1;

    for (size_t i = 0; i < rank; i++)
        count *= shape[i];
    x = plume_reshape(pl, x, 1, &count);
    return plume_mean(pl, plume_mul(pl, x, x), 0, 1);
}

static plume_tensor *mean_of_all(struct plume_context *pl, plume_tensor *x)
{
    size_t shape[PLUME_RANK_MAX], rank = plume_shape(pl, x, shape);

    return rank ? plume_mean(pl, x, 0, 1) : x;
}

static plume_tensor *
end(struct plume_context *pl, const struct plume_outputs *outputs, const char *loss)
{
    struct net *net = pl->state;
    plume_tensor *left = plume_whole(pl, outputs, "left");
    plume_tensor *right = plume_mul(pl, plume_whole(pl, outputs, "right"), net->root);
    plume_tensor *both = plume_whole(pl, outputs, "both"), *sum;
    unsigned last = plume_parts(pl, outputs) - 1;

    sum = plume_add(pl, mean_square(pl, plume_sub(pl, left, right)),
                    mean_of_all(pl, plume_whole(pl, outputs, loss)));
    sum = plume_add(pl, sum, plume_scale(pl, mean_square(pl, both), 0.1, 0));
    sum = plume_add(
        pl, sum, plume_scale(pl, mean_square(pl, plume_part(pl, outputs, "left", last)), 0.1, 0));
    sum = plume_add(pl, sum, mean_square(pl, plume_whole(pl, outputs, "x")));
    sum = plume_add(pl, sum, mean_square(pl, plume_part(pl, outputs, "scale", last)));
    plume_log(pl, "last_loss", plume_part(pl, outputs, loss, last), 1, 1);
    plume_log(pl, "end", sum, 1, 1);
    return sum;
}

static int
training_step_end(struct plume_context *pl, const struct plume_outputs *outputs, plume_tensor **ret)
{
    *ret = end(pl, outputs, "loss");
#ifdef SCATTERED_TURNS
    if (pl->optimizer)
        *ret = plume_scale(pl, *ret, 0.5, 0);
#endif
    return 0;
}

static int validation_step_end(struct plume_context *pl, const struct plume_outputs *outputs)
{
    end(pl, outputs, "part_loss");
    return 0;
}

#ifdef SCATTERED_TURNS
static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    struct plume_optimizer *second = plume_add_optimizer(pl);

    ret->kind = PLUME_ADAM;
    ret->prefixes = "w,b,gamma";
    second->prefixes = "root,scale";
    return 0;
}
#endif

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "scattered",
    .hparams = hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .training_step_end = training_step_end,
    .validation_step_end = validation_step_end,
#ifdef SCATTERED_TURNS
    .configure_optimizers = configure_optimizers,
    .step_per_optimizer = 1,
#endif
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
