/* SPDX-License-Identifier: MIT */
/* The events of --mail. */
#ifndef PL_LAUNCHER_PLSUBMIT_MAIL_H
#define PL_LAUNCHER_PLSUBMIT_MAIL_H

#include "common/base/error.h"

/* Checks a list of Slurm's events, such as "END,FAIL". Slurm refuses a list without a known one,
 * but not one with ARRAY_TASKS, which --mail adds: a misspelt event would be no mail. -EINVAL. */
int pl_mail_check(const char *value, struct pl_error *err);

#endif
