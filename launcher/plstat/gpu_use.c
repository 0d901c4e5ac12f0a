/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/gpu_use.h"
#include "common/proto/json.h"

#include <math.h>
#include <string.h>

/* Percent. A GPU that computes less than a third of the time waits for something; one that is
 * nearly empty has room for batches that use its processors better, unless they are busy all the
 * same. */
#define IDLE 33
#define BUSY 80
#define EMPTY 20
#define ROOM 50
#define GIB 1073741824.0

enum use {
    USE_FINE,
    USE_NONE,  /* by no rank, while other GPUs have ranks */
    USE_ROOM,  /* idle, or nearly empty and not busy; a larger batch fits */
    USE_WAITS, /* idle, and its memory is in use */
    N_USES,
};

static const char *const advice[N_USES] = {
    [USE_NONE] = "no rank uses it: ask for fewer GPUs, or start more ranks",
    [USE_ROOM] = "raise the batch size, then the loader's workers and --cpus-per-task",
    [USE_WAITS] = "its data may be late: raise the loader's workers and --cpus-per-task",
};

/* The GPUs of one kind of use. */
struct found {
    size_t n;
    const char *node; /* of the first */
    int64_t gpu;
    double low, high, most; /* percent of time; share of memory */
    double bytes, total;    /* of the GPU with the largest share */
};

static bool number_of(const json_t *o, const char *key, double *ret)
{
    const json_t *value = json_object_get(o, key);

    if (!json_is_number(value))
        return false;
    *ret = json_number_value(value);
    return true;
}

static enum use use_of(const json_t *gpu, bool ranks_are_known)
{
    double util, bytes = 0, total = 0, share = NAN;

    if (!number_of(gpu, "util_mean", &util))
        return USE_FINE; /* not watched for long enough */
    if (number_of(gpu, "mem_most", &bytes) && number_of(gpu, "mem_total", &total) && total > 0)
        share = 100 * bytes / total;
    if (ranks_are_known && !json_array_size(json_object_get(gpu, "ranks")))
        return util < 1 ? USE_NONE : USE_FINE;
    if (util < IDLE)
        return share >= ROOM ? USE_WAITS : USE_ROOM;
    return util < BUSY && share < EMPTY ? USE_ROOM : USE_FINE;
}

static void add(struct found *f, const json_t *node, const json_t *gpu)
{
    double util = 0, bytes = 0, total = 0;

    number_of(gpu, "util_mean", &util);
    if (number_of(gpu, "mem_most", &bytes) && number_of(gpu, "mem_total", &total) && total > 0 &&
        bytes / total >= f->most) {
        f->most = bytes / total;
        f->bytes = bytes;
        f->total = total;
    }
    if (f->n++ == 0) {
        f->node = pl_json_string(node, "node");
        if (pl_json_int(gpu, "gpu", &f->gpu) < 0)
            f->gpu = -1;
        f->low = f->high = util;
    }
    f->low = fmin(f->low, util);
    f->high = fmax(f->high, util);
}

static int print(struct pl_plstat *ps, const struct found *f, enum use use)
{
    _cleanup_(pl_buf_finish) struct pl_buf line = {0};
    int r = f->n == 1 ? 0 : pl_buf_addf(&line, "%zu GPUs, as ", f->n);

    if (r == 0)
        r = pl_buf_addf(&line, "%s GPU %lld: ", f->node ? f->node : "?", (long long)f->gpu);
    if (r == 0 && f->low < f->high)
        r = pl_buf_addf(&line, "%.0f-%.0f %% busy", f->low, f->high);
    else if (r == 0)
        r = pl_buf_addf(&line, "%.0f %% busy", f->high);
    if (r == 0)
        r = pl_buf_adds(&line, " in the last minute");
    if (r == 0 && f->total > 0)
        r = pl_buf_addf(&line, ", %s%.1f of %.1f GiB", f->n == 1 ? "" : "at most ", f->bytes / GIB,
                        f->total / GIB);
    if (r == 0)
        r = pl_plstat_line(ps, PL_TERM_YELLOW, "%s", pl_buf_str(&line));
    return r < 0 ? r : pl_plstat_line(ps, PL_TERM_PLAIN, "-> %s", advice[use]);
}

static bool ranks_known(const json_t *doc)
{
    const json_t *node, *gpu;
    size_t i, k;

    json_array_foreach (json_object_get(doc, "nodes"), i, node)
        json_array_foreach (json_object_get(node, "gpus"), k, gpu)
            if (json_array_size(json_object_get(gpu, "ranks")))
                return true;
    return false;
}

int pl_gpu_use_print(struct pl_plstat *ps, const json_t *doc)
{
    struct found found[N_USES] = {{0}};
    bool known = ranks_known(doc);
    const json_t *node, *gpu;
    size_t i, k;
    int r = 0;

    json_array_foreach (json_object_get(doc, "nodes"), i, node)
        json_array_foreach (json_object_get(node, "gpus"), k, gpu)
            add(&found[use_of(gpu, known)], node, gpu);
    for (unsigned use = USE_NONE; use < N_USES && r == 0; use++)
        if (found[use].n)
            r = print(ps, &found[use], (enum use)use);
    return r;
}
