/* SPDX-License-Identifier: MIT */
/* Warnings about a submission that Slurm has accepted, but that may wait for ever or fail. */
#ifndef PL_LAUNCHER_PLSUBMIT_ADVICE_H
#define PL_LAUNCHER_PLSUBMIT_ADVICE_H

#include "launcher/plsubmit/submit.h"

/* Asks Slurm by `sbatch --test-only` whether it can start the chunk at all. Returns the warning,
 * which the caller frees, or NULL: Slurm can, or does not answer. */
char *pl_advice_start(const struct pl_run *run, const struct pl_chunk *chunk);

/* Returns a warning, which the caller frees, if the run folder is on a local file system and Slurm
 * has nodes on other machines; else NULL.
 * dir     absolute
 * folder  as the user wrote it */
char *pl_advice_folder(const char *dir, const char *folder);

#endif
