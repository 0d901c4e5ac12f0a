/* SPDX-License-Identifier: MIT */
/* The answers of a program on each node of a step, by one srun --label. */
#ifndef PL_LAUNCHER_PLSTAT_NODE_ANSWERS_H
#define PL_LAUNCHER_PLSTAT_NODE_ANSWERS_H

#include <jansson.h>

/* Adds the JSON object of each task to a list, in the order in which they end. Slurm hands on 1024
 * bytes of a line at most: srun mixes longer lines of several tasks, and labels each piece with its
 * task. Text before an object, such as of a site's prolog, and after it is passed over. 0 or
 * -ENOMEM. */
int pl_node_answers(const char *text, json_t *list);

#endif
