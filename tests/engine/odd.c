/* SPDX-License-Identifier: MIT */
/* A module that does what $ODD names, in its last rank, for pltrain.bats, interrupt.bats
 * and hangs.bats. */
#include <plume/module.h>
#include <plume/ops_index.h>
#include <plume/ops_nn.h>
#include <poll.h>
#include <signal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FEATURES 4
#define CLASSES 3
#define STEP 20 /* from which on the ranks train for a test */
#define SLOW_MS 40

struct state {
    plume_tensor *w;
    int last;
};

static int odd(const char *how)
{
    const char *env = getenv("ODD");

    return env && strcmp(env, how) == 0;
}

static int configure(struct plume_context *pl)
{
    struct state *s = pl->state;
    char name[300];

    memset(name, 'n', sizeof(name));
    name[odd("long-name") ? sizeof(name) - 1 : 1] = '\0';
    s->last = pl->rank == pl->world_size - 1;
    s->w = plume_param(pl, name, PLUME_INIT_FAN_IN, 2, (size_t[]){CLASSES, FEATURES});
    return 0;
}

static int fill(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size)
{
    const struct state *s = ctx;
    int here = s->last && index == 20;

    if (here && odd("crash-in-fill"))
        raise(SIGSEGV);
    if (here && odd("abort-in-fill"))
        abort();
    if (here && odd("exit-in-fill"))
        exit(0);
    memset(out[0], 0, FEATURES * real_size);
    for (size_t i = 0; i < FEATURES && odd("losses"); i++)
        if (real_size == sizeof(float))
            ((float *)out[0])[i] = (float)(index * (i + 3) % 7) - 3;
        else
            ((double *)out[0])[i] = (double)(index * (i + 3) % 7) - 3;
    for (size_t i = 0; i < FEATURES && odd("drop-last"); i++) {
        if (real_size == sizeof(float))
            ((float *)out[0])[i] = (float)(index + 1);
        else
            ((double *)out[0])[i] = (double)(index + 1);
    }
    *(int32_t *)out[1] = (int32_t)(index % CLASSES);
    if (here && odd("label"))
        *(int32_t *)out[1] = CLASSES;
    return here && odd("fill-returns-7") ? 7 : 0;
}

static int signals_while(void)
{
    return odd("signal-in-validation") || odd("signal-in-test") || odd("signal-in-predict");
}

/* Validation has label -1 in sample 20. */
static int fill_validation(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t size)
{
    int r = fill(ctx, epoch, index, out, size);

    if (index == 21 && ((const struct state *)ctx)->last && signals_while())
        kill(getpid(), SIGTERM);
    *(int32_t *)out[1] = index == 20 && odd("validation-label") ? -1 : (int32_t)(index % CLASSES);
    return r;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage == PLUME_TEST && !odd("signal-in-test") && !odd("signal-in-predict") &&
        !odd("random-predictions") && !odd("output-predicted") && !odd("drop-last") &&
        !odd("losses"))
        return 0;
    ret->n_fields = 2;
    ret->field[0].dtype = PLUME_F32;
    ret->field[1].dtype = PLUME_I32;
    ret->rank[0] = 1;
    ret->shape[0][0] = FEATURES;
    ret->length = 64;
    ret->fill = stage == PLUME_TRAIN ? fill : fill_validation;
    ret->ctx = pl->state;
    if (odd("drop-last")) { /* in all stages, as a data hook that asks for no stage has it */
        ret->length = 23;
        ret->drop_last = 1;
    }
    return 0;
}

/* Losses that are made of several ops, added up. */
static plume_tensor *
several_losses(struct plume_context *pl, plume_tensor *logits, plume_tensor *labels)
{
    plume_tensor *hot = plume_one_hot(pl, labels, CLASSES);
    plume_tensor *shares = plume_scale(pl, hot, 0.7, 0.1);
    plume_tensor *kl = plume_kl_div(pl, plume_log_softmax(pl, logits), shares);

    return plume_add(pl, plume_add(pl, kl, plume_bce_with_logits(pl, logits, hot)),
                     plume_cross_entropy_smooth(pl, logits, labels, 0.2));
}

static plume_tensor *loss(struct plume_context *pl, const struct plume_batch *batch)
{
    const struct state *s = pl->state;

    if (odd("masked"))
        return plume_cross_entropy_but(
            pl, plume_linear(pl, batch->field[0], s->w, NULL, PLUME_IDENTITY), batch->field[1],
            NULL, 1);
    if (odd("losses"))
        return several_losses(pl, plume_linear(pl, batch->field[0], s->w, NULL, PLUME_IDENTITY),
                              batch->field[1]);
    return plume_cross_entropy(pl, plume_linear(pl, batch->field[0], s->w, NULL, PLUME_IDENTITY),
                               batch->field[1]);
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    *ret_loss = loss(pl, batch);
    if (odd("output") || odd("output-read"))
        plume_output(pl, "mine", *ret_loss);
    return 0;
}

static int training_step_end(struct plume_context *pl,
                             const struct plume_outputs *outputs,
                             plume_tensor **ret_loss)
{
    *ret_loss = plume_whole(pl, outputs, "mine");
    return 0;
}

static int validation_step(struct plume_context *pl, const struct plume_batch *batch)
{
    plume_log(pl, "loss", loss(pl, batch), (double)batch->rows, (double)batch->rows);
    return 0;
}

static int
predict_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_output)
{
    const struct state *s = pl->state;

    *ret_output = plume_linear(pl, batch->field[0], s->w, NULL, PLUME_IDENTITY);
    if (odd("random-predictions"))
        *ret_output = plume_uniform(pl, 2, (size_t[]){batch->rows, CLASSES}, 0, 1);
    if (odd("output-predicted"))
        plume_output(pl, "mine", *ret_output);
    return 0;
}

static int on_train_epoch_start(struct plume_context *pl)
{
    const struct state *s = pl->state;

    if (s->last && odd("exit"))
        exit(0);
    if (s->last && odd("killed"))
        raise(SIGKILL);
    if (s->last && odd("hang")) {
        fprintf(stderr, "hanging\n");
        for (;;)
            pause();
    }
    return odd("returns-7") ? 7 : 0;
}

static int on_train_batch_start(struct plume_context *pl, const struct plume_batch *batch)
{
    const struct state *s = pl->state;

    if (s->last && pl->step == 1000 && odd("signal-in-step"))
        kill(getpid(), SIGTERM);
    if (s->last && pl->step == STEP && odd("hang-in-step"))
        for (;;)
            pause();
    while (s->last && pl->step == STEP && odd("compute") && access("go", F_OK) != 0)
        for (volatile int i = 0; i < 1000000; i++)
            ;
    if (s->last && pl->step >= STEP && odd("slow") && access("go", F_OK) != 0)
        poll(NULL, 0, SLOW_MS);
    if (s->last && pl->step == 10 && odd("stop"))
        raise(SIGSTOP);
    if (s->last &&
        ((pl->step == 7 && odd("signal-in-step-8")) || (pl->step == 3 && odd("signal-in-step-4"))))
        kill(getpid(), SIGTERM);
    /* Steps that take no time, and then 20 ms each. */
    if (pl->step == 10 && odd("signal-in-slow-step") && s->last)
        kill(getpid(), SIGTERM);
    if (pl->step >= 10 && (odd("slow-steps") || odd("signal-in-slow-step")))
        poll(NULL, 0, 20);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "odd",
    .state_size = sizeof(struct state),
    .configure = configure,
    .data = data,
    .training_step = training_step,
    .validation_step = validation_step,
    .on_train_epoch_start = on_train_epoch_start,
    .on_train_batch_start = on_train_batch_start,
};

const struct plume_module *plume_module_entry(void)
{
    static struct plume_module predicting;
    const char *rank = getenv("RANK");

    if (rank && strcmp(rank, "1") == 0 && odd("die-early"))
        raise(SIGKILL);
    if (odd("SIGTERM-in-entry") || odd("SIGUSR1-in-entry"))
        raise(odd("SIGTERM-in-entry") ? SIGTERM : SIGUSR1);
    if (odd("signal-in-predict") || odd("random-predictions") || odd("output-predicted") ||
        odd("drop-last") || odd("losses")) {
        predicting = module;
        predicting.predict_step = predict_step;
        return &predicting;
    }
    if (odd("output-read")) {
        predicting = module;
        predicting.training_step_end = training_step_end;
        return &predicting;
    }
    return &module;
}
