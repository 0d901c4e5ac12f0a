/* SPDX-License-Identifier: MIT */
/* Contrastive learning (info-NCE, arXiv 1807.03748): one encoder sees the left part of a
 * handwritten digit, another the right part, and each left part must find its own right part among
 * those of the whole batch. The loss needs the whole batch at once, so training_step_end computes
 * it. Under dp and ddp2 the parts of a node's batch form one pool there; under ddp each rank has
 * its own pool:
 *
 *     pltrain --num-nodes 2 --devices 2 --strategy ddp2 contrastive --batch_size 128
 *     pltrain --num-nodes 2 --processes 2 --strategy ddp contrastive --batch_size 64
 *
 * Both commands use four devices and 256 digits per step. The pools have 128 digits under ddp2 and
 * 64 under ddp, whose task is easier: its first loss is lower by ln 2. */
#include <plume/module.h>

#define SIDE 8 /* width and height of an image */
#define SEEN 5 /* columns that each encoder sees; both see the two in the middle */

struct encoder {
    plume_tensor *w1, *b1, *w2;
};

struct contrastive {
    struct encoder left, right;
    double temperature;
};

static const struct plume_hparam hparams[] = {
    {"hidden", "128", 1, 65536, 1, "units of an encoder's hidden layer"},
    {"features", "32", 1, 65536, 1, "numbers that an encoder makes of its part"},
    {"temperature", "0.1", 1e-3, 100, 0, "by which similarities are divided"},
    {"lr", "0.2", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {"batch_size", "128", 2, 65536, 1, NULL},
    {"epochs", "20", 0, 1e6, 1, NULL},
    {0},
};

static struct encoder
encoder(struct plume_context *pl, const char *w1, const char *b1, const char *w2)
{
    size_t hidden = (size_t)plume_hparam(pl, "hidden");
    size_t features = (size_t)plume_hparam(pl, "features");

    return (struct encoder){
        .w1 = plume_param(pl, w1, PLUME_INIT_HE, 2, (size_t[]){hidden, SIDE * SEEN}),
        .b1 = plume_param(pl, b1, PLUME_INIT_ZERO, 1, &hidden),
        .w2 = plume_param(pl, w2, PLUME_INIT_FAN_IN, 2, (size_t[]){features, hidden}),
    };
}

static int configure(struct plume_context *pl)
{
    struct contrastive *c = pl->state;

    c->left = encoder(pl, "left.w1", "left.b1", "left.w2");
    c->right = encoder(pl, "right.w1", "right.b1", "right.w2");
    c->temperature = plume_hparam(pl, "temperature");
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

/* Encodes the columns from `first` on as features of length 1. */
static plume_tensor *encode(struct plume_context *pl,
                            const struct encoder *e,
                            const struct plume_batch *batch,
                            size_t first)
{
    plume_tensor *h = plume_slice(pl, batch->field[0], 2, first, SEEN);

    h = plume_reshape(pl, h, 2, (size_t[]){batch->rows, SIDE * SEEN});
    h = plume_linear(pl, h, e->w1, e->b1, PLUME_RELU);
    return plume_normalize(pl, plume_linear(pl, h, e->w2, NULL, PLUME_IDENTITY), 0);
}

/* Returns features; training_step_end computes the loss when it has the whole batch. */
static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct contrastive *c = pl->state;

    plume_output(pl, "left", encode(pl, &c->left, batch, 0));
    plume_output(pl, "right", encode(pl, &c->right, batch, SIDE - SEEN));
    *ret_loss = NULL;
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_tensor *none;

    return training_step(pl, batch, &none);
}

/* The mean of log(sum over j of e^(left_i right_j / t)) - left_i right_i / t: each left part must
 * find its own right part among all. */
static plume_tensor *info_nce(struct plume_context *pl, const struct plume_outputs *outputs)
{
    struct contrastive *c = pl->state;
    plume_tensor *left = plume_whole(pl, outputs, "left");
    plume_tensor *right = plume_whole(pl, outputs, "right");
    plume_tensor *all = plume_scale(pl, plume_matmul(pl, left, right, 0, 1), 1 / c->temperature, 0);
    size_t shape[PLUME_RANK_MAX] = {0};

    plume_shape(pl, left, shape);
    return plume_cross_entropy(pl, all, plume_arange(pl, shape[0]));
}

static int training_step_end(struct plume_context *pl,
                             const struct plume_outputs *outputs,
                             plume_tensor **ret_loss)
{
    *ret_loss = info_nce(pl, outputs);
    return 0;
}

static int validation_step_end(struct plume_context *pl, const struct plume_outputs *outputs)
{
    size_t shape[PLUME_RANK_MAX];
    plume_tensor *left = plume_whole(pl, outputs, "left");

    if (plume_shape(pl, left, shape) == 2)
        plume_log(pl, "loss", info_nce(pl, outputs), (double)shape[0], (double)shape[0]);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "contrastive",
    .summary = "info-NCE on the left and right parts of handwritten digits",
    .hparams = hparams,
    .objective = "min:test_loss",
    .state_size = sizeof(struct contrastive),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .training_step_end = training_step_end,
    .validation_step = validation_step,
    .validation_step_end = validation_step_end,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
