/* SPDX-License-Identifier: MIT */
/* Modules with one error each (BROKEN_*), for pltrain.bats. */
#include <plume/module.h>
#include <signal.h>

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

struct state {
    plume_tensor *w;
};

#if defined(BROKEN_NAN) || defined(BROKEN_SHAPE) || defined(BROKEN_HOOK) ||                        \
    defined(BROKEN_OPTIMIZER) || defined(BROKEN_CRASH) || defined(BROKEN_LOSS) ||                  \
    defined(BROKEN_DATA) || defined(BROKEN_PLACE) || defined(BROKEN_RANKS) ||                      \
    defined(BROKEN_APART)
#define COMPLETE 1
#else
#define COMPLETE 0
#endif

#if COMPLETE
static int configure(struct plume_context *pl)
{
    struct state *s = pl->state;

#ifdef BROKEN_HOOK
    return plume_fail(pl, -EIO, "the weather is bad");
#endif
    s->w = plume_param(pl, "w", PLUME_INIT_FAN_IN, 2, (size_t[]){10, 64});
#ifdef BROKEN_RANKS
    plume_param(pl, "bias", PLUME_INIT_ZERO, 1, (size_t[]){10 + pl->rank});
#endif
    return 0;
}

static int data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
#ifdef BROKEN_DATA
    ret->n_fields = 1;
    return 0;
#endif
    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, "digits/train-images.npy");
    ret->field[0].dtype = PLUME_F32;
    ret->field[1].array = plume_open_npy(pl, "digits/train-labels.npy");
    ret->field[1].dtype = PLUME_I32;
#ifdef BROKEN_NAN
    if (pl->rank == pl->world_size - 1)
        ret->field[0].scale = 1e38; /* infinite logits */
#endif
    return 0;
}

static int
training_step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    struct state *s = pl->state;
#ifdef BROKEN_LOSS
    return 0;
#endif
#ifdef BROKEN_CRASH
    if (pl->rank == pl->world_size - 1)
        raise(SIGSEGV); /* a sanitizer would catch a store to NULL before the kernel does */
#endif
#ifdef BROKEN_SHAPE
    plume_tensor *z = plume_linear(pl, s->w, batch->field[0], NULL, PLUME_IDENTITY);
#else
    plume_tensor *z = plume_linear(pl, batch->field[0], s->w, NULL, PLUME_IDENTITY);
#endif

    *ret_loss = plume_cross_entropy(pl, z, batch->field[1]);
    return 0;
}

#ifdef BROKEN_OPTIMIZER
static int configure_optimizers(struct plume_context *pl, struct plume_optimizer *ret)
{
    ret->lr = plume_hparam(pl, "learning_rate");
    return 0;
}
#endif
#ifdef BROKEN_APART
static int reduce_nothing(struct plume_context *pl, const struct plume_bucket *bucket)
{
    return 0;
}

static int configure_ddp(struct plume_context *pl, struct plume_ddp *ret)
{
    ret->reduce = reduce_nothing;
    return 0;
}
#endif
#ifdef BROKEN_PLACE
/* Not broken: the ranks meet at the address in $PLACE. */
static int init_ddp_connection(struct plume_connection *ret)
{
    ret->port = (unsigned)strtoul(getenv("PLACE"), NULL, 10);
    return 0;
}
#endif
#endif

#ifndef BROKEN_TABLE
static const struct plume_module module = {
    .struct_size = sizeof(struct plume_module),
#ifdef BROKEN_ABI
    .abi = PLUME_MODULE_ABI + 1,
#else
    .abi = PLUME_MODULE_ABI,
#endif
    .name = "broken",
    .state_size = sizeof(struct state),
#if COMPLETE
    .configure = configure,
    .data = data,
    .training_step = training_step,
#endif
#ifdef BROKEN_APART
    .configure_ddp = configure_ddp,
#endif
#ifdef BROKEN_PLACE
    .init_ddp_connection = init_ddp_connection,
#endif
#ifdef BROKEN_OPTIMIZER
    .configure_optimizers = configure_optimizers,
#endif
};
#endif

#ifdef BROKEN_ENTRY
PLUME_EXPORT const struct plume_module *another_entry(void);
const struct plume_module *another_entry(void)
#else
const struct plume_module *plume_module_entry(void)
#endif
{
#ifdef BROKEN_TABLE
    return NULL;
#else
    return &module;
#endif
}
