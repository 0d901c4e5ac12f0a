/* SPDX-License-Identifier: MIT */
/* For tests. */
#ifndef PL_COMMON_BASE_CLOSE_FROM_PRIVATE_H
#define PL_COMMON_BASE_CLOSE_FROM_PRIVATE_H

#include <stddef.h>

/* pl_close_from() as on a kernel without close_range(2) (before Linux 5.9). */
void pl_close_from_slow(int first, const int *keep, size_t n_keep);

#endif
