/* SPDX-License-Identifier: MIT */
/* Axes of evenly spaced numbers: range(LO,HI,N) and log(LO,HI,N). */
#ifndef PL_LAUNCHER_PLSUBMIT_RANGE_H
#define PL_LAUNCHER_PLSUBMIT_RANGE_H

#include "common/base/error.h"

#include <stdbool.h>

/* True if the text begins, or begins and ends, as one of the two. */
bool pl_range_begins(const char *text);
bool pl_range_is(const char *text);

/* A number rounded to 15 digits, as the shortest decimal that reads back equal. NULL: no memory. */
char *pl_range_number(double value);

/* The numbers of range(LO,HI,N), N steps of equal difference, or of log(LO,HI,N), of equal ratio;
 * both ends included. They are rounded to 15 digits, but for the ends, and written as the shortest
 * decimal that reads back equal, so that they are the same on every machine.
 * ret      a NULL-terminated array, to be freed with its strings
 * Returns the number of values, -EINVAL (axis is for the text), -ENOMEM. */
long pl_range_values(const char *axis, const char *text, char ***ret, struct pl_error *err);

#endif
