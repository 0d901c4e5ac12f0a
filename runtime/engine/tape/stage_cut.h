/* SPDX-License-Identifier: MIT */
/* Cuts a step's ops into contiguous stages, one per device, so that the slowest stage is as fast as
 * possible and each stage fits its device's memory.
 *
 * This is the chains-on-chains problem with a device per stage (Bokhari, IEEE Trans. Computers
 * 37(1), 1988; Pinar and Aykanat, JPDC 64(8), 2004), solved by their dynamic programme:
 *
 *     best(s, j) = min over i < j of max(best(s - 1, i), time of stage s with ops i .. j - 1)
 *
 * It is exact. Whatever the last stage is, the stages before it are an independent instance on the
 * ops before it, and the maximum never falls when their optimum is replaced by a worse one; so some
 * optimum is made of optima. i runs down from j - 1, and stops where the ops alone take as long as
 * the best stage so far: a longer stage is no better. Memory is a condition on one stage, and does
 * not couple stages. */
#ifndef PL_RUNTIME_ENGINE_TAPE_STAGE_CUT_H
#define PL_RUNTIME_ENGINE_TAPE_STAGE_CUT_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* A use of a parameter, in the order of ops. */
struct pl_cut_use {
    size_t op;
    size_t next;  /* the next op that uses it; SIZE_MAX: none */
    bool first;   /* no earlier op uses it: this stage owns it */
    double bytes; /* of its value and gradient */
    double state; /* of its optimizers' state, which the owner has */
    size_t param; /* for the caller */
};

struct pl_cut_problem {
    size_t n;        /* ops */
    unsigned stages; /* 1 .. n */
    /* Seconds of each op forward and backward, per microbatch, on each stage's device:
     * seconds[s * n + op]. */
    const double *seconds;
    const double *transfer;  /* n + 1: seconds to pass what crosses a cut before this op; NULL: 0 */
    const bool *forbidden;   /* n + 1: no cut before this op; NULL: none */
    const double *kept;      /* n: bytes that an op keeps per microbatch until backward; NULL: 0 */
    const double *entering;  /* n + 1: bytes kept of what crosses a cut before this op; NULL: 0 */
    const double *in_flight; /* microbatches that a stage keeps at a time; NULL: 1 */
    const struct pl_cut_use *uses; /* in order of ops; NULL: no parameters */
    size_t n_uses;
    const double *limit; /* bytes of each stage's device; NULL: no limits */
    /* Not the fastest cut, but the one whose fullest device is least full. It depends on no time.
     * It needs limits, and ignores whether it keeps them. */
    bool even;
};

/* Finds an optimum. ret_cut: stages + 1 entries; stage s has the ops [ret_cut[s], ret_cut[s + 1]).
 * *ret_seconds: of its slowest stage (`even`: what its fullest
 * device has, by its limit). -EINVAL: there are fewer ops than stages, or too many cuts
 * are forbidden; -ENOSPC: no cut fits the memory; -ENOMEM. */
int pl_cut_best(const struct pl_cut_problem *problem,
                size_t *ret_cut,
                double *ret_seconds,
                struct pl_error *err);

/* Of a given cut: each stage's seconds and bytes (either may be NULL). */
void pl_cut_stages(const struct pl_cut_problem *problem,
                   const size_t *cut,
                   double *ret_seconds,
                   double *ret_bytes);

#endif
