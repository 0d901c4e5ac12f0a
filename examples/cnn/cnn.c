/* SPDX-License-Identifier: MIT */
/* A small convolutional network that classifies handwritten digits: two convolutions, a max-pool,
 * two linear layers. Hyper-parameters add batch norm after the convolutions, and dropout. */
#include <plume/module.h>

struct cnn {
    plume_tensor *conv1, *bias1, *conv2, *bias2, *fc1, *fc1_bias, *fc2, *fc2_bias;
    struct norm {
        plume_tensor *w, *b, *mean, *var;
    } norm1, norm2;
    size_t size;
    int batchnorm;
    double dropout;
};

#define CHANNELS1 32
#define CHANNELS2 64
#define HIDDEN 128
#define CLASSES 10

static const struct plume_hparam hparams[] = {
    {"batchnorm", "0", 0, 1, 1, "1: batch norm after each convolution"},
    {"dropout", "0", 0, 0.9, 0, "share of the hidden units that a training step leaves out"},
    {"size", "8", 8, 1024, 1, "height and width of an image"},
    {"lr", "0.02", 0, 1e6, 0, NULL},
    {"momentum", "0.9", 0, 1, 0, NULL},
    {"batch_size", "32", 1, 65536, 1, NULL},
    {"epochs", "6", 0, 1e6, 1, NULL},
    {0},
};

static plume_tensor *weight(struct plume_context *pl, const char *name, size_t out, size_t in)
{
    return plume_param(pl, name, PLUME_INIT_HE, 2, (size_t[]){out, in});
}

static plume_tensor *vector(struct plume_context *pl, const char *name, size_t n)
{
    return plume_param(pl, name, PLUME_INIT_ZERO, 1, &n);
}

static plume_tensor *kernel(struct plume_context *pl, const char *name, size_t out, size_t in)
{
    return plume_param(pl, name, PLUME_INIT_HE, 4, (size_t[]){out, in, 3, 3});
}

static struct norm norm(struct plume_context *pl,
                        const char *w,
                        const char *b,
                        const char *mean,
                        const char *var,
                        size_t channels)
{
    return (struct norm){
        .w = plume_param(pl, w, PLUME_INIT_ONE, 1, &channels),
        .b = plume_param(pl, b, PLUME_INIT_ZERO, 1, &channels),
        .mean = plume_buffer(pl, mean, PLUME_INIT_ZERO, 1, &channels),
        .var = plume_buffer(pl, var, PLUME_INIT_ONE, 1, &channels),
    };
}

static int configure(struct plume_context *pl)
{
    struct cnn *n = pl->state;
    size_t side;

    n->size = (size_t)plume_hparam(pl, "size");
    n->dropout = plume_hparam(pl, "dropout");
    n->batchnorm = plume_hparam(pl, "batchnorm") > 0;
    side = (n->size - 4) / 2; /* two 3x3 convolutions without padding, then 2x2 into 1 */
    n->conv1 = kernel(pl, "conv1.w", CHANNELS1, 1);
    n->bias1 = vector(pl, "conv1.b", CHANNELS1);
    n->conv2 = kernel(pl, "conv2.w", CHANNELS2, CHANNELS1);
    n->bias2 = vector(pl, "conv2.b", CHANNELS2);
    n->fc1 = weight(pl, "fc1.w", HIDDEN, CHANNELS2 * side * side);
    n->fc1_bias = vector(pl, "fc1.b", HIDDEN);
    n->fc2 = weight(pl, "fc2.w", CLASSES, HIDDEN);
    n->fc2_bias = vector(pl, "fc2.b", CLASSES);
    if (n->batchnorm) {
        n->norm1 = norm(pl, "bn1.w", "bn1.b", "bn1.mean", "bn1.var", CHANNELS1);
        n->norm2 = norm(pl, "bn2.w", "bn2.b", "bn2.mean", "bn2.var", CHANNELS2);
    }
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

static plume_tensor *convolution(struct plume_context *pl,
                                 plume_tensor *x,
                                 plume_tensor *w,
                                 plume_tensor *b,
                                 const struct norm *norm)
{
    const struct cnn *n = pl->state;

    if (!n->batchnorm)
        return plume_conv2d(pl, x, w, b, 1, 0, PLUME_RELU);
    x = plume_conv2d(pl, x, w, b, 1, 0, PLUME_IDENTITY);
    return plume_batchnorm(pl, x, norm->w, norm->b, norm->mean, norm->var, 0, 0, PLUME_RELU);
}

static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct cnn *n = pl->state;
    plume_tensor *h;

    h = plume_reshape(pl, batch->field[0], 4, (size_t[]){batch->rows, 1, n->size, n->size});
    h = convolution(pl, h, n->conv1, n->bias1, &n->norm1);
    h = convolution(pl, h, n->conv2, n->bias2, &n->norm2);
    h = plume_max_pool2d(pl, h, 2, 2, 0);
    h = plume_linear(pl, h, n->fc1, n->fc1_bias, PLUME_RELU);
    if (n->dropout > 0)
        h = plume_dropout(pl, h, n->dropout); /* active in training steps only */
    return plume_linear(pl, h, n->fc2, n->fc2_bias, PLUME_IDENTITY);
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
    .name = "cnn",
    .summary = "a small convolutional network, on 8x8 handwritten digits",
    .hparams = hparams,
    .objective = "max:test_acc",
    .state_size = sizeof(struct cnn),
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
