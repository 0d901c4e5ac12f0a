/* SPDX-License-Identifier: MIT */
/* Looks by proc(5) at what the processes of a rank do. It does not stop or change them. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_PROBE_H
#define PL_RUNTIME_PLRUND_DAEMON_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define PL_PROBE_PIDS_MAX 128 /* processes of a rank that are looked at */

#define PL_PROBE_AT "at " /* what pl_probe.doing begins with if it is a file */

enum pl_probe_state {
    PL_PROBE_WAIT,  /* for something outside */
    PL_PROBE_SLEEP, /* by itself: a timer, a file lock */
    PL_PROBE_BUSY,  /* runs, or waits for a processor or a disk; CPU time and bytes tell the rest */
    PL_PROBE_STOPPED, /* by a signal or a debugger */
    PL_PROBE_GONE,
};

/* "wait", "sleep", "busy", "stopped", "gone". */
const char *pl_probe_state_name(enum pl_probe_state state);

struct pl_probe {
    enum pl_probe_state state; /* of the main thread */
    pid_t pid;                 /* of the process that works: a shell's child, not the shell */
    char doing[64];            /* the main thread's place in the kernel, for people; may be empty */
    int64_t cpu_ms, io_bytes;  /* of all processes since they began; io -1 = not known */
};

/* Looks at the process and its descendants. */
void pl_probe_look(pid_t pid, struct pl_probe *ret);

/* The processes below this one, itself first: at most PL_PROBE_PIDS_MAX. Returns their number. */
size_t pl_probe_tree(pid_t pid, pid_t ret[PL_PROBE_PIDS_MAX]);

/* The state of a thread, by the letter of /proc/PID/stat, the text of /proc/PID/syscall and that of
 * /proc/PID/wchan; each text may be empty, where the kernel does not show it. */
enum pl_probe_state pl_probe_classify(char letter, const char *syscall, const char *wchan);

/* True if this call of the process, as /proc/PID/syscall shows it, reads or writes a file; ret gets
 * "at PATH", of a long path its end. Does not look at the file, whose file system may not answer.
 */
bool pl_probe_file(pid_t pid, const char *syscall, const char *wchan, char *ret, size_t size);

#endif
