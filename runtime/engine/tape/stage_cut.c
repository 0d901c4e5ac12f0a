/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape/stage_cut.h"
#include "common/base/macros.h"
#include "common/base/memory.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

/* Sums over the ops before each op, and the first use at or after each op. */
struct sums {
    double *seconds; /* stages * (n + 1) */
    double *kept;    /* n + 1 */
    size_t *use;     /* n + 1 */
};

static double transfer_at(const struct pl_cut_problem *p, size_t cut)
{
    return p->transfer && cut > 0 && cut < p->n ? p->transfer[cut] : 0;
}

static void sums_finish(struct sums *sums)
{
    free(sums->seconds);
    free(sums->kept);
    free(sums->use);
}

static int sums_init(const struct pl_cut_problem *p, struct sums *sums)
{
    size_t n = p->n, use = 0;

    *sums = (struct sums){
        .seconds = calloc(p->stages * (n + 1), sizeof(double)),
        .kept = calloc(n + 1, sizeof(double)),
        .use = calloc(n + 1, sizeof(size_t)),
    };
    if (!sums->seconds || !sums->kept || !sums->use)
        return -ENOMEM;
    for (unsigned s = 0; s < p->stages; s++)
        for (size_t i = 0; i < n; i++)
            sums->seconds[s * (n + 1) + i + 1] =
                sums->seconds[s * (n + 1) + i] + p->seconds[s * n + i];
    for (size_t i = 0; i <= n; i++) {
        while (use < p->n_uses && p->uses[use].op < i)
            use++;
        sums->use[i] = use;
        if (i < n)
            sums->kept[i + 1] = sums->kept[i] + (p->kept ? p->kept[i] : 0);
    }
    return 0;
}

/* Bytes of the parameters that a stage up to op `end` gets when it starts at `op` and not after it.
 */
static double
added_bytes(const struct pl_cut_problem *p, const struct sums *sums, size_t op, size_t end)
{
    double bytes = 0;

    for (size_t u = sums->use[op]; u < sums->use[op + 1]; u++) {
        bytes += p->uses[u].next >= end ? p->uses[u].bytes : 0;
        bytes += p->uses[u].first ? p->uses[u].state : 0;
    }
    return bytes;
}

static double stage_kept(
    const struct pl_cut_problem *p, const struct sums *sums, unsigned stage, size_t from, size_t to)
{
    double entering = p->entering && from > 0 ? p->entering[from] : 0;

    return (sums->kept[to] - sums->kept[from] + entering) *
           (p->in_flight ? p->in_flight[stage] : 1);
}

static bool may_cut(const struct pl_cut_problem *p, size_t op)
{
    return !p->forbidden || !p->forbidden[op];
}

/* best(stage, end), and the first op of that stage. */
static double stage_best(const struct pl_cut_problem *p,
                         const struct sums *sums,
                         unsigned stage,
                         const double *before,
                         size_t end,
                         size_t *ret_from)
{
    const double *seconds = sums->seconds + stage * (p->n + 1);
    double best = INFINITY, params = 0, limit = p->limit ? p->limit[stage] : INFINITY;

    *ret_from = 0;
    for (size_t i = end; i-- > stage;) {
        double own = seconds[end] - seconds[i], bytes, all;

        params += added_bytes(p, sums, i, end);
        if (p->even ? params / limit >= best : own >= best || params > limit)
            break;
        bytes = params + stage_kept(p, sums, stage, i, end);
        if ((stage == 0 && i > 0) || (i > 0 && !may_cut(p, i)) || (!p->even && bytes > limit))
            continue;
        all = p->even ? bytes / limit : own + transfer_at(p, i) + transfer_at(p, end);
        if (stage > 0)
            all = PL_MAX(all, before[i]);
        if (all < best) {
            best = all;
            *ret_from = i;
        }
    }
    return best;
}

static int solve(const struct pl_cut_problem *p,
                 const struct sums *sums,
                 size_t *ret_cut,
                 double *ret_seconds,
                 struct pl_error *err)
{
    size_t n = p->n, width = n + 1;
    _cleanup_free_ double *best = calloc(p->stages * width, sizeof(*best));
    _cleanup_free_ size_t *from = calloc(p->stages * width, sizeof(*from));

    if (!best || !from)
        return pl_error_nomem(err);
    for (unsigned s = 0; s < p->stages; s++)
        for (size_t end = 0; end <= n; end++)
            best[s * width + end] = end <= s || (end < n && !may_cut(p, end))
                                        ? INFINITY
                                        : stage_best(p, sums, s, s ? &best[(s - 1) * width] : NULL,
                                                     end, &from[s * width + end]);
    if (isinf(best[(p->stages - 1) * width + n]))
        return -ENOSPC;
    ret_cut[p->stages] = n;
    for (unsigned s = p->stages; s-- > 0;)
        ret_cut[s] = from[s * width + ret_cut[s + 1]];
    *ret_seconds = best[(p->stages - 1) * width + n];
    return 0;
}

int pl_cut_best(const struct pl_cut_problem *problem,
                size_t *ret_cut,
                double *ret_seconds,
                struct pl_error *err)
{
    struct pl_cut_problem free_of_limits = *problem;
    struct sums sums;
    int r;

    if (problem->stages < 1 || problem->stages > problem->n)
        return pl_error_set(err, -EINVAL, "%u stages are more than the step's %zu ops",
                            problem->stages, problem->n);
    r = sums_init(problem, &sums) < 0 ? pl_error_nomem(err)
                                      : solve(problem, &sums, ret_cut, ret_seconds, err);
    if (r == -ENOSPC) {
        free_of_limits.limit = NULL;
        if (solve(&free_of_limits, &sums, ret_cut, ret_seconds, err) == 0)
            pl_error_set(err, r, "no cut of the step's ops into %u stages fits the devices' memory",
                         problem->stages);
        else
            r = pl_error_set(err, -EINVAL,
                             "the step's ops cannot be cut into %u stages: too few of them may be "
                             "separated",
                             problem->stages);
    }
    sums_finish(&sums);
    return r;
}

void pl_cut_stages(const struct pl_cut_problem *problem,
                   const size_t *cut,
                   double *ret_seconds,
                   double *ret_bytes)
{
    for (unsigned s = 0; s < problem->stages; s++) {
        double seconds = transfer_at(problem, cut[s]) + transfer_at(problem, cut[s + 1]);
        double bytes = 0, kept = problem->entering && cut[s] ? problem->entering[cut[s]] : 0;

        for (size_t i = cut[s]; i < cut[s + 1]; i++) {
            seconds += problem->seconds[s * problem->n + i];
            kept += problem->kept ? problem->kept[i] : 0;
        }
        for (size_t u = 0; u < problem->n_uses; u++) {
            const struct pl_cut_use *use = &problem->uses[u];

            if (use->op < cut[s] || use->op >= cut[s + 1])
                continue;
            bytes += use->next >= cut[s + 1] ? use->bytes : 0;
            bytes += use->first ? use->state : 0;
        }
        if (ret_seconds)
            ret_seconds[s] = seconds;
        if (ret_bytes)
            ret_bytes[s] = bytes + kept * (problem->in_flight ? problem->in_flight[s] : 1);
    }
}
