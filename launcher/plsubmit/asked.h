/* SPDX-License-Identifier: MIT */
/* Slurm's last answers to plsubmit's questions, in ~/.plume/cache: a script that submits sweep
 * after sweep asks once. Without such a file, or its lock, nothing is known. */
#ifndef PL_LAUNCHER_PLSUBMIT_ASKED_H
#define PL_LAUNCHER_PLSUBMIT_ASKED_H

#include "common/run/run_folder.h"

#define PL_ASKED_S 60         /* an answer that changes nothing is used for so long */
#define PL_ASKED_NODE_S 86400 /* that a node is another machine holds longer */

struct pl_asked {
    bool start; /* Slurm can start such a job */
    bool place; /* it is known which nodes are other machines */
    char *node; /* one of them; NULL: none. The caller frees it. */
};

/* Reads what is known for a submission of the run: its arguments to sbatch, other than names of
 * jobs and files, and the variables of Slurm count. */
void pl_asked_read(const struct pl_run *run, struct pl_asked *ret);

/* Keeps an answer. */
void pl_asked_keep_start(const struct pl_run *run);
void pl_asked_keep_place(const char *node);

#endif
