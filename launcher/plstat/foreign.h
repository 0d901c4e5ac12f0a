/* SPDX-License-Identifier: MIT */
/* Run folders of other users: what is in them may be made to harm who reads it. */
#ifndef PL_LAUNCHER_PLSTAT_FOREIGN_H
#define PL_LAUNCHER_PLSTAT_FOREIGN_H

#include <stdint.h>

/* Memory of a plstat that reads runs of other users. */
#define PL_FOREIGN_MEMORY_BYTES ((uint64_t)4 << 30)

/* From now on this process has no more memory than that if the folder is another user's: files of a
 * thousand trials, each within its limit, may hold more than the host has. It then fails with "out
 * of memory", and no other program of the host does. */
void pl_foreign_limit(const char *folder);

#endif
