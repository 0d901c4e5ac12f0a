/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/memory_stages.h"
#include "common/base/log.h"
#include "runtime/engine/train/pipe_as.h"
#include "runtime/engine/train/pipe_balance.h"

#include <math.h>
#include <string.h>

/* Limits of the search for a plan that fits. */
#define CUTS 20       /* that are planned */
#define EVEN_CUTS 4   /* the last of them, which depend on no measured time */
#define CHOICES_MAX 4 /* of options that would fit */

/* A rank's message to the others. */
struct told {
    double need, limit; /* need: INFINITY if it cannot be planned */
    unsigned stage;
};

static int
gather(struct pl_trainer *t, const struct told *mine, struct told *all, struct pl_error *err)
{
    unsigned size = t->comm->size;
    _cleanup_free_ size_t *offset = calloc((size_t)size + 1, sizeof(*offset));

    if (!offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= size; i++)
        offset[i] = i * sizeof(*all);
    all[t->comm->rank] = *mine;
    return pl_comm_allgather(t->comm, all, offset, err);
}

static void set_needs(struct pl_pipe *pipe, const struct told *all, unsigned size)
{
    for (unsigned s = 0; s < pipe->n_stages; s++) {
        pipe->needs[s] = 0;
        pipe->limits[s] = INFINITY;
    }
    for (unsigned i = 0; i < size; i++) {
        unsigned s = all[i].stage;

        pipe->needs[s] = fmax(pipe->needs[s], all[i].need);
        pipe->limits[s] = fmin(pipe->limits[s], all[i].limit);
    }
}

/* This rank's stage as it is. limit: what it may take; measured before all planning, whose own
 * memory a run with other options does not have. */
static int plan(struct pl_trainer *t, double limit, struct told *all, struct pl_error *err)
{
    struct told mine = {.limit = limit, .stage = t->pipe.stage};
    struct pl_memory_need need;
    int r = pl_memory_need(t, &need, err);

    if (r < 0)
        return r;
    mine.need = need.all;
    r = gather(t, &mine, all, err);
    if (r == 0)
        set_needs(&t->pipe, all, t->comm->size);
    return r;
}

/* The rank that exceeds its limit most; `size` if none does. */
static unsigned tightest(const struct told *all, unsigned size)
{
    unsigned most = size;

    for (unsigned i = 0; i < size; i++)
        if (all[i].need > all[i].limit &&
            (most == size || all[i].need / all[i].limit > all[most].need / all[most].limit))
            most = i;
    return most;
}

/* Plans this rank's stages with other options. */
static int plan_as(struct pl_trainer *t,
                   const struct pl_pipe_as *as,
                   size_t batch,
                   struct told *mine,
                   struct pl_error *err)
{
    unsigned first = t->pipe.stage, step = t->pipe.n_stages, n = PL_MAX(as->stages, step);
    struct pl_memory_need need;
    struct pl_pipe_was was;
    int r = pl_pipe_as_begin(&t->pipe, as, &was, err);

    if (r < 0)
        return r;
    mine->stage = first;
    mine->need = 0;
    for (unsigned s = first; s < n && r == 0; s += step) {
        if (was.cuts)
            r = pl_pipe_as_stage(&t->pipe, s, err);
        if (r == 0)
            r = pl_memory_need_as(t, &(struct pl_memory_as){.batch = batch}, &need, err);
        mine->need = r == 0 ? fmax(mine->need, need.all) : INFINITY;
    }
    pl_pipe_as_end(&t->pipe, &was);
    return 0;
}

/* ---- another cut ---- */

/* The first cut is of estimates: what ops keep, and Adam's state. A stage's plan says how far off
 * its estimate is: by so much its limit is lower for the next cut. A stage that has not fitted must
 * become smaller, so no cut comes twice. If no cut has such limits, since other ops are estimated
 * better, only this last rule is left. These cuts depend on measured times, so one run may find a
 * cut where another does not. The last ones therefore do not: the fullest device is as empty as the
 * estimates allow, and then as the plans of these cuts do. */
enum rule { BY_PLANS, BY_STEPS, EVENLY };

struct search {
    double limits[PL_STAGES_MAX], most[PL_STAGES_MAX]; /* of the estimates */
    enum rule rule;
};

static void tighten(const struct pl_pipe *pipe, const size_t *cut, struct search *search)
{
    struct pl_cut_problem problem = pl_pipe_problem(pipe);
    double bytes[PL_STAGES_MAX];

    pl_cut_stages(&problem, cut, NULL, bytes);
    for (unsigned s = 0; s < pipe->n_stages; s++) {
        if (search->rule == EVENLY) {
            search->limits[s] = pipe->limits[s] * bytes[s] / pipe->needs[s];
            continue;
        }
        if (pipe->needs[s] > pipe->limits[s])
            search->most[s] = fmin(search->most[s], bytes[s] * (1 - 1e-9));
        search->limits[s] = search->most[s];
        if (search->rule == BY_PLANS)
            search->limits[s] =
                fmin(search->limits[s], pipe->limits[s] - (pipe->needs[s] - bytes[s]));
    }
}

static void set_rule(const struct pl_pipe *pipe, struct search *search, enum rule rule)
{
    search->rule = rule;
    memcpy(search->limits, rule == EVENLY ? pipe->limits : search->most, sizeof(search->limits));
}

/* While the cut moves a rank has the parameters of both. */
static int has_room(struct pl_trainer *t, const size_t *cut, bool *ret, struct pl_error *err)
{
    const struct pl_pipe *pipe = &t->pipe;
    struct pl_cut_problem problem = pl_pipe_problem(pipe);
    double bytes[PL_STAGES_MAX];
    struct pl_device_memory memory = {0};

    problem.kept = problem.entering = NULL;
    pl_cut_stages(&problem, cut, NULL, bytes);
    t->dev->ops->memory(t->dev, &memory);
    return pl_comm_agree(
        t->comm, (double)memory.used + bytes[pipe->stage] <= pipe->limits[pipe->stage], ret, err);
}

static int
move(struct pl_trainer *t, const size_t *cut, const struct search *search, struct pl_error *err)
{
    struct pl_pipe *pipe = &t->pipe;
    FILE *out = t->comm->rank == 0 ? t->options->out : NULL;

    for (unsigned s = 0; out && s < pipe->n_stages; s++)
        fprintf(out, "%s %zu",
                s ? ","
                  : "pipeline: the stages' plans need more memory than there is; a cut fits of",
                cut[s + 1] - cut[s]);
    if (out)
        fputs(" ops\n", out);
    if (out)
        fflush(out);
    memcpy(pipe->costs.limit, search->limits, pipe->n_stages * sizeof(*search->limits));
    return pl_pipe_move(t, cut, err);
}

/* Looks for the best cut whose plans fit, and moves to it. all: the ranks' messages about the cut
 * that they then have. Collective. */
static int cut_again(struct pl_trainer *t, double limit, struct told *all, struct pl_error *err)
{
    struct pl_pipe *pipe = &t->pipe;
    struct pl_cut_problem problem = pl_pipe_problem(pipe);
    size_t cut[PL_STAGES_MAX + 1];
    struct search search = {0};
    bool fits = false, room = false;
    double seconds;
    int r = 0;

    for (unsigned s = 0; s < pipe->n_stages; s++)
        search.most[s] = INFINITY;
    tighten(pipe, pipe->cut, &search);
    problem.limit = search.limits;
    for (unsigned i = 0; i < CUTS && !fits; i++) {
        struct told mine = {.limit = limit};
        struct pl_error own = {0};

        if (i == CUTS - EVEN_CUTS && search.rule != EVENLY)
            set_rule(pipe, &search, EVENLY);
        problem.even = search.rule == EVENLY;
        r = pl_pipe_choose(pipe, &problem, cut, &seconds, &own);
        if (r == -ENOSPC && search.rule != EVENLY) { /* the verdict of all ranks */
            set_rule(pipe, &search, search.rule + 1);
            continue;
        }
        if (r == -ENOSPC || r == -EINVAL)
            break;
        if (r == 0)
            r = plan_as(t, &(struct pl_pipe_as){.cut = cut}, 0, &mine, &own);
        if (r == 0)
            r = gather(t, &mine, all, &own);
        if (r < 0)
            return pl_error_set(err, r, "%s", pl_error_text(&own));
        set_needs(pipe, all, t->comm->size);
        fits = tightest(all, t->comm->size) == t->comm->size;
        if (!fits)
            tighten(pipe, cut, &search);
    }
    r = fits ? has_room(t, cut, &room, err) : 0;
    if (search.rule == EVENLY && fits) { /* the limits of the cuts that come later */
        search.rule = BY_PLANS;
        tighten(pipe, cut, &search);
    }
    if (r == 0 && room)
        r = move(t, cut, &search, err);
    if (r < 0)
        return r;
    return plan(t, limit, all, err); /* as it is now */
}

/* ---- other options ---- */

struct choices {
    struct pl_trainer *trainer;
    struct told *all;  /* room for what ranks tell */
    double own, limit; /* this rank's, and the lowest */
    struct pl_memory_choice list[CHOICES_MAX];
    size_t n;
};

/* Adds a choice if it fits on all ranks, each of which may fail by itself: a module may take no
 * smaller batch. *ret: it fits. Collective. */
static int try(struct choices *c,
               const struct pl_pipe_as *as,
               size_t batch,
               const char *text,
               bool *ret,
               struct pl_error *err)
{
    struct pl_trainer *t = c->trainer;
    struct told mine = {.limit = as->stages ? c->limit : c->own};
    struct pl_pipe_as anew = *as;
    struct pl_error own = {0};
    double most = 0;
    int r;

    if (!anew.stages)
        anew.stages = t->pipe.n_stages;
    r = plan_as(t, &anew, batch, &mine, &own);

    *ret = false;
    if (r == -EINVAL) /* no cut: the verdict of all ranks */
        return 0;
    if (r == 0)
        r = gather(t, &mine, c->all, &own);
    if (r < 0)
        return pl_error_set(err, r, "%s", pl_error_text(&own));
    *ret = c->n < CHOICES_MAX;
    for (unsigned i = 0; i < t->comm->size; i++) {
        *ret = *ret && pl_memory_fits(c->all[i].need, c->all[i].limit);
        most = fmax(most, c->all[i].need);
    }
    if (!*ret)
        return 0;
    snprintf(c->list[c->n].text, sizeof(c->list[c->n].text), "%s", text);
    c->list[c->n++].bytes = most;
    return 0;
}

/* The fewest microbatches of twice as many, and so on. */
static int try_microbatches(struct choices *c, bool recompute, bool *ret, struct pl_error *err)
{
    struct pl_trainer *t = c->trainer;
    size_t rows = pl_loader_dry(&t->stage[PLUME_TRAIN].loader)->rows, chunk;
    size_t n = pl_pipe_microbatches(&t->pipe, rows, &chunk);
    size_t most = PL_MIN(rows, (size_t)PL_PIPE_MICROBATCHES_MAX);
    char text[PL_MEMORY_CHOICE];
    int r = 0;

    *ret = false;
    while (n < most && r == 0 && !*ret) {
        n = PL_MIN(2 * n, most);
        snprintf(text, sizeof(text), "%s--microbatches %zu", recompute ? "--recompute " : "", n);
        r = try(c, &(struct pl_pipe_as){.microbatches = n, .recompute = recompute}, 0, text, ret,
                err);
    }
    return r;
}

/* The largest of the batches that divide this one: accumulated they are the same samples. */
static int try_batches(struct choices *c, struct pl_error *err)
{
    const struct pl_trainer *t = c->trainer;
    size_t rows = (size_t)pl_hparams_value(t->hparams, "batch_size");
    char text[PL_MEMORY_CHOICE];
    bool fits = false;
    int r = 0;

    for (size_t parts = 2; parts <= rows && !t->options->n_accumulate_from && r == 0 && !fits;
         parts++) {
        if (rows % parts)
            continue;
        snprintf(text, sizeof(text), "--batch_size %zu --accumulate %llu", rows / parts,
                 (unsigned long long)(t->options->accumulate * parts));
        r = try(c, &(struct pl_pipe_as){0}, rows / parts, text, &fits, err);
    }
    return r;
}

static int try_stages(struct choices *c, bool *ret, struct pl_error *err)
{
    const struct pl_trainer *t = c->trainer;
    unsigned stages = t->pipe.n_stages, per_stage = t->comm->size / stages;
    char text[PL_MEMORY_CHOICE];
    int r = 0;

    *ret = false;
    for (unsigned n = 2 * stages; n <= PL_STAGES_MAX && r == 0 && !*ret; n *= 2) {
        snprintf(text, sizeof(text), "--stages %u, on %u ranks with as much memory each", n,
                 n * per_stage);
        r = try(c, &(struct pl_pipe_as){.stages = n}, 0, text, ret, err);
    }
    return r;
}

static int find_choices(struct choices *c, struct pl_error *err)
{
    const struct pl_train_options *o = c->trainer->options;
    bool fits;
    int r = 0;

    if (o->pipe_order == PL_PIPE_GPIPE)
        r = try(c, &(struct pl_pipe_as){.in_turn = true}, 0, "--schedule 1f1b", &fits, err);
    if (r == 0)
        r = try_microbatches(c, false, &fits, err);
    if (r == 0 && !o->recompute)
        r = try(c, &(struct pl_pipe_as){.recompute = true}, 0, "--recompute", &fits, err);
    if (r == 0 && c->n == 0 && !o->recompute)
        r = try_microbatches(c, true, &fits, err);
    if (r == 0 && c->n == 0)
        r = try_batches(c, err);
    return r == 0 && c->n == 0 ? try_stages(c, &fits, err) : r;
}

static int warn(struct pl_trainer *t, struct told *all, unsigned rank, struct pl_error *err)
{
    const struct told worst = all[rank];
    struct choices c = {
        .trainer = t, .all = all, .own = all[t->comm->rank].limit, .limit = INFINITY};
    char need[PL_MEMORY_TEXT], have[PL_MEMORY_TEXT];
    char fits[CHOICES_MAX * (PL_MEMORY_CHOICE + PL_MEMORY_TEXT + 16)];
    int r;

    for (unsigned i = 0; i < t->comm->size; i++)
        c.limit = fmin(c.limit, all[i].limit);
    r = find_choices(&c, err);
    if (r < 0 || t->comm->rank != 0)
        return r;
    pl_memory_text(worst.need, need);
    pl_memory_text(worst.limit, have);
    if (pl_memory_choose(c.list, c.n, INFINITY, fits, sizeof(fits)))
        pl_log_warn("train", "rank %u, stage %u, needs %s of %s: what fits is %s", rank,
                    worst.stage, need, have, fits);
    else
        pl_log_warn("train",
                    "rank %u, stage %u, needs %s of %s: neither more microbatches, a smaller batch "
                    "nor more stages fit: choose a smaller model",
                    rank, worst.stage, need, have);
    return 0;
}

int pl_memory_stages(struct pl_trainer *trainer, struct pl_error *err)
{
    struct pl_pipe *pipe = &trainer->pipe;
    unsigned size = trainer->comm->size, worst;
    _cleanup_free_ struct told *all = calloc(size, sizeof(*all));
    double limit = pl_memory_limit(trainer);
    int r = all ? plan(trainer, limit, all, err) : pl_error_nomem(err);

    if (r == 0 && tightest(all, size) < size && pipe->n_stages > 1)
        r = cut_again(trainer, limit, all, err);
    worst = r == 0 ? tightest(all, size) : size;
    return worst < size ? warn(trainer, all, worst, err) : r;
}
