/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/pipe_balance.h"
#include "runtime/engine/params/stages.h"

#include <string.h>

/* Another cut must be better by so much, at so many looks in a row: noise moves nothing, and two
 * cuts that are nearly as good do not take turns. */
#define GAIN 1.1
#define LOOKS 2

/* The decision of rank 0, which it sends to the others. */
struct decision {
    int32_t moves;
    uint64_t cut[PL_STAGES_MAX + 1];
    double before, after; /* seconds of the slowest stage per microbatch */
};

/* Seconds that each stage takes for a microbatch: of the slowest of its copies. */
static int measure(struct pl_pipe *pipe, double *ret, struct pl_error *err)
{
    unsigned n = pipe->world->size;
    _cleanup_free_ double *all = calloc(n, sizeof(*all));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    int r;

    if (!all || !offset)
        return pl_error_nomem(err);
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * sizeof(*all);
    all[pipe->world->rank] =
        (double)pipe->busy_ns * 1e-9 / (double)PL_MAX(pipe->microbatches, (uint64_t)1);
    r = pl_pipe_most_of_peers(pipe, &all[pipe->world->rank], 1, err);
    if (r == 0)
        r = pl_comm_allgather(pipe->world, all, offset, err);
    for (unsigned s = 0; s < pipe->n_stages; s++)
        ret[s] = 0;
    for (unsigned i = 0; i < n && r == 0; i++)
        ret[i % pipe->n_stages] = PL_MAX(ret[i % pipe->n_stages], all[i]);
    return r;
}

/* The ops' times as they would be if each device were as slow as its stage is now. */
static double *scaled_seconds(const struct pl_pipe *pipe, const double *now)
{
    const struct pl_pipe_costs *c = &pipe->costs;
    double *seconds = calloc(pipe->n_stages * c->n + 1, sizeof(*seconds));

    for (unsigned s = 0; seconds && s < pipe->n_stages; s++) {
        double expected = 0;

        for (size_t i = pipe->cut[s]; i < pipe->cut[s + 1]; i++)
            expected += c->seconds[s * c->n + i];
        for (size_t i = 0; i < c->n; i++)
            seconds[s * c->n + i] =
                c->seconds[s * c->n + i] * (expected > 0 ? now[s] / expected : 1);
    }
    return seconds;
}

static int
decide(struct pl_pipe *pipe, const double *now, struct decision *ret, struct pl_error *err)
{
    _cleanup_free_ double *seconds = scaled_seconds(pipe, now);
    struct pl_cut_problem problem = pl_pipe_problem(pipe);
    size_t cut[PL_STAGES_MAX + 1];
    double stages[PL_STAGES_MAX];
    int r;

    if (!seconds)
        return pl_error_nomem(err);
    problem.seconds = seconds;
    pl_cut_stages(&problem, pipe->cut, stages, NULL);
    *ret = (struct decision){0};
    for (unsigned s = 0; s < pipe->n_stages; s++)
        ret->before = PL_MAX(ret->before, stages[s]);
    r = pl_cut_best(&problem, cut, &ret->after, NULL);
    if (r == -ENOMEM)
        return pl_error_nomem(err);
    if (r < 0 || ret->before < GAIN * ret->after) {
        pipe->looks = 0;
        return 0;
    }
    ret->moves = ++pipe->looks >= LOOKS;
    for (unsigned s = 0; s <= pipe->n_stages; s++)
        ret->cut[s] = cut[s];
    return 0;
}

static void print_stages(const struct pl_pipe *pipe, const double *now, FILE *out)
{
    for (unsigned s = 0; s < pipe->n_stages; s++)
        fprintf(out, "%s%.3g", s ? ", " : "", now[s] * 1e3);
    fputs(" ms a microbatch", out);
}

static void print_ops(unsigned stages, const uint64_t *cut, FILE *out)
{
    for (unsigned s = 0; s < stages; s++)
        fprintf(out, "%s%llu", s ? ", " : "", (unsigned long long)(cut[s + 1] - cut[s]));
}

static bool prints(const struct pl_trainer *t)
{
    return t->comm->rank == 0 && t->options->out;
}

static void print_move(struct pl_trainer *t, const double *now, const struct decision *d)
{
    uint64_t cut[PL_STAGES_MAX + 1];
    FILE *out = t->options->out;

    for (unsigned s = 0; s <= t->pipe.n_stages; s++)
        cut[s] = t->pipe.cut[s];
    pl_progress_clear(&t->logger.progress);
    fprintf(out, "pipeline: step %llu: the stages take ", (unsigned long long)t->state.step);
    print_stages(&t->pipe, now, out);
    fputs("; the cut moves from ", out);
    print_ops(t->pipe.n_stages, cut, out);
    fputs(" ops to ", out);
    print_ops(t->pipe.n_stages, d->cut, out);
    fprintf(out, ": %.3g ms instead of %.3g are expected\n", d->after * 1e3, d->before * 1e3);
    fflush(out);
}

static void print_result(struct pl_trainer *t, const double *now)
{
    pl_progress_clear(&t->logger.progress);
    fprintf(t->options->out, "pipeline: step %llu: since the move the stages take ",
            (unsigned long long)t->state.step);
    print_stages(&t->pipe, now, t->options->out);
    fputc('\n', t->options->out);
    fflush(t->options->out);
}

int pl_pipe_move(struct pl_trainer *t, const size_t *cut, struct pl_error *err)
{
    struct pl_pipe *pipe = &t->pipe;
    _cleanup_free_ size_t *old = NULL;
    /* The new cut changes which rank has a buffer's newest values. */
    int r = pl_stages_share_buffers(pipe->params, pipe->comm, err);

    if (r == 0)
        r = pl_stages_move(pipe->params, pipe->comm, cut, &old, err);
    if (r == 0)
        r = pl_optimizers_move(&t->optimizers, old, err);
    pipe->version++;
    if (r == 0)
        r = pl_pipe_settle(pipe, err);
    if (r == 0)
        r = pl_pipe_share(pipe, err);
    if (r == 0)
        r = pl_reducer_rebuild(&t->stage[PLUME_TRAIN].lanes[0].reducer, err);
    return r < 0 ? pl_error_wrap(err, r, "while moving the pipeline's cut") : 0;
}

int pl_pipe_balance(struct pl_trainer *t, struct pl_error *err)
{
    struct pl_pipe *pipe = &t->pipe;
    uint64_t every = t->options->balance_every;
    double now[PL_STAGES_MAX];
    size_t cut[PL_STAGES_MAX + 1];
    struct decision d = {0};
    int r, code = 0;

    if (!pipe->on || pipe->n_stages == 1 || every == 0 || ++pipe->steps < every)
        return 0;
    r = measure(pipe, now, err);
    pipe->steps = pipe->busy_ns = pipe->microbatches = 0;
    if (r == 0 && pipe->world->rank == 0)
        code = decide(pipe, now, &d, err);
    if (r == 0)
        r = code < 0 ? code : pl_comm_broadcast(pipe->world, &d, sizeof(d), err);
    if (r < 0)
        return r;
    if (pipe->moved && prints(t))
        print_result(t, now);
    pipe->moved = false;
    if (!d.moves)
        return 0;
    if (prints(t))
        print_move(t, now, &d);
    pipe->looks = 0;
    pipe->moved = true;
    for (unsigned s = 0; s <= pipe->n_stages; s++)
        cut[s] = d.cut[s];
    return pl_pipe_move(t, cut, err);
}
