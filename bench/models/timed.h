/* SPDX-License-Identifier: MIT */
/* Makes a module that bench/engine.py and bench/gpu_engine.py can time: the same model, on made-up
 * data from .npy files (x.npy and y.npy in PLUME_DATA_DIR). At its end the process prints one line
 * of JSON:
 *
 *     {"rank": 0, "first_step": 1763692800.123, "peak_kb": 12345, "step_s": [0.0123, ...]}
 *
 * first_step is the end of the first step in seconds since the epoch. step_s has the times of the
 * following steps, each from the end of one step to the end of the next, so that all work of the
 * engine between them counts. With TIMED_SECONDS, step_s has means over as many steps as take that
 * long.
 *
 * A GPU works asynchronously. The module waits for it only when it takes a time, and therefore does
 * not time single steps on GPUs.
 *
 * Include this file before the module's source, with TIMED_INPUT the type of the first field. */
#ifndef PL_BENCH_MODELS_TIMED_H
#define PL_BENCH_MODELS_TIMED_H

#include <dlfcn.h>
#include <errno.h>
#include <plume/module.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#ifndef TIMED_INPUT
#define TIMED_INPUT PLUME_F32
#endif
#define TIMED_MAX 65536

static struct {
    struct plume_module module;
    unsigned rank;
    double least_s;     /* seconds between two times */
    double first, last; /* times; 0 before the first step's end */
    size_t steps;       /* steps since the last time */
    size_t n;
    double step_s[TIMED_MAX];
} timed;

static double timed_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Synchronizes through CUDA's driver if the engine has loaded it: modules have no device. */
static int timed_wait(struct plume_context *pl)
{
    static int (*synchronize)(void);
    static void *driver;

    if (!driver) {
        driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
        if (driver)
            *(void **)&synchronize = dlsym(driver, "cuCtxSynchronize");
    }
    if (driver && (!synchronize || synchronize() != 0))
        return plume_fail(pl, -EIO, "cuCtxSynchronize failed");
    return 0;
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
    double now;
    int r;

    (void)batch;
    timed.rank = pl->rank;
    timed.steps++;
    if (timed.n == TIMED_MAX || (timed.first > 0 && timed_now() - timed.last < timed.least_s))
        return 0;
    r = timed_wait(pl);
    now = timed_now();
    if (timed.first > 0)
        timed.step_s[timed.n++] = (now - timed.last) / (double)timed.steps;
    else
        timed.first = now;
    timed.last = now;
    timed.steps = 0;
    return r;
}

__attribute__((destructor)) static void timed_tell(void)
{
    struct rusage usage;

    if (timed.first == 0)
        return;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"rank\": %u, \"first_step\": %.6f, \"peak_kb\": %ld, \"step_s\": [", timed.rank,
           timed.first, usage.ru_maxrss);
    for (size_t i = 0; i < timed.n; i++)
        printf("%s%.9f", i == 0 ? "" : ", ", timed.step_s[i]);
    printf("]}\n");
    fflush(stdout);
}

static const struct plume_module *timed_entry(const struct plume_module *model)
{
    const char *least = getenv("TIMED_SECONDS");

    timed.least_s = least ? strtod(least, NULL) : 0;
    timed.module = *model;
    timed.module.data = timed_data;
    timed.module.on_train_batch_end = timed_step_end;
    timed.module.validation_step = NULL;
    timed.module.test_step = NULL;
    return &timed.module;
}

#endif
