/* SPDX-License-Identifier: MIT */
/* --local[=J]: runs a sweep on this machine, without Slurm, J trials at once. The run folder, the
 * job script, the runtime and plstat are the same; a process of its own starts the trials. */
#ifndef PL_LAUNCHER_PLSUBMIT_LOCAL_H
#define PL_LAUNCHER_PLSUBMIT_LOCAL_H

#include "launcher/plsubmit/spec.h"

/* Refuses options that have no effect without Slurm, and more GPUs than this machine has. -EINVAL,
 * -ENOMEM. */
int pl_local_check(struct pl_spec *spec, struct pl_error *err);

/* Starts the executor for the trials that are not submitted yet, and for a planned retry, and
 * records them. -EBUSY: another executor runs, ... */
int pl_local_submit(struct pl_run *run, struct pl_error *err);

/* Has the executor end the trials of this folder that are recorded as cancelled. -EHOSTUNREACH: it
 * runs on another host. */
int pl_local_cancel(const struct pl_run *run, struct pl_error *err);

#endif
