/* SPDX-License-Identifier: MIT */
/* A language model of LSTM layers (Hochreiter and Schmidhuber 1997) on the characters of a text: by
 * default the licences that every Debian system has, or the file that $EXAMPLE_TEXT names. Names
 * are those of torch.nn.Embedding, torch.nn.LSTM and torch.nn.Linear; lstm.py is the same in
 * PyTorch. Each sample starts with a state of zeros. */
#include <math.h>
#include <plume/module.h>
#include <plume/ops_rnn.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS_MAX 8

struct lstm {
    size_t layers, context, vocabulary;
    plume_tensor *embedding, *out_w, *out_b;
    struct layer {
        plume_tensor *w_ih, *w_hh, *b_ih, *b_hh;
    } layer[LAYERS_MAX];
};

static const struct plume_hparam hparams[] = {
    {"layers", "1", 1, LAYERS_MAX, 1, "of LSTM"},
    {"width", "64", 1, 65536, 1, "of a character's vector"},
    {"hidden", "128", 1, 65536, 1, "units of a layer"},
    {"context", "32", 1, 65536, 1, "characters of a sample"},
    {"vocabulary", "0", 0, 65536, 1, "different characters; 0: as many as the text has"},
    {"lr", "0.003", 0, 1e6, 0, NULL},
    {"batch_size", "32", 1, 65536, 1, NULL},
    {"epochs", "5", 0, 1e6, 1, NULL},
    {0},
};

/* Both fields are windows of the text; the second starts one character later. */
static const plume_array *text(struct plume_context *pl, enum plume_stage stage, size_t ahead)
{
    static const double border[] = {0, 0.9, 0.95, 1};
    struct lstm *lstm = pl->state;
    const char *path = getenv("EXAMPLE_TEXT");
    struct plume_source source = {
        .path = path ? path : "/usr/share/common-licenses",
        .format = PLUME_FORMAT_TEXT,
        .window = lstm->context,
        .ahead = ahead,
        .begin = border[stage],
        .end = border[stage + 1],
    };

    return plume_open(pl, &source);
}

static plume_tensor *
param(struct plume_context *pl, const char *what, size_t layer, size_t out, size_t in)
{
    const double limit = 1 / sqrt(plume_hparam(pl, "hidden")); /* as torch.nn.LSTM */
    char name[64];

    snprintf(name, sizeof(name), "lstm.%s_l%zu", what, layer);
    return plume_param_init(pl, name, PLUME_INIT_UNIFORM, -limit, limit, in ? 2 : 1,
                            (size_t[]){out, in});
}

static int configure(struct plume_context *pl)
{
    struct lstm *lstm = pl->state;
    size_t width = (size_t)plume_hparam(pl, "width"), hidden = (size_t)plume_hparam(pl, "hidden");

    lstm->layers = (size_t)plume_hparam(pl, "layers");
    lstm->context = (size_t)plume_hparam(pl, "context");
    lstm->vocabulary = (size_t)plume_hparam(pl, "vocabulary");
    if (lstm->vocabulary == 0)
        lstm->vocabulary = plume_vocabulary(pl, text(pl, PLUME_TRAIN, 0), NULL);
    lstm->embedding = plume_param_init(pl, "embedding.weight", PLUME_INIT_NORMAL, 0, 1, 2,
                                       (size_t[]){lstm->vocabulary, width});
    for (size_t i = 0; i < lstm->layers; i++)
        lstm->layer[i] = (struct layer){
            .w_ih = param(pl, "weight_ih", i, 4 * hidden, i ? hidden : width),
            .w_hh = param(pl, "weight_hh", i, 4 * hidden, hidden),
            .b_ih = param(pl, "bias_ih", i, 4 * hidden, 0),
            .b_hh = param(pl, "bias_hh", i, 4 * hidden, 0),
        };
    lstm->out_w =
        plume_param(pl, "out.weight", PLUME_INIT_FAN_IN, 2, (size_t[]){lstm->vocabulary, hidden});
    lstm->out_b = plume_param(pl, "out.bias", PLUME_INIT_ZERO, 1, &lstm->vocabulary);
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    ret->n_fields = 2;
    for (size_t i = 0; i < 2; i++) {
        ret->field[i].array = text(pl, stage, i);
        ret->field[i].dtype = PLUME_I32;
    }
    return 0;
}

/* Characters [batch, context] to logits [batch, context, vocabulary]. */
static plume_tensor *forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct lstm *lstm = pl->state;
    plume_tensor *x = plume_embedding(pl, lstm->embedding, batch->field[0]);

    for (size_t i = 0; i < lstm->layers; i++) {
        const struct layer *layer = &lstm->layer[i];

        x = plume_lstm(pl, x, layer->w_ih, layer->w_hh, layer->b_ih, layer->b_hh, NULL, NULL);
    }
    return plume_linear(pl, x, lstm->out_w, lstm->out_b, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = plume_cross_entropy(pl, forward(pl, batch), batch->field[1]);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    struct lstm *lstm = pl->state;
    plume_tensor *logits = forward(pl, batch);
    double n = (double)batch->rows;

    plume_log(pl, "loss", plume_cross_entropy(pl, logits, batch->field[1]), n, n);
    plume_log(pl, "acc", plume_correct(pl, logits, batch->field[1]), 1, n * (double)lstm->context);
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
    .name = "lstm",
    .summary = "an LSTM language model on the characters of a text",
    .hparams = hparams,
    .objective = "min:test_loss",
    .state_size = sizeof(struct lstm),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .configure_optimizers = configure_optimizers,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
