/* SPDX-License-Identifier: MIT */
/* A module that reports the end of its rank's first all-reduce of gradients. The engine calls the
 * training step once to record the tape, then for the first batch, then for the second; before the
 * second batch the gradients of the first have been reduced. */
#include <plume/module.h>
#include <stdio.h>
#include <time.h>

struct reduced {
    plume_tensor *w;
    int calls;
};

#define PIXELS 64
#define CLASSES 10

static const struct plume_hparam hparams[] = {
    {"batch_size", "8", 1, 65536, 1, NULL},
    {"epochs", "1", 0, 1e6, 1, NULL},
    {0},
};

static int configure(struct plume_context *pl)
{
    struct reduced *r = pl->state;

    r->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){CLASSES, PIXELS});
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[0].scale = 1.0 / 16;
    ret->field[1].array = plume_open_npy(pl, "digits/train-labels.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct reduced *r = pl->state;
    struct timespec t;

    if (++r->calls == 3) {
        clock_gettime(CLOCK_REALTIME, &t);
        printf("reduced %lld.%09ld\n", (long long)t.tv_sec, t.tv_nsec);
        fflush(stdout);
    }
    *ret_loss = plume_cross_entropy(
        pl, plume_linear(pl, batch->field[0], r->w, NULL, PLUME_IDENTITY), batch->field[1]);
    return 0;
}

static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
    .abi = PLUME_MODULE_ABI,
    .name = "reduced",
    .hparams = hparams,
    .state_size = sizeof(struct reduced),
    .configure = configure,
    .data = data,
    .training_step = training_step,
};

const struct plume_module *plume_module_entry(void)
{
    return &module;
}
