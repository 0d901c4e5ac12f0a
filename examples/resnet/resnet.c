/* SPDX-License-Identifier: MIT */
/* ResNet (He et al. 2015, arXiv 1512.03385) of 18 to 152 layers on handwritten digits, which are
 * enlarged to 32 x 32 pixels in three equal colours. Layers and names are torchvision's, so its
 * weights are read as they are, and PyTorch reads a checkpoint of this module:
 *
 *     pltrain --weights resnet18.safetensors resnet --classes 1000
 *     pltrain --weights resnet50.safetensors resnet --classes 1000 --depth 50
 *
 * resnet.py is the same in PyTorch. */
#include <errno.h>
#include <plume/module.h>
#include <plume/ops_image.h>
#include <stdio.h>

#define SIDE 8 /* width and height of a digit */
#define STAGES 4
#define BLOCKS 36 /* of a stage, at most */
#define UNITS 3   /* of a block, at most */

/* From 50 layers on a block is a bottleneck: 1 x 1 to fewer channels, 3 x 3, and 1 x 1 to four
 * times as many. */
static const struct depth {
    double layers;
    size_t units; /* of a block */
    size_t blocks[STAGES];
} depths[] = {
    {18, 2, {2, 2, 2, 2}},   {34, 2, {3, 4, 6, 3}},       {50, 3, {3, 4, 6, 3}},
    {101, 3, {3, 4, 23, 3}}, {152, 3, {3, 8, BLOCKS, 3}},
};

/* A convolution without bias, and batch norm. */
struct unit {
    plume_tensor *conv, *w, *b, *mean, *var;
    size_t stride, pad;
};

struct block {
    struct unit unit[UNITS];
    struct unit shortcut; /* where the shape changes, else empty */
};

struct resnet {
    const struct depth *depth;
    size_t size;
    struct unit stem;
    struct block block[STAGES][BLOCKS];
    plume_tensor *fc_w, *fc_b;
};

static const struct plume_hparam hparams[] = {
    {"depth", "18", 18, 152, 1, "layers: 18, 34, 50, 101 or 152"},
    {"width", "64", 1, 65536, 1, "channels of the first stage; each stage doubles them"},
    {"classes", "10", 2, 65536, 1, "1000 for weights of ImageNet"},
    {"size", "32", 8, 4096, 1, "width and height to which digits are enlarged"},
    {"lr", "0.05", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {"weight_decay", "0.0001", 0, 1e6, 0, NULL},
    {"batch_size", "32", 1, 65536, 1, NULL},
    {"epochs", "3", 0, 1e6, 1, NULL},
    {0},
};

/* A unit whose tensors are PREFIX + CONV + ".weight" and PREFIX + BN + ".weight" and so on. */
static struct unit unit(struct plume_context *pl,
                        const char *prefix,
                        const char *conv,
                        const char *bn,
                        size_t in,
                        size_t out,
                        size_t kernel,
                        size_t stride)
{
    struct unit u = {.stride = stride, .pad = kernel / 2};
    char name[64];

    snprintf(name, sizeof(name), "%s%s.weight", prefix, conv);
    u.conv = plume_param(pl, name, PLUME_INIT_HE, 4, (size_t[]){out, in, kernel, kernel});
    snprintf(name, sizeof(name), "%s%s.weight", prefix, bn);
    u.w = plume_param(pl, name, PLUME_INIT_ONE, 1, &out);
    snprintf(name, sizeof(name), "%s%s.bias", prefix, bn);
    u.b = plume_param(pl, name, PLUME_INIT_ZERO, 1, &out);
    snprintf(name, sizeof(name), "%s%s.running_mean", prefix, bn);
    u.mean = plume_buffer(pl, name, PLUME_INIT_ZERO, 1, &out);
    snprintf(name, sizeof(name), "%s%s.running_var", prefix, bn);
    u.var = plume_buffer(pl, name, PLUME_INIT_ONE, 1, &out);
    return u;
}

/* Adds the convolutions of a block, from `in` to the returned number of channels. `wide` are those
 * of the 3 x 3 convolutions, the first of which has the stride. */
static size_t add_block(struct plume_context *pl,
                        struct block *block,
                        const char *prefix,
                        size_t units,
                        size_t in,
                        size_t wide,
                        size_t stride)
{
    size_t out = units == 3 ? 4 * wide : wide, from = in;
    char conv[32], bn[32];

    for (size_t i = 0; i < units; i++) {
        size_t kernel = units == 3 && i != 1 ? 1 : 3;
        size_t to = i + 1 == units ? out : wide;

        snprintf(conv, sizeof(conv), "conv%zu", i + 1);
        snprintf(bn, sizeof(bn), "bn%zu", i + 1);
        block->unit[i] =
            unit(pl, prefix, conv, bn, from, to, kernel, i == (units == 3) ? stride : 1);
        from = to;
    }
    if (in != out)
        block->shortcut = unit(pl, prefix, "downsample.0", "downsample.1", in, out, 1, stride);
    return out;
}

static int configure(struct plume_context *pl)
{
    struct resnet *net = pl->state;
    size_t width = (size_t)plume_hparam(pl, "width"), in = width;
    size_t classes = (size_t)plume_hparam(pl, "classes");
    char prefix[64];

    for (size_t i = 0; i < sizeof(depths) / sizeof(*depths); i++)
        if (depths[i].layers == plume_hparam(pl, "depth"))
            net->depth = &depths[i];
    if (!net->depth)
        return plume_fail(pl, -EINVAL, "depth is 18, 34, 50, 101 or 152");

    net->size = (size_t)plume_hparam(pl, "size");
    net->stem = unit(pl, "", "conv1", "bn1", 3, width, 7, 2);
    for (size_t s = 0; s < STAGES; s++)
        for (size_t i = 0; i < net->depth->blocks[s]; i++) {
            snprintf(prefix, sizeof(prefix), "layer%zu.%zu.", s + 1, i);
            in = add_block(pl, &net->block[s][i], prefix, net->depth->units, in, width << s,
                           s > 0 && i == 0 ? 2 : 1);
        }
    net->fc_w = plume_param(pl, "fc.weight", PLUME_INIT_FAN_IN, 2, (size_t[]){classes, in});
    net->fc_b = plume_param(pl, "fc.bias", PLUME_INIT_ZERO, 1, &classes);
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    static const char *const files[][2] = {
        {"digits/train-images.npy", "digits/train-labels.npy"},
        {"digits/val-images.npy", "digits/val-labels.npy"},
        {"digits/test-images.npy", "digits/test-labels.npy"},
    };

    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, files[stage][0]);
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16; /* pixels are 0 to 16 */
    ret->field[1].array = plume_open_npy(pl, files[stage][1]);
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static plume_tensor *
run_unit(struct plume_context *pl, const struct unit *u, plume_tensor *x, enum plume_activation act)
{
    x = plume_conv2d(pl, x, u->conv, NULL, u->stride, u->pad, PLUME_IDENTITY);
    return plume_batchnorm(pl, x, u->w, u->b, u->mean, u->var, 0, 0, act);
}

static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct resnet *net = pl->state;
    plume_tensor *x = plume_reshape(pl, batch->field[0], 4, (size_t[]){batch->rows, 1, SIDE, SIDE});

    x = plume_upsample(pl, x, net->size, net->size, PLUME_NEAREST);
    x = plume_cat_along(pl, 1, 3, (plume_tensor *[]){x, x, x});
    x = run_unit(pl, &net->stem, x, PLUME_RELU);
    x = plume_max_pool2d(pl, x, 3, 2, 1);
    for (size_t s = 0; s < STAGES; s++)
        for (size_t i = 0; i < net->depth->blocks[s]; i++) {
            const struct block *block = &net->block[s][i];
            size_t last = net->depth->units - 1;
            plume_tensor *h = x;

            for (size_t j = 0; j < last; j++)
                h = run_unit(pl, &block->unit[j], h, PLUME_RELU);
            h = run_unit(pl, &block->unit[last], h, PLUME_IDENTITY);
            if (block->shortcut.conv)
                x = run_unit(pl, &block->shortcut, x, PLUME_IDENTITY);
            x = plume_relu(pl, plume_add(pl, h, x));
        }
    return plume_linear(pl, plume_mean(pl, x, 2, 4), net->fc_w, net->fc_b, PLUME_IDENTITY);
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
    .name = "resnet",
    .summary = "ResNet of 18 to 152 layers on handwritten digits, with torchvision's names",
    .hparams = hparams,
    .objective = "max:test_acc",
    .state_size = sizeof(struct resnet),
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
