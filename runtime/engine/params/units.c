/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/units.h"
#include "common/base/log.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/tape/tape_memory.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

/* Uses that are farther apart than this share of a direction are two stays. */
#define NEAR_SHARE 4
#define NEAR_NODES 16

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

void pl_unit_plan_finish(struct pl_unit_plan *plan)
{
    free(plan->list);
    *plan = (struct pl_unit_plan){0};
}

/* ---- stays ---- */

/* While the uses of a tape are collected, in the order of positions. */
struct uses {
    const struct pl_units *units;
    const struct pl_tape *tape;
    size_t *last;  /* by unit: its newest stay + 1, 0 = none */
    size_t newest; /* the unit that was used last */
    struct pl_unit_stay *list;
    size_t n, cap;
    bool bad;
};

/* The unit of a tensor that is a parameter or a view of one; SIZE_MAX for others. */
static size_t unit_of(const struct pl_units *units, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;
    size_t low = 0, high = units->n;

    if (!root->is_param)
        return SIZE_MAX;
    for (size_t i = 0; i < units->params->n; i++) {
        const struct pl_param *p = units->params->list[i];

        if (p->tensor != root)
            continue;
        while (high - low > 1) {
            size_t middle = (low + high) / 2;

            *(p->offset >= units->list[middle].from ? &low : &high) = middle;
        }
        return low;
    }
    return SIZE_MAX;
}

/* True if a use at `position` belongs to the unit's last stay. */
static bool goes_on(const struct uses *uses, size_t unit, size_t position)
{
    size_t n = uses->tape->n, gap;

    if (!uses->last[unit])
        return false;
    if (uses->newest == unit) /* nothing in between */
        return true;
    gap = position - uses->list[uses->last[unit] - 1].to;
    return (position < n) == (uses->list[uses->last[unit] - 1].to < n) &&
           gap <= PL_MAX(n / NEAR_SHARE, (size_t)NEAR_NODES);
}

static void add_use(struct uses *uses, const plume_tensor *t, size_t position)
{
    size_t unit = unit_of(uses->units, t);

    if (unit == SIZE_MAX || uses->bad)
        return;
    if (!goes_on(uses, unit, position)) {
        if (uses->n == uses->cap) {
            size_t cap = uses->cap ? 2 * uses->cap : 64;
            struct pl_unit_stay *list = reallocarray(uses->list, cap, sizeof(*list));

            uses->bad = !list;
            if (!list)
                return;
            uses->list = list;
            uses->cap = cap;
        }
        uses->list[uses->n++] = (struct pl_unit_stay){.unit = unit, .from = position};
        uses->last[unit] = uses->n;
    }
    uses->list[uses->last[unit] - 1].to = position;
    uses->newest = unit;
}

static void find_uses(struct uses *uses)
{
    const struct pl_tape *tape = uses->tape;
    size_t last = tape->n ? tape->n - 1 : 0;

    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        size_t layer = node->fusion.product; /* is done at this node */

        for (size_t k = 0; k < node->n_in; k++)
            if (node->in[k] && !node->op->view)
                add_use(uses, node->in[k], i);
        for (size_t k = 0; layer && k < tape->nodes[layer - 1].n_in; k++)
            add_use(uses, tape->nodes[layer - 1].in[k], i);
    }
    for (size_t i = 0; i < tape->n_roots; i++) /* read after the run */
        if (tape->roots[i])
            add_use(uses, tape->roots[i], last);
    for (size_t i = tape->n; i-- > 0;)
        for (size_t k = 0; k < tape->nodes[i].n_in && tape->nodes[i].back; k++)
            if (tape->nodes[i].in[k] && (tape->nodes[i].op->needs & PL_NEEDS_IN(k)))
                add_use(uses, tape->nodes[i].in[k], 2 * tape->n - 1 - i);
}

/* Gives the stays their places. */
static int place(const struct pl_units *units, struct pl_unit_plan *plan)
{
    size_t size = pl_real_size(units->params->real);
    struct pl_lifetimes lives = {0};

    for (size_t i = 0; i < plan->n; i++) {
        struct pl_unit_stay *s = &plan->list[i];
        const struct pl_unit *u = &units->list[s->unit];

        s->begin = units->ahead && i > 0 ? plan->list[i - 1].from : s->from;
        s->offset =
            u->own ? SIZE_MAX : pl_lifetimes_add(&lives, (u->to - u->from) * size, s->begin, s->to);
    }
    plan->bytes = lives.bad ? SIZE_MAX : pl_lifetimes_set(&lives, false);
    for (size_t i = 0; i < plan->n && plan->bytes != SIZE_MAX; i++)
        if (plan->list[i].offset != SIZE_MAX)
            plan->list[i].offset = lives.list[plan->list[i].offset].offset;
    free(lives.list);
    return plan->bytes == SIZE_MAX ? -ENOMEM : 0;
}

static void hash_number(struct pl_xxh64 *x, size_t n)
{
    uint64_t word = n;

    pl_xxh64_add(x, &word, sizeof(word));
}

/* Of the ops, their order and the parameters they use: it decides which units are gathered when,
 * and when gradients are reduced. The sizes of batches may differ. */
static uint64_t hash_of(const struct pl_unit_plan *plan)
{
    const struct pl_tape *tape = plan->tape;
    struct pl_xxh64 x;

    pl_xxh64_init(&x);
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        pl_xxh64_add(&x, node->op->name, strlen(node->op->name) + 1);
        hash_number(&x, node->back);
        for (size_t k = 0; k < node->n_in; k++)
            hash_number(&x, node->in[k] ? pl_tensor_root(node->in[k])->number : 0);
    }
    for (size_t i = 0; i < plan->n; i++) {
        hash_number(&x, plan->list[i].unit);
        hash_number(&x, plan->list[i].from);
    }
    return pl_xxh64_final(&x) | 1; /* 0: no tape */
}

int pl_unit_plan_make(const struct pl_units *units,
                      struct pl_unit_plan *plan,
                      const struct pl_tape *tape,
                      struct pl_error *err)
{
    struct uses uses = {.units = units,
                        .tape = tape,
                        .last = calloc(units->n + 1, sizeof(size_t)),
                        .newest = SIZE_MAX};
    int r;

    if (plan->tape == tape && plan->plans == tape->plans && plan->list) {
        free(uses.last);
        return 0;
    }
    pl_unit_plan_finish(plan);
    if (uses.last)
        find_uses(&uses);
    r = uses.last && !uses.bad ? 0 : -ENOMEM;
    free(uses.last);
    *plan =
        (struct pl_unit_plan){.tape = tape, .plans = tape->plans, .list = uses.list, .n = uses.n};
    if (r == 0)
        r = place(units, plan);
    if (r < 0) {
        pl_unit_plan_finish(plan);
        return pl_error_nomem(err);
    }
    plan->hash = hash_of(plan);
    return 0;
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
    return place(units, plan) < 0 ? pl_error_nomem(err) : 0;
}

/* ---- running ---- */

static void point(const struct pl_units *units, const struct pl_unit *u, char *memory)
{
    const struct pl_params *params = units->params;
    size_t size = pl_real_size(params->real);

    for (size_t i = u->first; i < u->first + u->n; i++)
        params->order[i]->tensor->data =
            memory ? memory + (params->order[i]->offset - u->from) * size : NULL;
}

static char *memory_of(const struct pl_units *units, const struct pl_unit_stay *stay)
{
    const struct pl_unit *u = &units->list[stay->unit];

    return u->own ? pl_params_value(units->params, u->from) : units->memory + stay->offset;
}

/* The next one. With `ahead` later work of the device does not wait for it. */
static int start_gather(struct pl_units *units, struct pl_error *err)
{
    const struct pl_unit_stay *stay = &units->running->list[units->started++];
    const struct pl_params *params = units->params;
    const struct pl_unit *u = &units->list[stay->unit];
    size_t size = pl_real_size(params->real);
    unsigned rank = units->comm->rank;
    char *memory = memory_of(units, stay);

    pl_shard_offsets(params, units->comm->size, u->from, u->to, units->offset);
    for (unsigned i = 0; i <= units->comm->size; i++)
        units->offset[i] *= size;
    if (!u->own && units->offset[rank + 1] > units->offset[rank])
        params->dev->ops->copy(params->dev, memory + units->offset[rank],
                               pl_params_value(params, u->from + units->offset[rank] / size),
                               units->offset[rank + 1] - units->offset[rank]);
    return units->ahead
               ? pl_comm_nccl_start_gather(units->comm->gpu, memory, units->offset, err)
               : pl_comm_allgather_on(units->comm, params->dev, memory, units->offset, err);
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
    point(units, &units->list[stay->unit], memory_of(units, stay));
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
                point(units, u, NULL);
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
    int r;

    for (size_t i = 0; i < units->n; i++)
        point(units, &units->list[i], NULL);
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
    units->next = units->started = units->done = 0;
    if (units->running->bytes <= units->bytes)
        return 0;
    pl_device_free(units->params->dev, units->memory);
    units->memory = NULL;
    units->bytes = 0;
    r = pl_device_alloc(units->params->dev, units->running->bytes, "gathered parameters",
                        (void **)&units->memory, err);
    if (r == 0)
        units->bytes = units->running->bytes;
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
