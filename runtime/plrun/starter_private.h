/* SPDX-License-Identifier: MIT */
/* Between starter.c and starter_daemon.c. */
#ifndef PL_RUNTIME_PLRUN_STARTER_PRIVATE_H
#define PL_RUNTIME_PLRUN_STARTER_PRIVATE_H

#include "common/base/error.h"
#include "common/proto/rank/rank_link.h"
#include "runtime/node/slurm_step.h"
#include "runtime/plrun/senders.h"
#include "runtime/plrun/term_look.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

struct pl_starter {
    struct pl_slurm_step step;
    struct pl_rank_link link;
    int control_fd; /* to the daemon, where we started it */
    pid_t daemon, child;
    int signal_fd;
    struct pl_senders senders;
    sigset_t old_mask;
    int early_signal; /* it came before the rank's start, and would have ended the program; 0 */
    pid_t early_sender;
    bool ended, daemon_ended, ignores_hup;
    bool unheard;             /* the daemon has given no verdict */
    bool stepd_gone;          /* slurmstepd was killed */
    struct pl_term_look look; /* how the rank takes SIGTERM */
    int status, code;
    int step_code; /* of a step that failed without a rank's fault, as the daemon told last; 0 */
};

/* Before the daemon is started: of a plrun that dies without a word it only knows that its rank has
 * not started, or that it was killed. Under nohup(1) SIGHUP stays ignored. */
int pl_starter_hold_signals(struct pl_starter *s, struct pl_error *err);
/* In the child, before it becomes the program: as it was before pl_starter_hold_signals(). */
void pl_starter_release_signals(const struct pl_starter *s);
/* True once a signal has come that would have ended the program. */
bool pl_starter_was_signalled(struct pl_starter *s);
/* Starts plrund, whose path is given, and waits until it is ready. */
int pl_starter_start_daemon(struct pl_starter *s, const char *plrund, struct pl_error *err);
/* The step cannot begin without this node's daemon: the step's hub must hear of it, or, on the
 * first node, all who look for the hub. In this process, since there may be no room for another
 * one. Returns if that cannot be, either. */
void pl_starter_become_unable(struct pl_starter *s, const char *plrund, const struct pl_error *err);
/* Connects to the daemon. If it is ours and ends meanwhile, nobody listens any more. */
int pl_starter_open_link(struct pl_starter *s, const char *path, struct pl_error *err);
/* Counts seconds without a beat of the daemon. Seconds are counted, not measured, since a suspended
 * job is not silent. True at the limit. */
bool pl_starter_is_silent(unsigned *quiet_s, int poll_result);
/* Waits for the daemon, which serves the node's other ranks as long as they run. If plrun failed,
 * the daemon is told to leave, and gets a limit. */
void pl_starter_end_daemon(struct pl_starter *s, bool failed);

#endif
