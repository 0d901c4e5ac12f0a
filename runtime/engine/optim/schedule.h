/* SPDX-License-Identifier: MIT */
/* Learning-rate schedules: include/plume/optim.h has the formulas, which are those of
 * torch.optim.lr_scheduler in closed form (PyTorch multiplies step by step, which differs by
 * rounding). The state is plain data: a checkpoint keeps plain, factor, t, lr, best, bad
 * and cooling. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_SCHEDULE_H
#define PL_RUNTIME_ENGINE_OPTIM_SCHEDULE_H

#include "common/base/error.h"
#include "plume/optim.h"

#include <stdbool.h>
#include <stdint.h>

struct pl_schedule {
    struct plume_schedule options; /* defaults filled in; monitor is borrowed */
    struct plume_schedule_more more;
    double plain, factor; /* the optimizer's rate, and the strategy's factor */
    double base;          /* plain * factor */
    double lr;            /* current rate */
    uint64_t t;           /* steps of the schedule so far */
    double best;          /* plateau: best value so far */
    int bad;              /* plateau: values without progress */
    int cooling;          /* plateau: values until they count again */
};

/* Fills in the defaults and sets the rate for t = 0. more may be NULL: zeros. -EINVAL names the
 * option that is wrong. */
int pl_schedule_init(struct pl_schedule *schedule,
                     const struct plume_schedule *options,
                     const struct plume_schedule_more *more,
                     double base,
                     struct pl_error *err);

/* Call after each epoch, or after each optimizer step if options.per_step is set. value is the
 * monitored one, for a plateau (else ignored); NaN: it has no new one, and checks nothing. */
void pl_schedule_step(struct pl_schedule *schedule, double value);

/* The momentum of now: `plain`, unless the schedule cycles it. */
double pl_schedule_momentum(const struct pl_schedule *schedule, double plain);

/* Multiplies rates and bases by the factor (horovod: the world size). */
void pl_schedule_scale(struct pl_schedule *schedule, double factor);

/* Takes the state of `saved` except its factor and options: rates become those of a run that always
 * had this schedule's factor. */
void pl_schedule_restore(struct pl_schedule *schedule, const struct pl_schedule *saved);

#endif
