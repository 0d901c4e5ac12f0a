/* SPDX-License-Identifier: MIT */
/* Warnings about a submission that Slurm has accepted, but that may wait for ever or fail. */
#ifndef PL_LAUNCHER_PLSUBMIT_ADVICE_H
#define PL_LAUNCHER_PLSUBMIT_ADVICE_H

#include "common/base/child.h"
#include "launcher/plsubmit/asked.h"
#include "launcher/plsubmit/submit.h"

/* Questions to Slurm about an array, under way. */
struct pl_advice {
    struct pl_chunk chunk;
    bool asked, asks_start, asks_place;
    struct pl_child_job start, place;
    struct pl_asked known; /* is not asked */
};

/* Asks about a chunk: each question takes as long as sbatch, so ask before it. End the advice by
 * one of the next two calls. */
void pl_advice_ask(const struct pl_run *run, const struct pl_chunk *chunk, struct pl_advice *ret);
void pl_advice_drop(struct pl_advice *advice);

/* Two warnings about an array that Slurm has accepted. The caller frees them; each may be NULL.
 * Asks now if nothing was asked, or about another chunk, or if the controller did not answer.
 * run     gives the absolute folder
 * folder  the same, as the user wrote it
 * start   Slurm, asked by `sbatch --test-only`, cannot start the chunk now
 * place   as pl_advice_folder() */
void pl_advice_answer(struct pl_advice *advice,
                      const struct pl_run *run,
                      const struct pl_chunk *chunk,
                      const char *folder,
                      char **start,
                      char **place);

/* Returns a warning, which the caller frees, if the run folder is on a local file system and Slurm
 * has nodes on other machines; else NULL: it has none, or does not answer.
 * dir     absolute
 * folder  as the user wrote it */
char *pl_advice_folder(const char *dir, const char *folder);

#endif
