/* SPDX-License-Identifier: MIT */
/* Starting a trial's program: --launch, --num-processes, and the options for modules. */
#ifndef PL_LAUNCHER_PLSUBMIT_START_H
#define PL_LAUNCHER_PLSUBMIT_START_H

#include "launcher/plsubmit/spec.h"

enum pl_start_kind pl_start_kind_of(const struct pl_spec *spec);

/* The program's words with what --launch and the options for modules add; free *ret with
 * pl_strv_free(). words: without any, the options for the bundled module. -EINVAL, -ENOMEM. */
int pl_start_words(struct pl_spec *spec, char *const *words, char ***ret, struct pl_error *err);

/* Sets the ranks that --num-processes, --launch and the strategies dp and ddp2 ask for, and warns
 * of a program that starts processes by itself. Call it before pl_shape_defaults(), with the words
 * of pl_start_words(). -EINVAL, -ENOMEM. */
int pl_start_shape(struct pl_spec *spec, char *const *words, struct pl_error *err);

/* True if srun gets --mpi=pmix; --srun mpi=KIND takes its place. */
bool pl_start_needs_pmix(const struct pl_spec *spec);

/* The processes that torchrun starts on each node: --num-processes, else one per GPU, else 1.
 * 0: without torchrun. */
unsigned pl_start_workers(const struct pl_spec *spec);

#endif
