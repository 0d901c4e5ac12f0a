/* SPDX-License-Identifier: MIT */
/* Asks NCCL's RAS about a job (NCCL 2.24 and later). RAS is a thread of each process that uses
 * NCCL. One of a node's threads listens at NCCL_RAS_ADDR and answers questions in plain text. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_RAS_H
#define PL_RUNTIME_PLRUND_DAEMON_RAS_H

#include <sys/types.h>

/* Writes a section with RAS's verbose status to fd, as RAS words it, if the environment of the
 * process names an address of this host and somebody listens there; else nothing. Takes up to
 * PL_RAS_LIMIT_MS. */
#define PL_RAS_LIMIT_MS 2000
void pl_ras_report(pid_t pid, int fd);

#endif
