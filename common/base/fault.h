/* SPDX-License-Identifier: MIT */
/* Fault points: calls that a test makes fail. meson -Dfault_points=true compiles them in; by
 * default they are nothing, and the plugin never has them.
 *
 *   PLUME_FAIL=accept:3,malloc:100    the third accept and the 100th malloc of a process fail
 *
 * Points: accept, connect, fork, malloc, write. */
#ifndef PL_COMMON_BASE_FAULT_H
#define PL_COMMON_BASE_FAULT_H

#include <errno.h>
#include <stdbool.h>

#ifdef PL_FAULT_POINTS

/* Counts a call of `point`. True, with errno set to `error`, if PLUME_FAIL names this call.
 * Thread safe. */
bool pl_fault(const char *point, int error);

#define PL_FAULT(point, error) pl_fault(point, error)

#else

#define PL_FAULT(point, error) false

#endif

#endif
