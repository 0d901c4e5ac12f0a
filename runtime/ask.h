/* SPDX-License-Identifier: MIT */
/* Asking Slurm through scontrol, without libslurm (so the runtime survives Slurm's upgrades) and
 * without stopping the loop. */
#ifndef PL_RUNTIME_ASK_H
#define PL_RUNTIME_ASK_H

#include <uv.h>

/* Runs `scontrol ARG...` (NULL-terminated, borrowed for the call) and hands its output over, once:
 * output is NULL where it could not be run, failed or took longer than timeout_ms. */
void pl_ask_scontrol(uv_loop_t *loop,
                     const char *const *args,
                     unsigned timeout_ms,
                     void (*answer)(void *ctx, const char *output),
                     void *ctx);

/* The value of KEY= in scontrol's one-line form, up to the next blank; caller frees. NULL. */
char *pl_ask_field(const char *output, const char *key);

#endif
