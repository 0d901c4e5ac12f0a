/* SPDX-License-Identifier: MIT */
/* 16-bit training of a linear classifier on synthetic samples: near f32; the loss scale skips steps
 * that overflow; at level O3 the parameters stay 16-bit numbers. */
#include "kernels/half.h"
#include "runtime/engine/train/train_step.h"
#include "runtime/engine/train/trainer.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define SAMPLES 64
#define FEATURES 16
#define CLASSES 4

struct net {
    plume_tensor *w, *b;
};

static const struct plume_hparam hparams[] = {{"lr", "0.05", 0, 1e6, 0, NULL},
                                              {"momentum", "0.9", 0, 1, 0, NULL},
                                              {"batch_size", "16", 1, 65536, 1, NULL},
                                              {0}};

static int configure(struct plume_context *pl)
{
    struct net *net = pl->state;

    net->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){CLASSES, FEATURES});
    net->b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){CLASSES});
    return 0;
}

/* The class is the quarter of the features with larger values. */
static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size)
{
    for (size_t i = 0; i < FEATURES; i++) {
        double value = 0.3 * sin((double)(index * 37 + i * 11)) + (i / 4 == index % CLASSES);

        if (real_size == sizeof(double))
            ((double *)out[0])[i] = value;
        else
            ((float *)out[0])[i] = (float)value;
    }
    *(int32_t *)out[1] = (int32_t)(index % CLASSES);
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 2;
    ret->field[0].dtype = PLUME_F32;
    ret->field[1].dtype = PLUME_I32;
    ret->rank[0] = 1;
    ret->shape[0][0] = FEATURES;
    ret->length = SAMPLES;
    ret->fill = fill;
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct net *net = pl->state;

    *ret_loss = plume_cross_entropy(
        pl, plume_linear(pl, batch->field[0], net->w, net->b, PLUME_IDENTITY), batch->field[1]);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(module),
    .abi = PLUME_MODULE_ABI,
    .name = "quarters",
    .hparams = hparams,
    .state_size = sizeof(struct net),
    .configure = configure,
    .data = data,
    .training_step = training_step,
};

struct fixture {
    struct pl_train_options options;
    struct pl_comm *comm;
    struct pl_hparams hparams;
    struct pl_rank_report report;
    struct pl_trainer trainer;
};

static void setup(struct fixture *f, enum pl_precision precision, int level)
{
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_error err = {0};

    *f = (struct fixture){.options = pl_train_options_default(), .report.link = PL_RANK_LINK_INIT};
    f->options.precision = precision;
    f->options.amp_level = level;
    f->options.device = on_device();
    assert_int_equal(pl_hparams_init(&f->hparams, hparams, NULL), 0);
    assert_int_equal(pl_comm_create(&world, NULL, &f->comm, NULL), 0);
    if (pl_trainer_init(&f->trainer, &module, &f->hparams, &f->options, f->comm, &f->report, &err) <
        0)
        fail_msg("%s", pl_error_text(&err));
}

static void teardown(struct fixture *f)
{
    pl_trainer_finish(&f->trainer);
    pl_hparams_finish(&f->hparams);
    pl_comm_destroy(f->comm);
}

static void train(struct fixture *f, unsigned epochs)
{
    struct pl_loader *loader = &f->trainer.stage[PLUME_TRAIN].loader;
    const struct plume_batch *batch;
    struct pl_error err = {0};

    for (unsigned epoch = 0; epoch < epochs; epoch++) {
        f->trainer.loss_sum = f->trainer.loss_weight = 0;
        pl_loader_begin(loader, epoch, 0);
        while ((batch = pl_loader_next(loader)))
            if (pl_train_step_train(&f->trainer, batch, false, &err) < 0)
                fail_msg("%s", pl_error_text(&err));
    }
}

static double loss_of(const struct fixture *f)
{
    return f->trainer.loss_sum / f->trainer.loss_weight;
}

/* A product in bf16 is off by 2^-9 an operand, in f16 by 2^-12; the loss follows roughly. */
static void test_16_bits_train_as_32_do(void **state)
{
    static const struct {
        enum pl_precision precision;
        int level;
        double tolerance;
    } cases[] = {
        {PL_PRECISION_64, 1, 1e-5},   {PL_PRECISION_BF16, 0, 0},    {PL_PRECISION_16, 0, 0},
        {PL_PRECISION_BF16, 1, 1e-2}, {PL_PRECISION_16, 1, 2e-3},   {PL_PRECISION_BF16, 2, 1e-2},
        {PL_PRECISION_16, 2, 2e-3},   {PL_PRECISION_BF16, 3, 5e-2}, {PL_PRECISION_16, 3, 1e-2},
    };
    double want;
    struct fixture f;

    setup(&f, PL_PRECISION_32, 1);
    train(&f, 5);
    want = loss_of(&f);
    assert_true(want < 0.5);
    teardown(&f);
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        setup(&f, cases[i].precision, cases[i].level);
        assert_int_equal(f.trainer.scaler.enabled,
                         cases[i].precision == PL_PRECISION_16 && cases[i].level > 0);
        if (f.trainer.scaler.enabled)
            f.trainer.scaler.scale = 1024; /* 65536 is too much for some sums: a step less */
        train(&f, 5);
        assert_int_equal(f.trainer.scaler.skipped, 0);
        if (fabs(loss_of(&f) - want) > cases[i].tolerance)
            fail_msg("case %zu: the loss is %g, not %g", i, loss_of(&f), want);
        teardown(&f);
    }
}

static void test_overflow_skips_and_halves(void **state)
{
    struct fixture f;
    void *before, *after;
    size_t bytes;
    plume_tensor *w;

    setup(&f, PL_PRECISION_16, 1);
    f.trainer.scaler.scale = 0x1p40f; /* the logits' gradients do not fit into f16 */
    w = ((struct net *)f.trainer.ctx.pub.state)->w;
    bytes = w->count * sizeof(float);
    before = on_device_read(w->data, bytes);
    train(&f, 1); /* 4 batches */
    assert_int_equal(f.trainer.scaler.skipped, 4);
    assert_true(f.trainer.scaler.scale == 0x1p36f);
    after = on_device_read(w->data, bytes);
    assert_true(before && after);
    assert_memory_equal(before, after, bytes);
    free(after);
    assert_int_equal(f.trainer.optimizers.list[0].steps, 0);
    assert_int_equal(f.trainer.state.step, 4); /* skipped steps count, as in Lightning */
    train(&f, 10);                             /* finds a scale that fits */
    assert_true(f.trainer.scaler.scale < 0x1p24f);
    after = on_device_read(w->data, bytes);
    assert_non_null(after);
    assert_memory_not_equal(before, after, bytes);
    free(after);
    free(before);
    assert_true(loss_of(&f) < 1);
    teardown(&f);
}

static void test_o3_keeps_16_bit_numbers(void **state)
{
    for (enum pl_precision p = PL_PRECISION_16; p <= PL_PRECISION_BF16; p++) {
        enum pl_half half = p == PL_PRECISION_16 ? PL_HALF_F16 : PL_HALF_BF16;
        struct fixture f;

        setup(&f, p, 3);
        for (int again = 0; again < 2; again++) {
            const struct pl_params *params = &f.trainer.ctx.params;
            float *values = on_device_read(params->values, params->count * sizeof(*values));

            assert_non_null(values);
            for (size_t i = 0; i < params->count; i++)
                assert_true(pl_f32_of_half(half, pl_half_of_f32(half, values[i])) == values[i]);
            free(values);
            train(&f, 1);
        }
        teardown(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_16_bits_train_as_32_do),
        cmocka_unit_test(test_overflow_skips_and_halves),
        cmocka_unit_test(test_o3_keeps_16_bit_numbers),
    };

    (void)on_device(); /* exits with 77 without a device */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
