/* SPDX-License-Identifier: MIT */
/* Turns a module into one that bench/engine.py can time: the same model on made-up data from
 * .npy files (x.npy and y.npy in PLUME_DATA_DIR), and one line of JSON as the process ends:
 *
 *     {"rank": 0, "first_step": 1763692800.123, "step_s": [0.0123, ...], "peak_kb": 12345}
 *
 * first_step is when the first step was over, in seconds since the epoch, step_s the length of each
 * later one but the last. A step is from one call of training_step to the next, so that all the
 * engine does in between counts. Include it behind the module's source. */
#ifndef PL_BENCH_MODELS_TIMED_H
#define PL_BENCH_MODELS_TIMED_H

#include <plume/module.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#define TIMED_CALLS_MAX 65536

static struct {
    const struct plume_module *model;
    struct plume_module copy;
    size_t calls;
    unsigned rank;
    double at[TIMED_CALLS_MAX];
} timed;

static double timed_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int timed_data(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret)
{
    if (stage != PLUME_TRAIN)
        return 0;
    ret->n_fields = 2;
    ret->field[0].array = plume_open_npy(pl, "x.npy");
    ret->field[0].dtype = TIMED_INPUT;
    ret->field[0].scale = 1.0 / 255; /* of real fields */
    ret->field[1].array = plume_open_npy(pl, "y.npy");
    ret->field[1].dtype = PLUME_I32;
    return 0;
}

static int timed_training_step(struct plume_context *pl,
                               const struct plume_batch *batch,
                               plume_tensor **ret_loss)
{
    timed.rank = pl->rank;
    if (timed.calls < TIMED_CALLS_MAX)
        timed.at[timed.calls++] = timed_now();
    return timed.model->training_step(pl, batch, ret_loss);
}

/* Calls that only learn the tape come first: the steps are the last $BENCH_STEPS calls. */
__attribute__((destructor)) static void timed_tell(void)
{
    const char *word = getenv("BENCH_STEPS");
    size_t steps = word ? strtoul(word, NULL, 10) : 0;
    struct rusage usage;

    if (steps < 3 || timed.calls < steps)
        return;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"rank\": %u, \"first_step\": %.6f, \"peak_kb\": %ld, \"step_s\": [", timed.rank,
           timed.at[timed.calls - steps + 1], usage.ru_maxrss);
    for (size_t i = timed.calls - steps + 2; i < timed.calls; i++)
        printf("%s%.6f", i == timed.calls - steps + 2 ? "" : ", ", timed.at[i] - timed.at[i - 1]);
    printf("]}\n");
    fflush(stdout);
}

static const struct plume_module *timed_entry(const struct plume_module *model)
{
    timed.model = model;
    timed.copy = *model;
    timed.copy.data = timed_data;
    timed.copy.training_step = timed_training_step;
    timed.copy.validation_step = NULL;
    timed.copy.test_step = NULL;
    return &timed.copy;
}

#endif
