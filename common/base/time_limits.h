/* SPDX-License-Identifier: MIT */
/* Time limits that more than one folder uses, or that an environment variable changes
 * (env_table.h). */
#ifndef PL_COMMON_BASE_TIME_LIMITS_H
#define PL_COMMON_BASE_TIME_LIMITS_H

/* Defaults of variables, in seconds. env_table.h makes text of them: plain numbers only. */
#define PL_KILL_GRACE_S 5       /* PLUME_KILL_GRACE */
#define PL_SAVE_GRACE_S 60      /* PLUME_SAVE_GRACE */
#define PL_SAVE_END_MS 4000     /* after it: the command, which gets SIGKILL last, has ended */
#define PL_LAUNCH_TIMEOUT_S 120 /* PLUME_LAUNCH_TIMEOUT */
#define PL_LEAVE_LIMIT_S 10     /* PLUME_LEAVE_LIMIT */
#define PL_HANG_LIMIT_S 10      /* PLUME_HANG_LIMIT */
#define PL_DISK_LIMIT_S 300     /* PLUME_DISK_LIMIT */
#define PL_SILENCE_S                                                                               \
    120 /* PLUME_SILENCE: a busy host may hold a daemon up that long; TCP                          \
           finds a lost host sooner, see pl_net_tune() */

/* plrun waits longer for its daemon than the daemon needs after its last rank. */
#define PL_DAEMON_LEAVE_MS (2 * PL_LEAVE_LIMIT_S * 1000)

/* pltrain --processes: from the first rank's failure to SIGKILL of the others. */
#define PL_LOCAL_KILL_GRACE_MS 10000

/* The same while the others still wait for that rank to meet them: they may fail alike. */
#define PL_LOCAL_MEET_GRACE_MS 1000

/* pltrain: SIGINTs within this time of the first are the same Ctrl-C. */
#define PL_INTERRUPT_AGAIN_MS 500

#endif
