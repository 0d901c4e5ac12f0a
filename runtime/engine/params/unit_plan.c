/* SPDX-License-Identifier: MIT */
/* The stays of units on a tape, and their places in memory. */
#include "runtime/engine/params/shard.h"
#include "runtime/engine/params/units.h"
#include "runtime/engine/tape/tape_memory.h"
#include "runtime/engine/util/xxh64.h"

#include <string.h>

/* Uses that are farther apart than this share of a direction are two stays. */
#define NEAR_SHARE 4
#define NEAR_NODES 16

#define ALIGN(bytes) (((bytes) + PL_PARAM_ALIGN - 1) & ~(size_t)(PL_PARAM_ALIGN - 1))

void pl_unit_plan_finish(struct pl_unit_plan *plan)
{
    free(plan->list);
    free(plan->places);
    free(plan->unit_bytes);
    free(plan->casts);
    *plan = (struct pl_unit_plan){0};
}

/* ---- casts ---- */

/* The cast that makes t, if the tape lends its output. */
static const struct pl_node *lent_by(const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root = t->base ? t->base : t;

    return root->tape == tape && tape->nodes[root->node].lent ? &tape->nodes[root->node] : NULL;
}

static size_t index_of(const struct pl_params *params, const plume_tensor *t)
{
    size_t i = 0;

    while (i < params->n && params->order[i]->tensor != t)
        i++;
    return i;
}

static int by_param(const void *a, const void *b)
{
    size_t x = ((const struct pl_unit_cast *)a)->param, y = ((const struct pl_unit_cast *)b)->param;

    return (x > y) - (x < y);
}

static int find_casts(const struct pl_units *units, struct pl_unit_plan *plan)
{
    const struct pl_tape *tape = plan->tape;
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++)
        n += tape->nodes[i].lent;
    plan->casts = calloc(n + 1, sizeof(*plan->casts));
    if (!plan->casts)
        return -ENOMEM;
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        if (!node->lent)
            continue;
        plan->casts[plan->n_casts++] = (struct pl_unit_cast){
            .t = node->out,
            .param = index_of(units->params, node->in[0]),
            .at = plan->casts_bytes,
        };
        plan->casts_bytes += ALIGN(node->out->count * sizeof(uint16_t));
    }
    if (plan->n_casts)
        qsort(plan->casts, plan->n_casts, sizeof(*plan->casts), by_param);
    return 0;
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

/* The unit of a tensor that is a parameter, its lent cast, or a view of one; SIZE_MAX for others.
 */
static size_t
unit_of(const struct pl_units *units, const struct pl_tape *tape, const plume_tensor *t)
{
    const struct pl_node *cast = lent_by(tape, t);
    const plume_tensor *root = t->base ? t->base : t;
    size_t low = 0, high = units->n;

    if (cast)
        root = cast->in[0];
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
    size_t unit = unit_of(uses->units, uses->tape, t);

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

/* Before the backward of node `last` a segment that ends with it is computed again. */
static void add_uses_again(struct uses *uses, size_t last)
{
    const struct pl_tape *tape = uses->tape;

    for (size_t i = 0; tape->again && i <= last; i++)
        for (size_t k = 0; k < tape->nodes[i].n_in && tape->again[i].before == last + 1; k++)
            if (tape->nodes[i].in[k])
                add_use(uses, tape->nodes[i].in[k], 2 * tape->n - 1 - last);
}

/* Ops that do not run also count. Ranks must have the same plan, but not the same ops run: one rank
 * may log a value that the others do not. */
static void find_uses(struct uses *uses)
{
    const struct pl_tape *tape = uses->tape;
    size_t last = tape->n ? tape->n - 1 : 0;

    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        size_t layer = node->fusion.product; /* is done at this node */

        for (size_t k = 0; k < node->n_in; k++)
            if (node->in[k] && !node->op->view && !node->lent)
                add_use(uses, node->in[k], i);
        for (size_t k = 0; layer && k < tape->nodes[layer - 1].n_in; k++)
            add_use(uses, tape->nodes[layer - 1].in[k], i);
    }
    for (size_t i = 0; i < tape->n_roots; i++) /* read after the run */
        if (tape->roots[i])
            add_use(uses, tape->roots[i], last);
    for (size_t i = tape->n; i-- > 0;) {
        add_uses_again(uses, i);
        for (size_t k = 0; k < tape->nodes[i].n_in && tape->nodes[i].back; k++)
            if (tape->nodes[i].in[k] && (tape->nodes[i].op->needs & PL_NEEDS_IN(k)))
                add_use(uses, tape->nodes[i].in[k], 2 * tape->n - 1 - i);
    }
}

/* ---- places ---- */

size_t pl_unit_element(const struct pl_units *units, const struct pl_unit_plan *plan, size_t param)
{
    return plan->places[param].low ? sizeof(uint16_t) : pl_real_size(units->params->real);
}

bool pl_unit_stays_in_place(const struct pl_unit_plan *plan, const struct pl_unit *u)
{
    for (size_t i = u->first; i < u->first + u->n; i++)
        if (plan->places[i].low)
            return false;
    return u->own;
}

/* Lays the parameters of each unit one after another. */
static int lay_units(const struct pl_units *units, struct pl_unit_plan *plan)
{
    const struct pl_params *params = units->params;

    plan->places = calloc(params->n + 1, sizeof(*plan->places));
    plan->unit_bytes = calloc(units->n + 1, sizeof(*plan->unit_bytes));
    if (!plan->places || !plan->unit_bytes)
        return -ENOMEM;
    for (size_t i = plan->n_casts; i-- > 0;)
        plan->places[plan->casts[i].param].low = i + 1;
    for (size_t k = 0; k < units->n; k++)
        for (size_t i = units->list[k].first; i < units->list[k].first + units->list[k].n; i++) {
            plan->places[i].at = plan->unit_bytes[k];
            plan->unit_bytes[k] +=
                ALIGN(params->order[i]->tensor->count * pl_unit_element(units, plan, i));
        }
    return 0;
}

int pl_unit_plan_place(const struct pl_units *units, struct pl_unit_plan *plan)
{
    struct pl_lifetimes lives = {0};

    if (lay_units(units, plan) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < plan->n; i++) {
        struct pl_unit_stay *s = &plan->list[i];

        s->begin = units->ahead && i > 0 ? plan->list[i - 1].from : s->from;
        s->offset = pl_unit_stays_in_place(plan, &units->list[s->unit])
                        ? SIZE_MAX
                        : pl_lifetimes_add(&lives, plan->unit_bytes[s->unit], s->begin, s->to);
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
    for (size_t i = 0; i < plan->n_casts; i++)
        hash_number(&x, plan->casts[i].param);
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
        r = find_casts(units, plan);
    if (r == 0)
        r = pl_unit_plan_place(units, plan);
    if (r < 0) {
        pl_unit_plan_finish(plan);
        return pl_error_nomem(err);
    }
    plan->hash = hash_of(plan);
    return 0;
}
