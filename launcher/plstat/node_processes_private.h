/* SPDX-License-Identifier: MIT */
/* For the test. */
#ifndef PL_LAUNCHER_PLSTAT_NODE_PROCESSES_PRIVATE_H
#define PL_LAUNCHER_PLSTAT_NODE_PROCESSES_PRIVATE_H

#include "launcher/plstat/node_processes.h"

/* TEXT: of /proc/PID/cgroup. The job that it names (-1: none) or else its run's SLUID ("": none).
 */
int64_t pl_node_process_group(const char *text, char ret_sluid[PL_SLUID_SIZE]);

#endif
