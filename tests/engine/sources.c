/* SPDX-License-Identifier: MIT */
/* A module that reads the data source named by the hyper-parameter `source` and predicts labels or
 * next tokens by one linear layer. sources.bats makes the files. */
#include <plume/module.h>
#include <string.h>

enum source { IDX, CIFAR10, TOKENS, TEXT, CSV, SYNTHETIC, OWN, SOURCES };

#define CLASSES 10
#define WINDOW 16

struct sources {
    enum source source;
    size_t width, vocabulary; /* elements of a sample; 0 = no tokens */
    plume_tensor *table, *w, *b;
};

static const struct plume_hparam hparams[] = {
    {"source", "0", 0, SOURCES - 1, 1, "number of the data source"},
    {"bad", "-1", -1, 1e6, 1, "the sample at which the own source fails"},
    {"lr", "0.05", 0, 1e6, 0, NULL},
    {"batch_size", "4", 1, 65536, 1, NULL},
    {"epochs", "2", 0, 1e6, 1, NULL},
    {0},
};

static const plume_array *
open_tokens(struct plume_context *pl, enum plume_stage stage, size_t ahead)
{
    enum source source = ((struct sources *)pl->state)->source;
    struct plume_source s = {.window = WINDOW, .ahead = ahead};

    s.path = source == TEXT ? "texts" : "tokens.bin";
    s.format = source == TEXT ? PLUME_FORMAT_TEXT : PLUME_FORMAT_TOKENS_U16;
    s.begin = stage == PLUME_TRAIN ? 0 : 0.75;
    s.end = stage == PLUME_TRAIN ? 0.75 : 1;
    return plume_open(pl, &s);
}

static const plume_array *open_field(struct plume_context *pl, enum plume_stage stage, int field)
{
    double begin = stage == PLUME_TRAIN ? 0 : 0.5, end = stage == PLUME_TRAIN ? 0.5 : 1;
    struct plume_source s = {.field = field, .begin = begin, .end = end};

    switch (((struct sources *)pl->state)->source) {
    case IDX:
        s.path = field ? "labels-idx1-ubyte" : "images-idx3-ubyte";
        break;
    case CIFAR10:
        s.path = "batch_1.bin:batch_2.bin";
        s.format = PLUME_FORMAT_CIFAR10;
        break;
    case CSV:
        s.path = "table.csv";
        s.columns = field ? "label" : "y,x";
        break;
    case SYNTHETIC:
        s.format = PLUME_FORMAT_SYNTHETIC;
        s.samples = 40;
        s.rank = field ? 0 : 2;
        s.shape[0] = s.shape[1] = 3;
        s.classes = field ? CLASSES : 0;
        break;
    default:
        return open_tokens(pl, stage, field ? 1 : 0);
    }
    return plume_open(pl, &s);
}

static int configure(struct plume_context *pl)
{
    struct sources *s = pl->state;
    const plume_array *array = NULL;
    size_t shape[PLUME_RANK_MAX], rank, out = CLASSES;

    s->source = (enum source)plume_hparam(pl, "source");
    if (s->source != OWN)
        array = open_field(pl, PLUME_TRAIN, 0);
    rank = plume_array_shape(pl, array, shape);
    s->width = s->source == OWN ? 2 : 1;
    for (size_t i = 1; i < rank; i++)
        s->width *= shape[i];
    if (s->source == TOKENS || s->source == TEXT) {
        s->vocabulary = s->source == TEXT ? plume_vocabulary(pl, array, NULL) : 100;
        out = s->vocabulary;
        s->width = 8;
        s->table =
            plume_param(pl, "table", PLUME_INIT_FAN_IN, 2, (size_t[]){s->vocabulary, s->width});
    }
    s->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){out, s->width});
    s->b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){out});
    return 0;
}

static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size)
{
    float point[2] = {(float)(index % 5), (float)(epoch + 1)};
    int32_t label = (int32_t)(index % 5);

    if (real_size != sizeof(float) || (double)index == *(const double *)ctx)
        return -5; /* EIO */
    memcpy(out[0], point, sizeof(point));
    memcpy(out[1], &label, sizeof(label));
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    struct sources *s = pl->state;
    static double bad;

    ret->n_fields = 2;
    ret->field[0].dtype = s->vocabulary ? PLUME_I32 : PLUME_F32;
    ret->field[0].scale = s->source == CIFAR10 || s->source == IDX ? 1 / 255.0 : 1;
    ret->field[1].dtype = PLUME_I32;
    if (s->source == OWN) {
        bad = plume_hparam(pl, "bad");
        ret->length = 20;
        ret->rank[0] = 1;
        ret->shape[0][0] = 2;
        ret->fill = fill;
        ret->ctx = &bad;
        return 0;
    }
    ret->field[0].array = open_field(pl, stage, 0);
    ret->field[1].array = open_field(pl, stage, 1);
    return 0;
}

static plume_tensor *loss_of(struct plume_context *pl, const struct plume_batch *batch)
{
    struct sources *s = pl->state;
    plume_tensor *x = batch->field[0], *labels = batch->field[1];
    size_t rows = batch->rows;

    if (s->vocabulary) {
        rows *= WINDOW;
        x = plume_embedding(pl, s->table, x);
        labels = plume_reshape(pl, labels, 1, &rows);
    }
    x = plume_reshape(pl, x, 2, (size_t[]){rows, s->width});
    return plume_cross_entropy(pl, plume_linear(pl, x, s->w, s->b, PLUME_IDENTITY), labels);
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
    .name = "sources",
    .hparams = hparams,
    .state_size = sizeof(struct sources),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
