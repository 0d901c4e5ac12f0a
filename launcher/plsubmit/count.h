/* SPDX-License-Identifier: MIT */
/* Counts in values of options: of nodes, ranks and GPUs. */
#ifndef PL_LAUNCHER_PLSUBMIT_COUNT_H
#define PL_LAUNCHER_PLSUBMIT_COUNT_H

#include <stddef.h>

/* The number that the len bytes of text are, 1 to 1,000,000. 0: they are none. */
unsigned pl_count(const char *text, size_t len);

/* The number of GPUs in a value of --gpus and its relatives: "4", "a100:2", "a100:2,v100:1".
 * 0: it has another form. */
unsigned pl_count_gpus(const char *value);

#endif
