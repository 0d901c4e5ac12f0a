/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/memory_plan.h"
#include "common/base/log.h"

#include <math.h>

#define RANKS_MAX 4096u /* that are proposed */
#define CHOICES_MAX 4

size_t pl_memory_choose(
    const struct pl_memory_choice *list, size_t n, double limit, char *ret, size_t size)
{
    char text[PL_MEMORY_TEXT];
    size_t found = 0, len = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        if (!pl_memory_fits(list[i].bytes, limit) || len >= size)
            continue;
        len += (size_t)snprintf(ret + len, size - len, "%s%s (%s)", found ? ", or " : "",
                                list[i].text, pl_memory_text(list[i].bytes, text));
        found++;
    }
    return found;
}

/* While choices are computed. A plan that fails, as of a module that takes no smaller batch, is no
 * choice. */
struct choices {
    struct pl_trainer *trainer;
    double limit;
    struct pl_memory_choice list[CHOICES_MAX];
    size_t n;
};

/* Adds a choice if it fits. */
static bool try(struct choices *c, const struct pl_memory_as *as, const char *text)
{
    struct pl_memory_choice *choice = &c->list[c->n];
    struct pl_memory_need need;
    struct pl_error why = {0};

    if (c->n == CHOICES_MAX || pl_memory_need_as(c->trainer, as, &need, &why) < 0 ||
        !pl_memory_fits(need.all, c->limit))
        return false;
    snprintf(choice->text, sizeof(choice->text), "%s", text);
    choice->bytes = need.all;
    c->n++;
    return true;
}

/* The largest batch that fits of those that divide this one: accumulated they are the same samples
 * per step. */
static bool try_batches(struct choices *c, bool recompute)
{
    const struct pl_trainer *t = c->trainer;
    size_t rows = (size_t)pl_hparams_value(t->hparams, "batch_size");
    char text[PL_MEMORY_CHOICE];

    if (t->options->n_accumulate_from || t->options->average_every || t->module->manual_step)
        return false;
    for (size_t parts = 2; parts <= rows; parts++) {
        const struct pl_memory_as as = {.batch = rows / parts, .recompute = recompute};

        if (rows % parts || as.batch % t->strategy.devices)
            continue;
        snprintf(text, sizeof(text), "%s--batch_size %zu --accumulate %llu",
                 recompute ? "--recompute " : "", as.batch,
                 (unsigned long long)(t->options->accumulate * parts));
        if (try(c, &as, text))
            return true;
    }
    return false;
}

/* The kind of shards that keeps the most in one piece. */
static bool try_shards(struct choices *c, unsigned ranks, const char *of)
{
    static const char *const names[] = {"os", "grad", "param"};
    const struct pl_trainer *t = c->trainer;
    char text[PL_MEMORY_CHOICE];

    for (unsigned kind = PL_SHARD_OS; kind <= PL_SHARD_PARAM; kind++) {
        const struct pl_memory_as as = {.shard = (enum pl_shard_kind)kind, .ranks = ranks};

        if (kind < (unsigned)t->strategy.shard ||
            (kind == (unsigned)t->strategy.shard && ranks == t->group.shards->size) ||
            (kind >= PL_SHARD_GRAD && t->module->manual_step))
            continue;
        snprintf(text, sizeof(text), "%s--strategy sharded --shard %s", of,
                 names[kind - PL_SHARD_OS]);
        if (try(c, &as, text))
            return true;
    }
    return false;
}

static bool may_shard(const struct pl_trainer *t)
{
    return (t->strategy.kind == PL_STRATEGY_SINGLE || t->strategy.kind == PL_STRATEGY_DDP ||
            t->strategy.kind == PL_STRATEGY_SHARDED) &&
           !t->strategy.average_every && !t->module->configure_ddp;
}

static void find_choices(struct choices *c)
{
    const struct pl_trainer *t = c->trainer;
    unsigned size = t->group.shards->size, of_each = t->tp.on ? t->tp.split.n : 1;
    char text[PL_MEMORY_CHOICE];

    if (!t->options->recompute)
        (void)try(c, &(struct pl_memory_as){.recompute = true}, "--recompute");
    if (!try_batches(c, false) && c->n == 0 && !t->options->recompute)
        (void)try_batches(c, true);
    if (may_shard(t) && size > 1)
        (void)try_shards(c, size, "");
    for (unsigned n = 2 * size; may_shard(t) && c->n == 0 && n <= RANKS_MAX; n *= 2) {
        snprintf(text, sizeof(text), "%u ranks with as much memory each under ", n * of_each);
        (void)try_shards(c, n, text);
    }
}

/* On all ranks, as each choice calls hooks of the module; rank 0 warns. */
static void warn(struct pl_trainer *t, double bytes, double limit)
{
    struct choices c = {.trainer = t, .limit = limit};
    char need[PL_MEMORY_TEXT], have[PL_MEMORY_TEXT];
    char fits[CHOICES_MAX * (PL_MEMORY_CHOICE + PL_MEMORY_TEXT + 16)];

    find_choices(&c);
    if (t->comm->rank != 0)
        return;
    pl_memory_text(bytes, need);
    pl_memory_text(limit, have);
    if (pl_memory_choose(c.list, c.n, limit, fits, sizeof(fits)))
        pl_log_warn("train", "rank 0 needs %s of %s: what fits is %s", need, have, fits);
    else
        pl_log_warn("train",
                    "rank 0 needs %s of %s: no smaller batch fits, and no other strategy on more "
                    "ranks: choose a smaller model",
                    need, have);
}

/* The line at the start. need 0: unknown. */
static void print_model(const struct pl_trainer *t, double need, double limit)
{
    FILE *out = t->options->out;
    char text[2][PL_MEMORY_TEXT];
    size_t count = 0;

    if (!out)
        return;
    for (size_t i = 0; i < t->ctx.params.n; i++)
        count += t->ctx.params.list[i]->whole->count;
    fprintf(out, "model: %zu parameters", count);
    if (need > 0)
        fprintf(out, " (needs %s of %s per rank)", pl_memory_text(need, text[0]),
                pl_memory_text(limit, text[1]));
    fputc('\n', out);
    fflush(out);
}

/* Its stages have been planned (pl_memory_stages()), which warns. */
static void print_pipeline(const struct pl_trainer *t)
{
    unsigned most = 0;

    for (unsigned s = 1; s < t->pipe.n_stages; s++)
        if (t->pipe.needs[s] > t->pipe.needs[most])
            most = s;
    print_model(t, t->pipe.needs[most], t->pipe.limits[most]);
}

int pl_memory_plan(struct pl_trainer *trainer, double *ret, struct pl_error *err)
{
    struct {
        double need, limit;
    } first = {.limit = pl_memory_limit(trainer)}; /* of rank 0 */
    struct pl_memory_need need = {0};
    int r = 0;

    *ret = 0;
    if (pl_hparams_value(trainer->hparams, "epochs") <= 0 && !trainer->options->fast_dev_run)
        return 0;
    if (trainer->pipe.on) {
        if (trainer->comm->rank == 0)
            print_pipeline(trainer);
        *ret = trainer->pipe.needs[0];
        return 0;
    }
    /* A module may count the calls of its hooks: all ranks make the same ones. */
    if (!trainer->options->xla)
        r = pl_memory_need(trainer, &need, err);
    first.need = need.all;
    if (r == 0)
        r = pl_comm_broadcast(trainer->comm, &first, sizeof(first), err);
    if (r < 0)
        return r;
    if (trainer->comm->rank == 0)
        print_model(trainer, first.need, first.limit);
    if (first.need > first.limit)
        warn(trainer, first.need, first.limit);
    *ret = first.need;
    return 0;
}
