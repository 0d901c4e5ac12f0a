/* SPDX-License-Identifier: MIT */
/* What the files behind run_folder.h share. */
#ifndef PL_COMMON_RUN_RUN_FOLDER_PRIVATE_H
#define PL_COMMON_RUN_RUN_FOLDER_PRIVATE_H

#include "common/run/run_folder.h"

struct pl_run {
    char *dir;
    json_t *sweep; /* the object of sweep.json, checked */
    unsigned n_trials;
    const char **argv, **sbatch_args; /* into sweep; NULL behind the last */
    char *trials;                     /* text of trials.jsonl; NULL before first use */
    size_t *lines;                    /* n_trials + 1 offsets into it */
};

/* Writes dir/trials.jsonl for a new run. */
int pl_run_trials_write(const char *dir, const struct pl_run_new *desc, struct pl_error *err);

#endif
