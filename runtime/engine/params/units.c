/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/units.h"
#include "common/base/log.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/tape/tape_memory.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

/* ---- units ---- */

int pl_units_init(struct pl_units *units,
                  struct pl_params *params,
                  struct pl_comm *comm,
                  size_t max_bytes,
                  struct pl_error *err)
{
    size_t most = max_bytes / pl_real_size(params->real);
    struct pl_unit *u = NULL;

    params->units = units;
    *units = (struct pl_units){
        .params = params,
        .comm = comm,
        .ahead = comm->gpu && !params->dev->ops->host,
        .list = calloc(params->n + 1, sizeof(*units->list)),
        .offset = calloc((size_t)comm->size + 1, sizeof(*units->offset)),
        .hashes = calloc((size_t)comm->size + 1, sizeof(*units->hashes)),
    };
    if (!units->list || !units->offset || !units->hashes) {
        pl_units_finish(units);
        return pl_error_nomem(err);
    }
    for (size_t i = 0; i < params->n; i++) {
        size_t from = params->order[i]->offset;
        size_t to = i + 1 < params->n ? params->order[i + 1]->offset : params->flags;

        if (!u || to - u->from > most) {
            u = &units->list[units->n++];
            *u = (struct pl_unit){.from = from, .first = i};
        }
        u->to = to;
        u->n++;
        u->own = u->from >= params->own_from && to <= params->own_to;
    }
    return 0;
}

void pl_units_finish(struct pl_units *units)
{
    if (units->params) {
        pl_device_free(units->params->dev, units->memory);
        units->params->units = NULL;
    }
    pl_unit_plan_finish(&units->whole);
    free(units->list);
    free(units->offset);
    free(units->hashes);
    *units = (struct pl_units){0};
}

static int make_whole(struct pl_units *units, struct pl_error *err)
{
    struct pl_unit_plan *plan = &units->whole;

    if (plan->list)
        return 0;
    plan->list = calloc(units->n + 1, sizeof(*plan->list));
    if (!plan->list)
        return pl_error_nomem(err);
    for (size_t i = 0; i < units->n; i++)
        plan->list[plan->n++] = (struct pl_unit_stay){.unit = i, .to = SIZE_MAX - 1};
    return pl_unit_plan_place(units, plan) < 0 ? pl_error_nomem(err) : 0;
}

/* ---- running ---- */

/* Sets the pointers of a unit's parameters and casts. memory: NULL takes them away. */
static void point(const struct pl_units *units,
                  const struct pl_unit_plan *plan,
                  const struct pl_unit *u,
                  char *memory)
{
    const struct pl_params *params = units->params;

    for (size_t i = u->first; i < u->first + u->n; i++) {
        const struct pl_unit_place *place = &plan->places[i];
        char *at = memory ? memory + place->at : NULL;

        params->order[i]->tensor->data = place->low ? NULL : at;
        for (size_t c = place->low; c && c <= plan->n_casts && plan->casts[c - 1].param == i; c++)
            plan->casts[c - 1].t->data = at;
    }
}

static char *memory_of(const struct pl_units *units, const struct pl_unit_stay *stay)
{
    return stay->offset == SIZE_MAX ? pl_params_value(units->params, units->list[stay->unit].from)
                                    : units->memory + stay->offset;
}

/* The place of an element of the arenas in its unit's memory. */
static size_t byte_of(const struct pl_units *units,
                      const struct pl_unit_plan *plan,
                      const struct pl_unit *u,
                      size_t element)
{
    struct pl_param *const *order = units->params->order;
    size_t i = u->first + u->n - 1;

    if (element >= u->to)
        return plan->unit_bytes[u - units->list];
    while (order[i]->offset > element)
        i--;
    return plan->places[i].at + PL_MIN(element - order[i]->offset, order[i]->tensor->count) *
                                    pl_unit_element(units, plan, i);
}

static void narrow(
    const struct pl_units *units, const plume_tensor *cast, const void *wide, void *half, size_t n)
{
    struct pl_device *dev = units->params->dev;

    dev->ops->kernels(dev, units->params->real)
        ->narrow(&(struct pl_half_args){
            .n = n,
            .type = cast->dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16,
            .half = half,
            .wide = (void *)(uintptr_t)wide,
        });
}

/* Puts the own part of a unit into its memory. */
static void pack(const struct pl_units *units,
                 const struct pl_unit_plan *plan,
                 const struct pl_unit *u,
                 char *memory)
{
    const struct pl_params *params = units->params;

    for (size_t i = u->first; i < u->first + u->n; i++) {
        const struct pl_unit_place *place = &plan->places[i];
        size_t offset = params->order[i]->offset, size = pl_unit_element(units, plan, i);
        size_t from = PL_MAX(offset, params->own_from);
        size_t to = PL_MIN(offset + params->order[i]->tensor->count, params->own_to);
        char *at = memory + place->at;

        if (from >= to)
            continue;
        at += (from - offset) * size;
        if (place->low)
            narrow(units, plan->casts[place->low - 1].t, pl_params_value(params, from), at,
                   to - from);
        else
            params->dev->ops->copy(params->dev, at, pl_params_value(params, from),
                                   (to - from) * size);
    }
}

/* The next one. With `ahead` later work of the device does not wait for it. */
static int start_gather(struct pl_units *units, struct pl_error *err)
{
    const struct pl_unit_plan *plan = units->running;
    const struct pl_unit_stay *stay = &plan->list[units->started++];
    const struct pl_unit *u = &units->list[stay->unit];
    char *memory = memory_of(units, stay);

    if (stay->offset != SIZE_MAX)
        pack(units, plan, u, memory);
    pl_shard_offsets(units->params, units->comm->size, u->from, u->to, units->offset);
    for (unsigned i = 0; i <= units->comm->size; i++)
        units->offset[i] = byte_of(units, plan, u, u->from + units->offset[i]);
    return units->ahead
               ? pl_comm_nccl_start_gather(units->comm->gpu, memory, units->offset, err)
               : pl_comm_allgather_on(units->comm, units->params->dev, memory, units->offset, err);
}

/* Of a batch whose ranks differ: the own tape's casts of a unit, after the rest of the memory. */
static void cast_whole(const struct pl_units *units, const struct pl_unit *u)
{
    const struct pl_unit_plan *own = units->own;

    for (size_t c = 0; own && c < own->n_casts; c++) {
        const struct pl_unit_cast *cast = &own->casts[c];

        if (cast->param < u->first || cast->param >= u->first + u->n)
            continue;
        cast->t->data = units->memory + units->running->bytes + cast->at;
        narrow(units, cast->t, units->params->order[cast->param]->tensor->data, cast->t->data,
               cast->t->count);
    }
}

/* The next stay comes into use. */
static int arrive(struct pl_units *units, struct pl_error *err)
{
    const struct pl_unit_stay *stay = &units->running->list[units->next];
    int r = units->started > units->next ? 0 : start_gather(units, err);

    if (r == 0 && units->ahead)
        r = pl_comm_nccl_join(units->comm->gpu, err);
    if (r < 0)
        return r;
    units->list[stay->unit].stay = units->next++;
    point(units, units->running, &units->list[stay->unit], memory_of(units, stay));
    cast_whole(units, &units->list[stay->unit]);
    return 0;
}

static int need(void *ctx, size_t position, struct pl_error *err)
{
    struct pl_units *units = ctx;
    const struct pl_unit_plan *plan = units->running;
    int r = 0;

    for (size_t i = units->done; i < units->next; i++)
        if (plan->list[i].to < position) {
            struct pl_unit *u = &units->list[plan->list[i].unit];

            if (u->stay == i) /* a later stay may have begun */
                point(units, plan, u, NULL);
            if (i == units->done)
                units->done++;
        }
    while (r == 0 && units->next < plan->n && plan->list[units->next].from <= position)
        r = arrive(units, err);
    if (r == 0 && units->ahead && units->started == units->next && units->next < plan->n &&
        plan->list[units->next].begin <= position)
        r = start_gather(units, err);
    return r;
}

static size_t next_need(const void *ctx)
{
    const struct pl_units *units = ctx;

    return units->next < units->running->n ? units->running->list[units->next].from : SIZE_MAX;
}

/* Chooses the plan, in which all ranks agree, and gets memory for it. */
static int start(struct pl_units *units, const struct pl_unit_plan *plan, struct pl_error *err)
{
    unsigned size = units->comm->size;
    bool alike = true;
    size_t bytes;
    int r;

    for (size_t i = 0; i < units->params->n; i++)
        units->params->order[i]->tensor->data = NULL;
    units->hashes[units->comm->rank] = plan ? plan->hash : 0;
    for (unsigned i = 0; i <= size; i++)
        units->offset[i] = i * sizeof(*units->hashes);
    r = pl_comm_allgather(units->comm, units->hashes, units->offset, err);
    for (unsigned i = 0; i < size; i++)
        alike &= units->hashes[i] != 0 && units->hashes[i] == units->hashes[0];
    if (r == 0 && !alike)
        r = make_whole(units, err);
    if (r < 0)
        return r;
    if (!alike && !units->told && units->comm->rank == 0)
        pl_log_warn("train", "ranks took different branches, or one had no loss: --shard param "
                             "keeps all parameters on each rank during such batches");
    units->told |= !alike;
    units->running = alike ? plan : &units->whole;
    units->own = alike ? NULL : plan;
    bytes = units->running->bytes + (units->own ? units->own->casts_bytes : 0);
    units->next = units->started = units->done = 0;
    if (bytes <= units->bytes)
        return 0;
    pl_device_free(units->params->dev, units->memory);
    units->memory = NULL;
    units->bytes = 0;
    r = pl_device_alloc(units->params->dev, bytes, "gathered parameters", (void **)&units->memory,
                        err);
    if (r == 0)
        units->bytes = bytes;
    return r;
}

int pl_units_begin(struct pl_units *units,
                   struct pl_unit_plan *plan,
                   struct pl_tape *tape,
                   struct pl_error *err)
{
    int r = pl_unit_plan_make(units, plan, tape, err);

    units->leaves = (struct pl_tape_leaves){.need = need, .next = next_need, .ctx = units};
    tape->leaves = &units->leaves;
    return r < 0 ? r : start(units, plan, err);
}

int pl_units_assist(struct pl_units *units,
                    struct pl_unit_plan *plan,
                    const struct pl_tape *tape,
                    struct pl_error *err)
{
    int r = tape ? pl_unit_plan_make(units, plan, tape, err) : 0;

    if (r == 0)
        r = start(units, tape ? plan : NULL, err);
    return r < 0 ? r : need(units, SIZE_MAX - 1, err);
}
