/* SPDX-License-Identifier: MIT */
/* Asking Slurm through scontrol, without libslurm (so the runtime survives Slurm's upgrades) and
 * without stopping the loop. */
#ifndef PL_RUNTIME_NODE_SCONTROL_H
#define PL_RUNTIME_NODE_SCONTROL_H

#include <uv.h>

struct pl_scontrol;

/* Runs $PLUME_SCONTROL, else scontrol of PATH, with ARG... (NULL-terminated, borrowed for the call)
 * and hands its output over, once: output is NULL where it could not be run, failed or took longer
 * than timeout_ms. The result is good until the answer or pl_scontrol_cancel(); NULL where the
 * answer came at once.
 */
struct pl_scontrol *pl_scontrol_run(uv_loop_t *loop,
                                    const char *const *args,
                                    unsigned timeout_ms,
                                    void (*answer)(void *ctx, const char *output),
                                    void *ctx);

/* Ends the question without an answer. NULL is fine. */
void pl_scontrol_cancel(struct pl_scontrol *ask);

#endif
