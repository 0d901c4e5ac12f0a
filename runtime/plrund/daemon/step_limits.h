/* SPDX-License-Identifier: MIT */
/* The limits that srun sends along with a step. Slurm applies them to tasks; the plugin's daemon is
 * none, and applies them itself. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_STEP_LIMITS_H
#define PL_RUNTIME_PLRUND_DAEMON_STEP_LIMITS_H

/* Sets each soft limit that `env` (NULL-terminated) has as SLURM_RLIMIT_NAME=NUMBER, at most to the
 * hard limit. Skips what is no such number. */
void pl_step_limits_apply(char *const *env);

#endif
