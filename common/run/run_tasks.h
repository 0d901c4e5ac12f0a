/* SPDX-License-Identifier: MIT */
/* Lists of numbers as Slurm writes the tasks of an array: "3-8,10". */
#ifndef PL_COMMON_RUN_RUN_TASKS_H
#define PL_COMMON_RUN_RUN_TASKS_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* True if Slurm's list of tasks ("3-8,10:2%4") has this one. */
bool pl_tasks_contain(const char *tasks, int64_t task);

/* The same for a list in ascending order, as Slurm's and pl_tasks_format()'s are: it may be long,
 * and is asked for each of as many trials. */
bool pl_tasks_contain_sorted(const char *tasks, int64_t task);

/* Checks a list "3-8,10" of numbers below `end`. 0, -EINVAL. */
int pl_tasks_check(const char *tasks, int64_t end, struct pl_error *err);

/* Appends "0,2-4" for ascending numbers. -ENOMEM. */
int pl_tasks_format(const int64_t *tasks, size_t n, struct pl_buf *ret);

#endif
