/* SPDX-License-Identifier: MIT */
#include "tests/engine/fit_run.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct fit_run *fit_current;

static void event(const char *word)
{
    size_t len = strlen(fit_current->events);

    if (fit_current->module.on_fit_start)
        snprintf(fit_current->events + len, sizeof(fit_current->events) - len, "%s ", word);
}

static const struct plume_hparam hparams[] = {{"lr", "0.1", 0, 1e6, 0, NULL},
                                              {"epochs", "1", 0, 1e6, 1, NULL},
                                              {"batch_size", "16", 1, 65536, 1, NULL},
                                              {0}};

int fit_configure(struct plume_context *pl)
{
    struct fit_net *net = pl->state;

    net->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){10, 64});
    net->b = plume_param(pl, "b", PLUME_INIT_ZERO, 1, (size_t[]){10});
    if (fit_current->norm) {
        net->bn[0] = plume_param(pl, "bn.w", PLUME_INIT_ONE, 1, (size_t[]){8});
        net->bn[1] = plume_param(pl, "bn.b", PLUME_INIT_ZERO, 1, (size_t[]){8});
        net->bn[2] = plume_buffer(pl, "bn.mean", PLUME_INIT_ZERO, 1, (size_t[]){8});
        net->bn[3] = plume_buffer(pl, "bn.var", PLUME_INIT_ONE, 1, (size_t[]){8});
    }
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    static const size_t one_sample[] = {0};
    bool train = stage == PLUME_TRAIN && !(fit_current->uneven && pl->rank == 1);

    ret->n_fields = 2;
    ret->field[0].array =
        plume_open_npy(pl, train ? "digits/train-images.npy" : "digits/val-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16;
    ret->field[1].array =
        plume_open_npy(pl, train ? "digits/train-labels.npy" : "digits/val-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    if (fit_current->few && stage == PLUME_VALIDATE) {
        ret->order = one_sample;
        ret->n_order = 1;
    }
    return 0;
}

plume_tensor *fit_forward(struct plume_context *pl, const struct plume_batch *batch)
{
    struct fit_net *net = pl->state;
    plume_tensor *x = batch->field[0];

    if (fit_current->far)
        x = plume_scale(pl, x, 16, 0x1p24 - 17);
    if (fit_current->norm)
        x = plume_batchnorm(pl, x, net->bn[0], net->bn[1], net->bn[2], net->bn[3], 0, 0,
                            PLUME_IDENTITY);
    return plume_linear(pl, x, net->w, net->b, PLUME_IDENTITY);
}

int fit_training_step(struct plume_context *pl,
                      const struct plume_batch *batch,
                      plume_tensor **ret_loss)
{
    event("step");
    if (fit_current->drop) {
        struct fit_net *net = pl->state;
        plume_tensor *ones = plume_scale(pl, batch->field[0], 0, 1);

        *ret_loss = plume_linear(pl, plume_dropout(pl, ones, 0.5), net->w, net->b, PLUME_IDENTITY);
        *ret_loss = plume_mean(pl, *ret_loss, 0, 2);
        return 0;
    }
    *ret_loss = plume_cross_entropy(pl, fit_forward(pl, batch), batch->field[1]);
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    event("val");
    plume_log(pl, "loss", plume_cross_entropy(pl, fit_forward(pl, batch), batch->field[1]),
              (double)batch->rows, (double)batch->rows);
    return 0;
}

static int test_step(struct plume_context *pl, const struct plume_batch *batch)
{
    event("test");
    return 0;
}

#define ON(name)                                                                                   \
    static int on_##name(struct plume_context *pl)                                                 \
    {                                                                                              \
        event(#name);                                                                              \
        return 0;                                                                                  \
    }

ON(fit_start)
ON(fit_end)
ON(train_epoch_start)
ON(train_epoch_end)
ON(after_backward)
ON(before_optimizer_step)
ON(validation_start)
ON(validation_end)
ON(test_start)
ON(test_end)

static int on_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    event("{");
    return 0;
}

static int on_batch_end(struct plume_context *pl, const struct plume_batch *batch)
{
    event("}");
    return 0;
}

struct fit_run *fit_new_run(void)
{
    struct fit_run *run = ranks_shared(sizeof(*run));

    run->options = pl_train_options_default();
    run->options.seed = 7;
    run->module = (struct plume_module){
        .struct_size = sizeof(struct plume_module),
        .abi = PLUME_MODULE_ABI,
        .name = "linear",
        .hparams = hparams,
        .state_size = sizeof(struct fit_net),
        .configure = fit_configure,
        .data = data,
        .training_step = fit_training_step,
        .validation_step = validation_step,
        .test_step = test_step,
    };
    return run;
}

static void take_params(struct fit_run *run, const struct pl_params *params)
{
    size_t at = 0;

    if (params->shard == PL_SHARD_PARAM) /* no rank has them */
        return;
    for (size_t i = 0; i < 2; i++) {
        const plume_tensor *t = params->list[i]->tensor;
        double *values = on_device_values(t, t->data);

        for (size_t k = 0; values && k < t->count && at < FIT_COUNT; k++)
            run->params[at++] = (float)values[k];
        free(values);
    }
    if (at != FIT_COUNT)
        snprintf(run->error, sizeof(run->error), "the device did not give the parameters");
}

const char *fit_train(struct pl_comm *comm, void *shared)
{
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct fit_run *run = shared;
    struct pl_train_options options = run->options; /* a copy: each rank sets its device */
    struct pl_trainer trainer;
    struct pl_hparams h;
    struct pl_error err = {0};
    int r;

    fit_current = run;
    options.device = on_device();
    r = pl_hparams_init(&h, run->module.hparams, &err);
    for (size_t i = 0; r == 0 && i < PL_COUNT(run->hparams); i++)
        if (run->hparams[i][0])
            r = pl_hparams_set(&h, run->hparams[i], &err);
    if (r == 0)
        r = pl_trainer_init(&trainer, &run->module, &h, &options, comm, &report, &err);
    if (r == 0) {
        r = options.run == PL_RUN_TRAIN ? pl_trainer_fit(&trainer, &err)
                                        : pl_trainer_evaluate(&trainer, &err);
        if (comm->rank == 0 && r == 0) {
            memcpy(run->hash, trainer.param_hash, sizeof(run->hash));
            take_params(run, &trainer.ctx.params);
            run->step = trainer.state.step;
            run->epoch = trainer.state.epoch;
            run->val_loss = pl_metrics_get(&trainer.metrics, "val_loss");
        }
        pl_trainer_finish(&trainer);
    }
    if (r < 0 && comm->rank == 0)
        snprintf(run->error, sizeof(run->error), "%s", pl_error_text(&err));
    pl_hparams_finish(&h);
    return NULL;
}

void fit_go(struct fit_run *run, unsigned ranks, unsigned per_node)
{
    ranks_run(ranks, per_node, fit_train, run, 0);
}

void fit_assert_good(const struct fit_run *run)
{
    if (run->error[0])
        fail_msg("%s", run->error);
}

double fit_distance(const struct fit_run *a, const struct fit_run *b)
{
    double far = 0;

    fit_assert_good(a);
    fit_assert_good(b);
    for (size_t i = 0; i < FIT_COUNT; i++)
        far = fmax(far, fabs(a->params[i] - b->params[i]));
    return far;
}

void fit_hear(struct fit_run *run)
{
    run->module.on_fit_start = on_fit_start;
    run->module.on_fit_end = on_fit_end;
    run->module.on_train_epoch_start = on_train_epoch_start;
    run->module.on_train_epoch_end = on_train_epoch_end;
    run->module.on_train_batch_start = on_batch_start;
    run->module.on_train_batch_end = on_batch_end;
    run->module.on_after_backward = on_after_backward;
    run->module.on_before_optimizer_step = on_before_optimizer_step;
    run->module.on_validation_start = on_validation_start;
    run->module.on_validation_end = on_validation_end;
    run->module.on_test_start = on_test_start;
    run->module.on_test_end = on_test_end;
}

struct pl_limit fit_batches(double n)
{
    return (struct pl_limit){.value = n};
}

struct pl_limit fit_share(double x)
{
    return (struct pl_limit){.is_share = true, .value = x};
}

int fit_count(const struct fit_run *run, const char *word)
{
    char text[64];
    int n = 0;

    snprintf(text, sizeof(text), " %s ", word);
    for (const char *p = run->events; (p = strstr(p, text)); p++)
        n++;
    return n;
}

void fit_go_cut(struct fit_run *run, unsigned ranks, const char *dir, uint64_t cut)
{
    uint64_t end = run->options.max_steps;

    run->options.checkpoint_dir = dir;
    run->options.save_top_k = 0;
    run->options.save_last = true;
    run->options.resume = "last";
    run->options.max_steps = cut;
    fit_go(run, ranks, 0);
    fit_assert_good(run);
    assert_int_equal(run->step, cut);
    run->options.max_steps = end;
    fit_go(run, ranks, 0);
    fit_assert_good(run);
}
