/* SPDX-License-Identifier: MIT */
/* A small GPT that learns to write the characters of a text: by default of the licences that every
 * Debian system has, otherwise of the file that $EXAMPLE_TEXT names. The layers are those of GPT-2:
 * layer norms come before attention and before the two linear layers, and the last layer shares the
 * weights of the embedding. gpt2.map has GPT-2's public names, gpt.py is the same in PyTorch.
 *
 * --predict continues the test's samples: of each it reads all but the last `write` characters,
 * writes these anew, and gives the bytes of the whole:
 *
 *     pltrain --checkpoint-dir c --save-last gpt
 *     pltrain --predict --weights c/last.ckpt --out text.jsonl gpt --write 32
 *     jq -r '.output | implode' text.jsonl
 *
 * A file EXAMPLE_TEXT=FILE.bin has tokens of 16 bits, such as those of GPT-2's vocabulary; then
 * give
 * --vocabulary, and the output is tokens. */
#include <plume/module.h>
#include <plume/ops_attention.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS_MAX 48

/* Keys and values of the characters so far, [batch, characters, width], for the later ones. */
struct cache {
    plume_tensor *k, *v;
};

struct gpt {
    size_t layers, heads, width, context, vocabulary, write;
    double dropout, temperature;
    plume_tensor *token, *place, *ln_w, *ln_b;
    struct block {
        plume_tensor *ln1_w, *ln1_b, *qkv_w, *qkv_b, *out_w, *out_b;
        plume_tensor *ln2_w, *ln2_b, *up_w, *up_b, *down_w, *down_b;
    } block[LAYERS_MAX];
};

static const struct plume_hparam hparams[] = {
    {"layers", "2", 1, LAYERS_MAX, 1, "blocks of attention and two linear layers"},
    {"heads", "4", 1, 1024, 1, "of attention; they share the width"},
    {"width", "64", 1, 65536, 1, "of a character's vector"},
    {"context", "64", 1, 65536, 1, "characters of a sample"},
    {"vocabulary", "0", 0, 65536, 1, "different characters; 0: as many as the text has"},
    {"dropout", "0", 0, 0.9, 0, "share of what a training step leaves out, as in GPT-2"},
    {"write", "16", 1, 65535, 1, "characters of a sample that --predict writes, below context"},
    {"temperature", "0", 0, 1e6, 0, "of what --predict writes; 0: the likeliest character"},
    {"lr", "0.003", 0, 1e6, 0, NULL},
    {"weight_decay", "0.1", 0, 1e6, 0, NULL},
    {"batch_size", "16", 1, 65536, 1, NULL},
    {"epochs", "5", 0, 1e6, 1, NULL},
    {0},
};

/* Both fields are windows of the text; the second starts one character later. */
static const plume_array *text(struct plume_context *pl, enum plume_stage stage, size_t ahead)
{
    static const double border[] = {0, 0.9, 0.95, 1};
    struct gpt *gpt = pl->state;
    const char *path = getenv("EXAMPLE_TEXT"), *end = path ? strrchr(path, '.') : NULL;
    struct plume_source source = {
        .path = path ? path : "/usr/share/common-licenses",
        .format = end && strcmp(end, ".bin") == 0 ? PLUME_FORMAT_TOKENS_U16 : PLUME_FORMAT_TEXT,
        .window = gpt->context,
        .ahead = ahead,
        .begin = border[stage],
        .end = border[stage + 1],
    };

    return plume_open(pl, &source);
}

static plume_tensor *
param(struct plume_context *pl, int layer, const char *what, size_t out, size_t in)
{
    size_t shape[] = {out, in};
    char name[64];

    snprintf(name, sizeof(name), "h%d.%s", layer, what);
    if (in > 0)
        return plume_param(pl, name, PLUME_INIT_FAN_IN, 2, shape);
    return plume_param(pl, name, what[0] == 'g' ? PLUME_INIT_ONE : PLUME_INIT_ZERO, 1, shape);
}

static int configure(struct plume_context *pl)
{
    struct gpt *gpt = pl->state;
    size_t width = gpt->width = (size_t)plume_hparam(pl, "width");

    gpt->layers = (size_t)plume_hparam(pl, "layers");
    gpt->heads = (size_t)plume_hparam(pl, "heads");
    gpt->context = (size_t)plume_hparam(pl, "context");
    gpt->vocabulary = (size_t)plume_hparam(pl, "vocabulary");
    gpt->dropout = plume_hparam(pl, "dropout");
    gpt->write = (size_t)plume_hparam(pl, "write");
    gpt->temperature = plume_hparam(pl, "temperature");
    if (gpt->vocabulary == 0)
        gpt->vocabulary = plume_vocabulary(pl, text(pl, PLUME_TRAIN, 0), NULL);
    gpt->token = plume_param(pl, "token", PLUME_INIT_FAN_IN, 2, (size_t[]){gpt->vocabulary, width});
    gpt->place = plume_param(pl, "place", PLUME_INIT_FAN_IN, 2, (size_t[]){gpt->context, width});
    gpt->ln_w = plume_param(pl, "ln.w", PLUME_INIT_ONE, 1, &width);
    gpt->ln_b = plume_param(pl, "ln.b", PLUME_INIT_ZERO, 1, &width);
    for (int i = 0; i < (int)gpt->layers; i++)
        gpt->block[i] = (struct block){
            .ln1_w = param(pl, i, "gain1", width, 0),
            .ln1_b = param(pl, i, "bias1", width, 0),
            .qkv_w = param(pl, i, "qkv.w", 3 * width, width),
            .qkv_b = param(pl, i, "qkv.b", 3 * width, 0),
            .out_w = param(pl, i, "out.w", width, width),
            .out_b = param(pl, i, "out.b", width, 0),
            .ln2_w = param(pl, i, "gain2", width, 0),
            .ln2_b = param(pl, i, "bias2", width, 0),
            .up_w = param(pl, i, "up.w", 4 * width, width),
            .up_b = param(pl, i, "up.b", 4 * width, 0),
            .down_w = param(pl, i, "down.w", width, 4 * width),
            .down_b = param(pl, i, "down.b", width, 0),
        };
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

/* Attention of new characters, qkv [batch, new, 3 width], to all so far. The cache gets the new
 * ones' keys and values, so that no character is computed twice. */
static plume_tensor *
attend(struct plume_context *pl, const struct gpt *gpt, plume_tensor *qkv, struct cache *cache)
{
    const struct plume_attention_how how = {.heads = gpt->heads};
    plume_tensor *q = plume_slice(pl, qkv, 2, 0, gpt->width);
    plume_tensor *k = plume_slice(pl, qkv, 2, gpt->width, gpt->width);
    plume_tensor *v = plume_slice(pl, qkv, 2, 2 * gpt->width, gpt->width);
    int first = !cache->k;

    cache->k = first ? k : plume_cat_along(pl, 1, 2, (plume_tensor *[]){cache->k, k});
    cache->v = first ? v : plume_cat_along(pl, 1, 2, (plume_tensor *[]){cache->v, v});
    if (first)
        return plume_attention(pl, qkv, gpt->heads, 1);
    return plume_attention_with(pl, q, cache->k, cache->v, &how);
}

/* cache: NULL if no characters follow. */
static plume_tensor *run_block(struct plume_context *pl,
                               const struct gpt *gpt,
                               const struct block *b,
                               plume_tensor *x,
                               struct cache *cache)
{
    plume_tensor *h = plume_layernorm(pl, x, b->ln1_w, b->ln1_b, 0);

    h = plume_linear(pl, h, b->qkv_w, b->qkv_b, PLUME_IDENTITY);
    h = cache ? attend(pl, gpt, h, cache) : plume_attention(pl, h, gpt->heads, 1);
    h = plume_linear(pl, h, b->out_w, b->out_b, PLUME_IDENTITY);
    x = plume_add(pl, x, plume_dropout(pl, h, gpt->dropout));
    h = plume_layernorm(pl, x, b->ln2_w, b->ln2_b, 0);
    h = plume_linear(pl, h, b->up_w, b->up_b, PLUME_GELU_TANH);
    h = plume_linear(pl, h, b->down_w, b->down_b, PLUME_IDENTITY);
    return plume_add(pl, x, plume_dropout(pl, h, gpt->dropout));
}

/* Characters [batch, n], the first of them at `first`, to logits [batch, n, vocabulary]. cache:
 * one per block, or NULL. */
static plume_tensor *forward(
    struct plume_context *pl, plume_tensor *characters, size_t first, size_t n, struct cache *cache)
{
    struct gpt *gpt = pl->state;
    plume_tensor *h = plume_embedding(pl, gpt->token, characters), *place = gpt->place;

    if (n < gpt->context)
        place = plume_slice(pl, place, 0, first, n);
    h = plume_add(pl, h, place); /* each sample has the same positions */
    h = plume_dropout(pl, h, gpt->dropout);
    for (size_t i = 0; i < gpt->layers; i++)
        h = run_block(pl, gpt, &gpt->block[i], h, cache ? &cache[i] : NULL);
    h = plume_layernorm(pl, h, gpt->ln_w, gpt->ln_b, 0);
    return plume_linear(pl, h, gpt->token, NULL, PLUME_IDENTITY);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct gpt *gpt = pl->state;
    plume_tensor *logits = forward(pl, batch->field[0], 0, gpt->context, NULL);

    *ret_loss = plume_cross_entropy(pl, logits, batch->field[1]);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    struct gpt *gpt = pl->state;
    plume_tensor *logits = forward(pl, batch->field[0], 0, gpt->context, NULL);
    double n = (double)batch->rows;

    plume_log(pl, "loss", plume_cross_entropy(pl, logits, batch->field[1]), n, n);
    plume_log(pl, "acc", plume_correct(pl, logits, batch->field[1]), 1, n * (double)gpt->context);
    return 0;
}

/* The next character [batch, 1] by logits [batch, n, vocabulary]: the likeliest, or a random one of
 * the probabilities softmax(logits / temperature), which is the largest of logits / temperature -
 * ln(-ln u) with u uniform in [0, 1) (Gumbel 1954). */
static plume_tensor *
next_character(struct plume_context *pl, plume_tensor *logits, size_t batch, size_t n)
{
    struct gpt *gpt = pl->state;
    size_t shape[] = {batch, gpt->vocabulary};
    plume_tensor *noise;

    logits = plume_reshape(pl, plume_slice(pl, logits, 1, n - 1, 1), 2, shape);
    if (gpt->temperature > 0) {
        noise = plume_ln(pl, plume_uniform(pl, 2, shape, 0, 1));
        noise = plume_ln(pl, plume_scale(pl, noise, -1, 0));
        logits = plume_sub(pl, plume_scale(pl, logits, 1 / gpt->temperature, 0), noise);
    }
    return plume_reshape(pl, plume_argmax(pl, logits, 1), 2, (size_t[]){batch, 1});
}

/* The number to give for each character [vocabulary, 1]: its byte, or the token itself. */
static plume_tensor *numbers(struct plume_context *pl)
{
    struct gpt *gpt = pl->state;
    const unsigned char *byte;
    size_t n = plume_vocabulary(pl, text(pl, PLUME_TEST, 0), &byte), shape[] = {1, 1};
    plume_tensor *list[32], *all = NULL;
    size_t in_list = 0;

    if (n != gpt->vocabulary) {
        shape[0] = gpt->vocabulary;
        return plume_scale(pl, plume_cumsum(pl, plume_full(pl, 2, shape, 1), 0), 1, -1);
    }
    for (size_t i = 0; i < n; i++) {
        list[in_list++] = plume_full(pl, 2, shape, byte[i]);
        if (in_list == sizeof(list) / sizeof(*list) || i + 1 == n) { /* a limit of cat's inputs */
            list[0] = all = plume_cat(pl, in_list, list);
            in_list = 1;
        }
    }
    return all;
}

/* Each character that is written takes some 15 ops per block: this is for some hundred of them. */
static int
predict_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_output)
{
    struct gpt *gpt = pl->state;
    struct cache cache[LAYERS_MAX] = {0};
    size_t at = gpt->context - gpt->write, shape[] = {batch->rows, gpt->context};
    plume_tensor *new, *table = numbers(pl), *all, *logits;

    if (gpt->write >= gpt->context)
        return plume_fail(pl, -EINVAL,
                          "--write is the context or more: there is nothing to continue");
    new = plume_slice(pl, batch->field[0], 1, 0, at);
    all = plume_embedding(pl, table, new);
    logits = forward(pl, new, 0, at, cache);
    new = next_character(pl, logits, batch->rows, at);
    for (;;) {
        all = plume_cat_along(pl, 1, 2, (plume_tensor *[]){all, plume_embedding(pl, table, new)});
        if (++at == gpt->context)
            break;
        logits = forward(pl, new, at - 1, 1, cache);
        new = next_character(pl, logits, batch->rows, 1);
    }
    *ret_output = plume_reshape(pl, all, 2, shape);
    return 0;
}

static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    (void)pl;
    ret->kind = PLUME_ADAMW;
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "gpt",
    .summary = "a small GPT on the characters of a text",
    .hparams = hparams,
    .objective = "min:test_loss",
    .state_size = sizeof(struct gpt),
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
