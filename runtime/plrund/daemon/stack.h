/* SPDX-License-Identifier: MIT */
/* The stacks of a rank's processes. A process of its own takes them: files of /proc, and the tools,
 * may block on a process that hangs in the kernel. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_STACK_H
#define PL_RUNTIME_PLRUND_DAEMON_STACK_H

#include <sys/types.h>

/* Writes a report of the process and its descendants to fd, section by section: threads with their
 * place in the kernel; the Python stack, if the program gave plume.py the right to take it; py-spy
 * for a Python, and gdb or eu-stack, as far as they are in PATH; what NCCL's RAS says. Failures are
 * part of the report. Takes up to PL_STACK_LIMIT_MS. */
#define PL_STACK_LIMIT_MS 15000
void pl_stack_report(pid_t pid, int fd);

#endif
