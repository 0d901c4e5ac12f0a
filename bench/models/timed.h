/* SPDX-License-Identifier: MIT */
/* Turns a module into one that bench/engine.py can time: the same model on made-up data from
 * .npy files (x.npy and y.npy in PLUME_DATA_DIR), and one line of JSON as the process ends:
 *
 *     {"rank": 0, "first_step": 1763692800.123, "step_s": [0.0123, ...], "peak_kb": 12345}
 *
 * first_step is when the first step was over, in seconds since the epoch; step_s is from there on
 * from the end of each step to that of the next, so that all the engine does in between counts.
 * Include it before the module's source, with TIMED_INPUT the type of the first field. */
#ifndef PL_BENCH_MODELS_TIMED_H
#define PL_BENCH_MODELS_TIMED_H

#include <plume/module.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

#ifndef TIMED_INPUT
#define TIMED_INPUT PLUME_F32
#endif
#define TIMED_STEPS_MAX 65536

static struct {
    struct plume_module module;
    size_t steps;
    unsigned rank;
    double end[TIMED_STEPS_MAX];
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

static int timed_step_end(struct plume_context *pl, const struct plume_batch *batch)
{
    (void)batch;
    timed.rank = pl->rank;
    if (timed.steps < TIMED_STEPS_MAX)
        timed.end[timed.steps++] = timed_now();
    return 0;
}

__attribute__((destructor)) static void timed_tell(void)
{
    struct rusage usage;

    if (timed.steps == 0)
        return;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"rank\": %u, \"first_step\": %.6f, \"peak_kb\": %ld, \"step_s\": [", timed.rank,
           timed.end[0], usage.ru_maxrss);
    for (size_t i = 1; i < timed.steps; i++)
        printf("%s%.6f", i == 1 ? "" : ", ", timed.end[i] - timed.end[i - 1]);
    printf("]}\n");
    fflush(stdout);
}

static const struct plume_module *timed_entry(const struct plume_module *model)
{
    timed.module = *model;
    timed.module.data = timed_data;
    timed.module.on_train_batch_end = timed_step_end;
    timed.module.validation_step = NULL;
    timed.module.test_step = NULL;
    return &timed.module;
}

#endif
