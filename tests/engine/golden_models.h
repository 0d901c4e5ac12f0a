/* SPDX-License-Identifier: MIT */
/* The models of tests/golden/models.py as modules, with their data and start values. */
#ifndef PL_TESTS_ENGINE_GOLDEN_MODELS_H
#define PL_TESTS_ENGINE_GOLDEN_MODELS_H

#include "runtime/engine/train/trainer.h"
#include "tests/golden/models.h"
#include "tests/lib/on_device.h"

#include <math.h>

#define SAMPLES_MAX 5184 /* numbers of all batches' inputs */
#define ROWS_MAX 64      /* of all batches */

struct model {
    const struct plume_module *module;
    const char *batch_size; /* "batch_size=N" */
    size_t rows, classes, per_row;
    bool tokens; /* inputs and labels are [rows, per_row] of classes */
    const struct golden_param *params;
    size_t n_params, n_logits, logits_stride;
    const double *logits, *grads, *f64, *f32, *bf16;
    double loss; /* of the first step, with the logits */
};

/* The finalizer of MurmurHash3, as models.py has it. */
static uint32_t mix(uint32_t seed, size_t i)
{
    uint32_t h = (uint32_t)i + seed * 0x9E3779B9U;

    h ^= h >> 16;
    h *= 0x85EBCA6BU;
    h ^= h >> 13;
    h *= 0xC2B2AE35U;
    return h ^ h >> 16;
}

static double fill(uint32_t seed, size_t i, double scale, double shift)
{
    return ((double)(mix(seed, i) >> 8) * 0x1p-23 - 1) * scale + shift;
}

static double inputs[SAMPLES_MAX];
static int32_t tokens[SAMPLES_MAX], labels[ROWS_MAX * 16];
static struct plume_array fields[2];
static const size_t first_batch[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};

/* All batches, one after the other, in the arrays of the data hooks. */
static void make_data(const struct model *m)
{
    size_t n = m->rows * m->per_row, n_labels = m->tokens ? n : m->rows;

    for (size_t b = 0; b < GOLDEN_BATCHES; b++) {
        for (size_t i = 0; i < n; i++) {
            inputs[b * n + i] = fill((uint32_t)(1000 + b), i, 1, 0);
            tokens[b * n + i] = (int32_t)(mix((uint32_t)(1000 + b), i) % (uint32_t)m->classes);
        }
        for (size_t i = 0; i < n_labels; i++)
            labels[b * n_labels + i] =
                (int32_t)(mix((uint32_t)(2000 + b), i) % (uint32_t)m->classes);
    }
    fields[0] = (struct plume_array){.dtype = m->tokens ? PLUME_I32 : PLUME_F64, .rank = 2};
    fields[0].data = m->tokens ? (const void *)tokens : inputs;
    fields[1] = (struct plume_array){.dtype = PLUME_I32, .rank = m->tokens ? 2 : 1, .data = labels};
    for (size_t i = 0; i < 2; i++) {
        fields[i].shape[0] = GOLDEN_BATCHES * m->rows;
        fields[i].shape[1] = m->per_row;
    }
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage == PLUME_TEST)
        return 0;
    ret->n_fields = 2;
    /* Batch 0 is evaluated; a batch is a quarter of all samples. */
    ret->order = stage == PLUME_VALIDATE ? first_batch : NULL;
    ret->n_order = stage == PLUME_VALIDATE ? fields[0].shape[0] / GOLDEN_BATCHES : 0;
    for (size_t i = 0; i < 2; i++) {
        ret->field[i].array = &fields[i];
        ret->field[i].dtype = fields[i].dtype == PLUME_I32 ? PLUME_I32 : PLUME_F32;
    }
    return 0;
}

/* Declares the recorded parameters in their order; the test sets the values afterwards. */
static int declare(struct plume_context *pl, const struct golden_param *params, size_t n)
{
    plume_tensor **w = pl->state;

    for (size_t i = 0; i < n; i++)
        w[i] = plume_param(pl, params[i].name, PLUME_INIT_ZERO, params[i].rank, params[i].shape);
    return 0;
}

static int mlp_configure(struct plume_context *pl)
{
    return declare(pl, mlp_params, PL_COUNT(mlp_params));
}

static int mlp_step(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret_loss)
{
    plume_tensor **w = pl->state, *h;

    h = plume_linear(pl, b->field[0], w[0], w[1], PLUME_RELU);
    h = plume_linear(pl, h, w[2], w[3], PLUME_RELU);
    h = plume_linear(pl, h, w[4], w[5], PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, b->field[1]);
    return 0;
}

static int cnn_configure(struct plume_context *pl)
{
    return declare(pl, cnn_params, PL_COUNT(cnn_params));
}

static int cnn_step(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret_loss)
{
    plume_tensor **w = pl->state, *h;

    h = plume_reshape(pl, b->field[0], 4, (size_t[]){b->rows, 1, 12, 12});
    h = plume_conv2d(pl, h, w[0], w[1], 1, 0, PLUME_RELU);
    h = plume_conv2d(pl, h, w[2], w[3], 1, 0, PLUME_RELU);
    h = plume_max_pool2d(pl, h, 2, 2, 0);
    h = plume_linear(pl, h, w[4], w[5], PLUME_RELU);
    h = plume_linear(pl, h, w[6], w[7], PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, b->field[1]);
    return 0;
}

/* After the parameters: the buffers. */
static int bn_configure(struct plume_context *pl)
{
    plume_tensor **w = pl->state;
    size_t n = PL_COUNT(bn_params), channels = 4;

    w[n] = plume_buffer(pl, "mean", PLUME_INIT_ZERO, 1, &channels);
    w[n + 1] = plume_buffer(pl, "var", PLUME_INIT_ONE, 1, &channels);
    return declare(pl, bn_params, n);
}

static int bn_step(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret_loss)
{
    plume_tensor **w = pl->state, *h, **kept = w + PL_COUNT(bn_params);

    h = plume_reshape(pl, b->field[0], 4, (size_t[]){b->rows, 1, 12, 12});
    h = plume_conv2d(pl, h, w[0], NULL, 1, 0, PLUME_IDENTITY);
    h = plume_batchnorm(pl, h, w[1], w[2], kept[0], kept[1], 0, 0, PLUME_RELU);
    h = plume_linear(pl, plume_max_pool2d(pl, h, 2, 2, 0), w[3], w[4], PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, b->field[1]);
    return 0;
}

static int bn_evaluate(struct plume_context *pl, const struct plume_batch *b)
{
    plume_tensor *loss = NULL;
    int r = bn_step(pl, b, &loss);

    plume_log(pl, "loss", loss, (double)b->rows, (double)b->rows);
    return r;
}

static int bn_sgd(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->kind = PLUME_SGD;
    ret->lr = 0.03125;
    ret->momentum = 0.875;
    ret->weight_decay = 0.015625;
    return 0;
}

#define CONTEXT 12
#define HEADS 2
#define PER_BLOCK 12 /* parameters */

static int gpt_configure(struct plume_context *pl)
{
    return declare(pl, gpt_params, PL_COUNT(gpt_params));
}

static plume_tensor *gpt_block(struct plume_context *pl, plume_tensor *const *w, plume_tensor *x)
{
    plume_tensor *h = plume_layernorm(pl, x, w[0], w[1], 0);

    h = plume_attention(pl, plume_linear(pl, h, w[2], w[3], PLUME_IDENTITY), HEADS, 1);
    x = plume_add(pl, x, plume_linear(pl, h, w[4], w[5], PLUME_IDENTITY));
    h = plume_linear(pl, plume_layernorm(pl, x, w[6], w[7], 0), w[8], w[9], PLUME_GELU_TANH);
    return plume_add(pl, x, plume_linear(pl, h, w[10], w[11], PLUME_IDENTITY));
}

static int gpt_step(struct plume_context *pl, const struct plume_batch *b, plume_tensor **ret_loss)
{
    plume_tensor **w = pl->state, *h;

    h = plume_add(pl, plume_embedding(pl, w[0], b->field[0]), w[1]);
    for (size_t layer = 0; layer < 2; layer++)
        h = gpt_block(pl, w + 2 + PER_BLOCK * layer, h);
    h = plume_layernorm(pl, h, w[2 + 2 * PER_BLOCK], w[3 + 2 * PER_BLOCK], 0);
    h = plume_linear(pl, h, w[0], NULL, PLUME_IDENTITY);
    *ret_loss = plume_cross_entropy(pl, h, b->field[1]);
    return 0;
}

static int adamw(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->kind = PLUME_ADAMW;
    ret->lr = 0.015625;
    ret->weight_decay = 0.0625;
    return 0;
}

static int sgd(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->kind = PLUME_SGD;
    ret->lr = 0.125;
    ret->momentum = 0.875;
    ret->weight_decay = 0.015625;
    return 0;
}

static const struct plume_module mlp_module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "mlp",
    .state_size = sizeof(plume_tensor *) * PL_COUNT(mlp_params),
    .configure = mlp_configure,
    .data = data,
    .training_step = mlp_step,
    .configure_optimizers = sgd,
};

static const struct model mlp = {
    .module = &mlp_module,
    .batch_size = "batch_size=9",
    .rows = 9,
    .per_row = 13,
    .classes = 7,
    .params = mlp_params,
    .n_params = PL_COUNT(mlp_params),
    .logits = mlp_logits,
    .n_logits = PL_COUNT(mlp_logits),
    .logits_stride = MLP_LOGITS_STRIDE,
    .loss = MLP_LOSS,
    .grads = mlp_grads,
    .f64 = mlp_f64,
    .f32 = mlp_f32,
    .bf16 = mlp_bf16,
};

static const struct plume_module cnn_module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "cnn",
    .state_size = sizeof(plume_tensor *) * PL_COUNT(cnn_params),
    .configure = cnn_configure,
    .data = data,
    .training_step = cnn_step,
    .configure_optimizers = sgd,
};

static const struct model cnn = {
    .module = &cnn_module,
    .batch_size = "batch_size=5",
    .rows = 5,
    .per_row = 144,
    .classes = 10,
    .params = cnn_params,
    .n_params = PL_COUNT(cnn_params),
    .logits = cnn_logits,
    .n_logits = PL_COUNT(cnn_logits),
    .logits_stride = CNN_LOGITS_STRIDE,
    .loss = CNN_LOSS,
    .grads = cnn_grads,
    .f64 = cnn_f64,
    .f32 = cnn_f32,
    .bf16 = cnn_bf16,
};

static const struct plume_module bn_module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "bn",
    .state_size = sizeof(plume_tensor *) * (PL_COUNT(bn_params) + 2),
    .configure = bn_configure,
    .data = data,
    .training_step = bn_step,
    .validation_step = bn_evaluate,
    .configure_optimizers = bn_sgd,
};

static const struct model bn = {
    .module = &bn_module,
    .batch_size = "batch_size=5",
    .rows = 5,
    .per_row = 144,
    .classes = 10,
    .params = bn_params,
    .n_params = PL_COUNT(bn_params),
    .logits = bn_logits,
    .n_logits = PL_COUNT(bn_logits),
    .logits_stride = BN_LOGITS_STRIDE,
    .loss = BN_LOSS,
    .grads = bn_grads,
    .f64 = bn_f64,
    .f32 = bn_f32,
    .bf16 = bn_bf16,
};

static const struct plume_module gpt_module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "gpt",
    .state_size = sizeof(plume_tensor *) * PL_COUNT(gpt_params),
    .configure = gpt_configure,
    .data = data,
    .training_step = gpt_step,
    .configure_optimizers = adamw,
};

static const struct model gpt = {
    .module = &gpt_module,
    .batch_size = "batch_size=3",
    .rows = 3,
    .per_row = CONTEXT,
    .classes = 11,
    .tokens = true,
    .params = gpt_params,
    .n_params = PL_COUNT(gpt_params),
    .logits = gpt_logits,
    .n_logits = PL_COUNT(gpt_logits),
    .logits_stride = GPT_LOGITS_STRIDE,
    .loss = GPT_LOSS,
    .grads = gpt_grads,
    .f64 = gpt_f64,
    .f32 = gpt_f32,
    .bf16 = gpt_bf16,
};

static void set_params(const struct model *m, struct pl_params *params)
{
    for (size_t i = 0; i < m->n_params; i++) {
        const struct golden_param *g = &m->params[i];
        plume_tensor *t = params->list[i]->tensor;
        double *values = malloc(t->count * sizeof(*values));

        for (size_t k = 0; values && k < t->count; k++)
            values[k] = fill((uint32_t)i + 1, k, g->scale, g->shift);
        if (values)
            on_device_set(t, values);
        free(values);
    }
}

#endif
