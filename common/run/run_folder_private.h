/* SPDX-License-Identifier: MIT */
/* Shared by the files that implement run_folder.h. */
#ifndef PL_COMMON_RUN_RUN_FOLDER_PRIVATE_H
#define PL_COMMON_RUN_RUN_FOLDER_PRIVATE_H

#include "common/run/run_folder.h"

#define PL_RUN_SCRIPT_FILE "job.sh"
#define PL_RUN_SWEEP_FILE "sweep.json"
#define PL_RUN_TRIALS_FILE "trials.jsonl"

struct pl_run {
    char *dir;
    int dir_fd;    /* of a run of ours; -EBADF: opened for reading only */
    json_t *sweep; /* the object of sweep.json, checked */
    unsigned n_trials;
    const char **argv, **sbatch_args; /* into sweep; a NULL ends each */
    char *trials;                     /* text of trials.jsonl; NULL before the first use */
    size_t *lines;                    /* n_trials + 1 offsets into it */
};

/* Reads a file of RUN; one of a run of ours must be ours, too. */
int pl_run_read_file(const struct pl_run *run,
                     const char *name,
                     size_t max_bytes,
                     char **ret,
                     size_t *ret_len,
                     struct pl_error *err);

/* A NULL-terminated list of pointers to the strings of an array; NULL without memory. */
const char **pl_run_string_pointers(const json_t *array);

/* Reads trials.jsonl. */
int pl_run_load_trials(struct pl_run *run, struct pl_error *err);

#endif
