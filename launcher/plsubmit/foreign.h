/* SPDX-License-Identifier: MIT */
/* Options of sbatch, of Lightning and of launchers that users type out of habit. */
#ifndef PL_LAUNCHER_PLSUBMIT_FOREIGN_H
#define PL_LAUNCHER_PLSUBMIT_FOREIGN_H

#include "common/base/error.h"

/* For struct pl_command: sets err to what to write instead of an option ("--name" or "-x") that
 * plsubmit does not have, and returns -EINVAL; 0: nobody's option. '_' and '-' are equal. */
int pl_foreign_explain(const char *word, struct pl_error *err);

#endif
