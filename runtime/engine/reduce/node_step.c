/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reduce/node_step.h"
#include "kernels/pool/pool.h"
#include "runtime/engine/optim/node_update.h"
#include "runtime/engine/params/apart.h"
#include "runtime/engine/params/unused_params.h"

#include <string.h>

#define UNIT ((size_t)32768) /* elements */
#define BLOCK ((size_t)4096) /* elements that are summed into L1 at a time */
#define LINE 64              /* bytes between two ranks' counters */

int pl_node_step_init(struct pl_node_step *step,
                      struct pl_comm *comm,
                      struct pl_optimizers *optimizers,
                      struct pl_params *params,
                      const struct pl_reducer *reducer,
                      const struct pl_kernels *kernels,
                      struct pl_error *err)
{
    struct pl_node_step new = {.comm = comm,
                               .optimizers = optimizers,
                               .params = params,
                               .reducer = reducer,
                               .kernels = kernels};
    int r = pl_comm_alloc_common(comm, (size_t)comm->size * LINE, &new.taken, err);

    if (r < 0)
        return pl_error_wrap(err, r, "memory to share out the update");
    new.posts = pl_comm_node_posted(comm);
    new.lists = calloc(comm->size, sizeof(*new.lists));
    if (!new.lists)
        return pl_error_nomem(err);
    *step = new;
    return 0;
}

void pl_node_step_finish(struct pl_node_step *step)
{
    free(step->units);
    free(step->lists);
    *step = (struct pl_node_step){0};
}

void pl_node_step_release(struct pl_node_step *step)
{
    if (!step->comm || !step->params->apart)
        return;
    step->params->apart = false;
    pl_comm_node_post(step->comm);
    step->posts++;
    step->releasing = true;
}

int pl_node_step_await(struct pl_node_step *step, struct pl_error *err)
{
    if (!step->releasing)
        return 0;
    step->releasing = false;
    return pl_comm_node_work(step->comm, step->posts, NULL, NULL, err);
}

/* The number of posts after which the element's bucket is complete. The first bucket has the last
 * elements, and the flags. */
static uint32_t post_of(const struct pl_node_step *step, size_t element)
{
    const struct pl_reducer *red = step->reducer;
    size_t low = 0, high = red->n - 1;

    while (low < high) {
        size_t middle = (low + high) / 2;

        if (red->buckets[middle].offset <= element)
            high = middle;
        else
            low = middle + 1;
    }
    return step->before + (uint32_t)low + 1;
}

static int
add_unit(struct pl_node_step *step, const struct pl_node_unit *unit, struct pl_error *err)
{
    if (step->n == step->room) {
        size_t room = PL_MAX(2 * step->room, (size_t)64);
        struct pl_node_unit *units = reallocarray(step->units, room, sizeof(*units));

        if (!units)
            return pl_error_nomem(err);
        step->units = units;
        step->room = room;
    }
    step->units[step->n++] = *unit;
    return 0;
}

static int add_segment(struct pl_node_step *step,
                       const struct pl_optimizer_segment *segment,
                       struct pl_error *err)
{
    int r = 0;

    for (unsigned i = 0; i < step->comm->size && segment->from < segment->to; i++) {
        size_t from = segment->from, end = segment->to;

        pl_node_update_part(segment->optimizer, step->params, segment->range, i, &from, &end);
        for (size_t to; from < end && r == 0; from = to) {
            struct pl_node_unit unit = {.segment = *segment, .rank = i};

            to = PL_MIN(end, (from / UNIT + 1) * UNIT);
            unit.segment.from = from;
            unit.segment.to = to;
            unit.post = post_of(step, from);
            r = add_unit(step, &unit, err);
        }
    }
    return r;
}

static int compare_units(const void *a, const void *b)
{
    const struct pl_node_unit *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->segment.from > y->segment.from ? -1 : x->segment.from < y->segment.from;
}

/* The same units on every rank: who uses what is the same. */
static int plan(struct pl_node_step *step, struct pl_error *err)
{
    struct pl_optimizer_segment segment;
    int r = pl_unused_params_collect(step->params, false, &step->used, err);

    step->planned = true;
    step->n = 0;
    for (size_t i = 0; i < step->optimizers->n && step->used && r == 0; i++) {
        struct pl_optimizer *o = &step->optimizers->list[i];

        o->steps++;
        for (size_t k = 0; k < o->n_ranges; k++)
            for (size_t at = 0; r == 0 && pl_optimizer_next_segment(step->optimizers, o,
                                                                    &o->ranges[k], &at, &segment);)
                r = add_segment(step, &segment, err);
    }
    if (r < 0)
        return r;
    if (step->n)
        qsort(step->units, step->n, sizeof(*step->units), compare_units);
    for (size_t rank = 0, at = 0; rank < step->comm->size; rank++) {
        struct pl_node_list *list = &step->lists[rank];

        list->first = at;
        while (at < step->n && step->units[at].rank == rank)
            at++;
        list->n = (uint32_t)(at - list->first);
    }
    return 0;
}

static _Atomic uint32_t *taken_of(const struct pl_node_step *step, unsigned rank)
{
    return (_Atomic uint32_t *)(void *)((char *)step->taken + (size_t)rank * LINE);
}

/* A unit that nobody has taken and that is complete, of the own ones if there is one. */
static const struct pl_node_unit *take_unit(const struct pl_node_step *step, uint32_t posted)
{
    for (unsigned k = 0; k < step->comm->size; k++) {
        unsigned rank = (step->comm->rank + k) % step->comm->size;
        const struct pl_node_list *list = &step->lists[rank];
        _Atomic uint32_t *taken = taken_of(step, rank);
        uint32_t at = atomic_load(taken);

        while (at - list->taken < list->n) {
            const struct pl_node_unit *unit = &step->units[list->first + (at - list->taken)];

            if ((int32_t)(posted - unit->post) < 0)
                break;
            if (atomic_compare_exchange_weak(taken, &at, at + 1))
                return unit;
        }
    }
    return NULL;
}

static void update_unit(const struct pl_node_step *step, const struct pl_node_unit *unit)
{
    const struct pl_params *params = step->params;
    char sum[BLOCK * sizeof(double)] __attribute__((aligned(64)));
    size_t size = pl_real_size(params->real), end = unit->segment.to;

    for (size_t from = unit->segment.from, n; from < end; from += n) {
        const void *own = pl_params_value(params, from);

        n = PL_MIN(end - from, BLOCK);
        pl_params_sum_apart(params, step->kernels, from, n, sum);
        pl_optimizer_update(
            step->optimizers, &unit->segment, from, step->kernels,
            &(struct pl_update){.n = n, .factor = 1, .clip = step->clip, .grad = sum});
        for (unsigned i = 0; i < step->comm->size; i++)
            if (i != step->comm->rank)
                memcpy(pl_comm_of_peer(step->comm, own, i), own, n * size);
    }
}

struct taker {
    const struct pl_node_step *step;
    uint32_t posted;
};

/* Of one thread. */
static void update_units(void *ctx, size_t begin, size_t end)
{
    const struct taker *taker = ctx;
    const struct pl_node_unit *unit;

    while ((unit = take_unit(taker->step, taker->posted)))
        update_unit(taker->step, unit);
}

static int work(void *ctx, uint32_t posted, struct pl_error *err)
{
    struct pl_node_step *step = ctx;
    struct taker taker = {step, posted};
    int r = 0;

    if ((int32_t)(posted - step->before) <= 0) /* some rank's flags are missing */
        return 0;
    if (!step->planned)
        r = plan(step, err);
    if (r == 0 && step->used)
        pl_pool_parallel(pl_pool_threads(), 1, update_units, &taker);
    return r;
}

int pl_node_step_run(struct pl_node_step *step, double clip, bool *ret_used, struct pl_error *err)
{
    int r;

    step->before = step->posts;
    step->posts += (uint32_t)step->reducer->n;
    step->planned = step->used = false;
    step->clip = clip;
    step->params->apart = true;
    step->params->apart_scale = step->reducer->scale;
    r = pl_comm_node_work(step->comm, step->posts, work, step, err);
    for (unsigned i = 0; i < step->comm->size && r == 0 && step->used; i++)
        step->lists[i].taken += step->lists[i].n;
    if (r == 0)
        r = pl_comm_node_barrier(step->comm, err);
    *ret_used = step->used;
    return r;
}
