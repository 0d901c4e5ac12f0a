/* SPDX-License-Identifier: MIT */
/* GPT-2 (124M) in bf16 at batch 32, and ResNet-18 with images of 224 x 224 at batch 128, recorded
 * and planned on a device that is made of paper: nothing has memory, and nothing runs. */
#ifndef PL_TESTS_UNIT_ENGINE_TAPE_PAPER_MODELS_H
#define PL_TESTS_UNIT_ENGINE_TAPE_PAPER_MODELS_H

#include "common/base/macros.h"
#include "runtime/engine/ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define LAYERS 12
#define HEADS 12
#define WIDTH 768
#define TIME 1024
#define VOCABULARY 50304
#define BATCH 32
#define IMAGES 128
#define SIDE 224

/* Ours, with the types of a GPU's tables. */
static struct pl_kernels tables[PL_REAL_F16 + 1];

static const struct pl_kernels *paper_kernels(struct pl_device *dev, enum pl_real real)
{
    tables[real] = *pl_kernels_ref(PL_REAL_F32);
    tables[real].real = real;
    return &tables[real];
}

static int
paper_alloc(struct pl_device *dev, size_t bytes, const char *what, void **ret, struct pl_error *err)
{
    *ret = (void *)(uintptr_t)4096; /* nothing runs */
    return 0;
}

static void paper_free(struct pl_device *dev, void *memory) {}

static const struct pl_device_ops paper_ops = {
    .name = "paper", .kernels = paper_kernels, .alloc = paper_alloc, .free = paper_free};
static struct pl_device paper = {.ops = &paper_ops, .name = "paper"};

struct model {
    struct pl_tape tape;
    plume_tensor params[LAYERS * 12 + 4], ids, labels;
    size_t n;
};

static plume_tensor *leaf(struct model *m, size_t rank, const size_t *shape)
{
    plume_tensor *t = &m->params[m->n++];

    assert_true(m->n <= PL_COUNT(m->params));
    assert_int_equal(pl_tensor_init(t, PLUME_F32, rank, shape), 0);
    t->data = t->grad = (void *)(uintptr_t)4096;
    return t;
}

static plume_tensor *param_of(struct model *m, size_t rank, const size_t *shape)
{
    plume_tensor *t = leaf(m, rank, shape);

    t->wants_grad = t->is_param = true;
    return t;
}

static plume_tensor *param(struct model *m, size_t rows, size_t columns)
{
    return param_of(m, columns ? 2 : 1, (size_t[]){rows, columns});
}

static plume_tensor *
call(struct model *m, enum plume_op op, int64_t a, int64_t b, size_t n, plume_tensor *const *in)
{
    struct plume_op_args args = {{a, b}, {0}};
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (pl_op_call(&m->tape, op, in, n, &args, &t, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return t;
}

#define CALL(op, a, b, ...)                                                                        \
    call(m, op, a, b, sizeof((plume_tensor *[]){__VA_ARGS__}) / sizeof(plume_tensor *),            \
         (plume_tensor *[]){__VA_ARGS__})

static plume_tensor *norm(struct model *m, plume_tensor *x)
{
    return CALL(PLUME_OP_LAYERNORM, 0, 0, x, param(m, WIDTH, 0), param(m, WIDTH, 0));
}

static plume_tensor *
linear(struct model *m, plume_tensor *x, size_t in, size_t out, enum plume_activation act)
{
    return CALL(PLUME_OP_LINEAR, act, 0, x, param(m, out, in), param(m, out, 0));
}

/* As examples/gpt. */
static plume_tensor *block(struct model *m, plume_tensor *x)
{
    plume_tensor *h = linear(m, norm(m, x), WIDTH, 3 * WIDTH, PLUME_IDENTITY);

    h = linear(m, CALL(PLUME_OP_ATTENTION, HEADS, 1, h), WIDTH, WIDTH, PLUME_IDENTITY);
    x = CALL(PLUME_OP_BINARY, 0, 0, x, h);
    h = linear(m, norm(m, x), WIDTH, 4 * WIDTH, PLUME_GELU_TANH);
    h = linear(m, h, 4 * WIDTH, WIDTH, PLUME_IDENTITY);
    return CALL(PLUME_OP_BINARY, 0, 0, x, h);
}

static plume_tensor *gpt2(struct model *m)
{
    plume_tensor *token = param(m, VOCABULARY, WIDTH), *x;

    x = CALL(PLUME_OP_EMBEDDING, 0, 0, token, &m->ids);
    x = CALL(PLUME_OP_BINARY, 0, 0, x, param(m, TIME, WIDTH));
    for (size_t i = 0; i < LAYERS; i++)
        x = block(m, x);
    x = norm(m, x);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, 0, CALL(PLUME_OP_LINEAR, 0, 0, x, token), &m->labels);
}

/* A convolution without bias, and batch norm. */
static plume_tensor *unit(struct model *m,
                          plume_tensor *x,
                          size_t out,
                          size_t kernel,
                          size_t stride,
                          enum plume_activation act)
{
    struct plume_op_args args = {{(int64_t)stride, (int64_t)kernel / 2, PLUME_IDENTITY}, {0}};
    struct pl_error err = {0};
    plume_tensor *w = param_of(m, 4, (size_t[]){out, x->shape[1], kernel, kernel});

    if (pl_op_call(&m->tape, PLUME_OP_CONV2D, (plume_tensor *[]){x, w}, 2, &args, &x, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return CALL(PLUME_OP_BATCHNORM, act, 0, x, param(m, out, 0), param(m, out, 0), leaf(m, 1, &out),
                leaf(m, 1, &out));
}

/* As examples/resnet. */
static plume_tensor *resnet18(struct model *m)
{
    plume_tensor *x = leaf(m, 4, (size_t[]){IMAGES, 3, SIDE, SIDE}), *h;
    struct plume_op_args pool = {{3, 2, 1, 0}, {0}}, mean = {{2, 4, 0, 1}, {0}};

    x = unit(m, x, 64, 7, 2, PLUME_RELU);
    assert_int_equal(pl_op_call(&m->tape, PLUME_OP_POOL2D, &x, 1, &pool, &x, NULL), 0);
    for (size_t s = 0; s < 4; s++)
        for (size_t i = 0; i < 2; i++) {
            size_t out = (size_t)64 << s, stride = s > 0 && i == 0 ? 2 : 1;

            h = unit(m, x, out, 3, stride, PLUME_RELU);
            h = unit(m, h, out, 3, 1, PLUME_IDENTITY);
            if (stride == 2)
                x = unit(m, x, out, 1, 2, PLUME_IDENTITY);
            x = CALL(PLUME_OP_UNARY, PLUME_RELU, 0, CALL(PLUME_OP_BINARY, 0, 0, h, x));
        }
    assert_int_equal(pl_op_call(&m->tape, PLUME_OP_REDUCE, &x, 1, &mean, &x, NULL), 0);
    x = linear(m, x, 512, 10, PLUME_IDENTITY);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, 0, x, &m->labels);
}

/* Makes the tape of a model. */
enum { SHARES = 1, FUSES = 2, O2 = 4, STORES = 8, RESNET = 16, RECOMPUTES = 32 };

static void make(struct model *m, unsigned how)
{
    plume_tensor *loss;

    memset(m, 0, sizeof(*m));
    assert_int_equal(pl_tensor_init(&m->ids, PLUME_I32, 2, (size_t[]){BATCH, TIME}), 0);
    if (how & RESNET)
        assert_int_equal(pl_tensor_init(&m->labels, PLUME_I32, 1, (size_t[]){IMAGES}), 0);
    else
        assert_int_equal(pl_tensor_init(&m->labels, PLUME_I32, 2, (size_t[]){BATCH, TIME}), 0);
    pl_tape_init(&m->tape, &paper, PL_REAL_F32, true);
    m->tape.amp_dtype = PLUME_BF16;
    m->tape.amp_o2 = how & O2;
    m->tape.no_reuse = !(how & SHARES);
    m->tape.no_fuse = !(how & FUSES);
    m->tape.lends = m->tape.lends_all = m->tape.wide_grads = how & FUSES;
    m->tape.chunk = how & STORES ? SIZE_MAX : 0;
    m->tape.channels_last = true;
    m->tape.recompute = how & RECOMPUTES;
    pl_tape_begin(&m->tape);
    loss = how & RESNET ? resnet18(m) : gpt2(m);
    pl_tape_end(&m->tape);
    assert_int_equal(pl_tape_prepare(&m->tape, &loss, 1, 1, NULL), 0);
}

#endif
