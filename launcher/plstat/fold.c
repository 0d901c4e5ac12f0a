/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/fold.h"
#include "common/proto/json.h"
#include "common/run/rank_state.h"

#include <string.h>

/* A rank with the values that equal ranks share. */
struct item {
    const json_t *rank;
    size_t index;
    const char *state, *role;
    int64_t exit, signal, step;
    size_t group_n, group_first; /* set by mark_groups() */
};

void pl_fold_finish(struct pl_fold *fold)
{
    for (size_t i = 0; i < fold->n; i++)
        free(fold->groups[i].ranks);
    free(fold->groups);
    *fold = (struct pl_fold){0};
}

static int64_t int_or(const json_t *o, const char *key, int64_t otherwise)
{
    int64_t v;

    return pl_json_int(o, key, &v) == 0 ? v : otherwise;
}

static int compare_numbers(const void *va, const void *vb)
{
    int64_t a = *(const int64_t *)va, b = *(const int64_t *)vb;

    return a < b ? -1 : a > b;
}

static int compare_items(const void *va, const void *vb)
{
    const struct item *a = va, *b = vb;
    int r = strcmp(a->state, b->state);

    if (r == 0)
        r = strcmp(a->role, b->role);
    if (r == 0)
        r = compare_numbers(&a->exit, &b->exit);
    if (r == 0)
        r = compare_numbers(&a->signal, &b->signal);
    if (r == 0)
        r = compare_numbers(&a->step, &b->step);
    if (r == 0)
        r = a->index < b->index ? -1 : 1;
    return r;
}

static bool items_equal(const struct item *a, const struct item *b)
{
    return strcmp(a->state, b->state) == 0 && strcmp(a->role, b->role) == 0 && a->exit == b->exit &&
           a->signal == b->signal && a->step == b->step;
}

/* Sets steps within one of the median to the median, because ranks report at different times. The
 * last step of an ended rank does not count. */
static int align_steps(struct item *items, size_t n)
{
    int64_t *steps = calloc(n + 1, sizeof(*steps)), median;
    size_t n_steps = 0;

    if (!steps)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (pl_rank_state_parse(items[i].state) == PL_RANK_RUNNING)
            steps[n_steps++] = items[i].step;
        else
            items[i].step = -1;
    qsort(steps, n_steps, sizeof(*steps), compare_numbers);
    median = n_steps ? steps[n_steps / 2] : -1;
    free(steps);
    for (size_t i = 0; i < n; i++)
        if (items[i].step >= 0 && items[i].step >= median - 1 && items[i].step <= median + 1)
            items[i].step = median;
    return 0;
}

static int by_first(const void *va, const void *vb)
{
    const struct item *a = va, *b = vb;

    if (a->group_first != b->group_first)
        return a->group_first < b->group_first ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

/* Marks groups, and splits small ones into single ranks. */
static void mark_groups(struct item *items, size_t n, bool all)
{
    size_t largest = 0;

    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && items_equal(&items[i], &items[end]);)
            end++;
        for (size_t k = i; k < end; k++) {
            items[k].group_first = items[i].index;
            items[k].group_n = end - i;
        }
        largest = PL_MAX(largest, end - i);
    }
    for (size_t i = 0; i < n; i++) {
        size_t members = items[i].group_n;

        if (all || (members < largest && members <= PL_FOLD_ALONE_MAX && members * 4 <= n)) {
            items[i].group_first = items[i].index;
            items[i].group_n = 1;
        }
    }
    qsort(items, n, sizeof(*items), by_first);
}

static int make_groups(const struct item *items, size_t n, struct pl_fold *ret)
{
    ret->groups = calloc(n + 1, sizeof(*ret->groups));
    if (!ret->groups)
        return -ENOMEM;
    for (size_t i = 0; i < n; i += items[i].group_n) {
        struct pl_fold_group *g = &ret->groups[ret->n];

        g->ranks = calloc(items[i].group_n, sizeof(const json_t *));
        if (!g->ranks)
            return -ENOMEM;
        ret->n++;
        for (size_t k = 0; k < items[i].group_n; k++)
            g->ranks[g->n++] = items[i + k].rank;
    }
    return 0;
}

int pl_fold_ranks(const json_t *doc, bool all, struct pl_fold *ret, struct pl_error *err)
{
    const json_t *ranks = json_object_get(doc, "ranks");
    size_t n = json_array_size(ranks);
    _cleanup_free_ struct item *items = calloc(n + 1, sizeof(*items));
    struct pl_fold fold = {0};
    int r;

    if (!items)
        return pl_error_set(err, -ENOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const json_t *o = json_array_get(ranks, i);
        const char *state = pl_json_string(o, "state"), *role = pl_json_string(o, "role");

        items[i] = (struct item){
            .rank = o,
            .index = i,
            .state = state ? state : "",
            .role = role ? role : "",
            .exit = int_or(o, "exit", -1),
            .signal = int_or(o, "signal", -1),
            .step = int_or(o, "step", -1),
        };
    }
    r = align_steps(items, n);
    if (r == 0) {
        qsort(items, n, sizeof(*items), compare_items);
        mark_groups(items, n, all);
        r = make_groups(items, n, &fold);
    }
    if (r < 0) {
        pl_fold_finish(&fold);
        return pl_error_set(err, r, "out of memory");
    }
    *ret = fold;
    return 0;
}
