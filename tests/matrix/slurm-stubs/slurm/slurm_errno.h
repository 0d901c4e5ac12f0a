/* SPDX-License-Identifier: MIT */
/* Stub; see README.md. */
#ifndef STUB_SLURM_ERRNO_H
#define STUB_SLURM_ERRNO_H

#include <errno.h>

#define SLURM_SUCCESS 0

char *slurm_strerror(int errnum);

#endif
