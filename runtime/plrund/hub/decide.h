/* SPDX-License-Identifier: MIT */
/* The cause of the attempt's end: a pure function from the evidence to the hub's next step. It does
 * no I/O, reads no clock and keeps no state; equal evidence gives an equal decision.
 *
 *   no failure:  signal from outside --> ASK_SLURM --answer--> CAUSE, or WAIT until all nodes left
 *                all nodes left --> LAUNCH if a rank did not start, else END
 *   failures:    --> WAIT for an earlier one --> ASK_SLURM if the end looks ordered --> CAUSE
 *   a cause:     --> WAIT until all nodes left --> END
 *
 * "Cancelled" needs Slurm's word, or a SIGTERM or SIGINT to the step that was seen before the first
 * end. Under the plugin only the ranks get it: there all of them must have ended by it, and the
 * cause is inferred. SIGKILL has a sender that nobody knows, however many ranks it ended, unless
 * Slurm ends the job: under the plugin it may follow a SIGTERM that only the ranks got.
 *
 * A job that completes may do so because its ranks have ended. Not by itself, though, while plrun
 * or slurmstepd holds the last of these ends back until the hub has decided (`held`): then Slurm,
 * or who ended the script or srun, has ended the step.
 *
 * A rank that ends with 0 may have obeyed Slurm's signal, too. So Slurm is asked about a good end:
 * under the plugin about each, under plrun about that of a rank that handles such signals.
 *
 * An earlier failure may still be on its way from another node: the first failure waits a moment.
 * Meanwhile Slurm is asked whether it ends the job, if that failure is an exit code: a rank may
 * take SIGTERM, save and exit before whoever reports the signal has run. An answer that comes too
 * late is not waited for, except where the signal was reported after all; nobody reports one under
 * the plugin, which waits a little longer. If all failures are
 * echoes (NCCL errors, lost connections), they wait longer, as they do under the plugin while all
 * ended by SIGTERM or SIGINT. */
#ifndef PL_RUNTIME_PLRUND_HUB_DECIDE_H
#define PL_RUNTIME_PLRUND_HUB_DECIDE_H

#include "common/run/cause.h"

#define PL_DECIDE_WAIT_MS 100
#define PL_DECIDE_WAIT_ECHO_MS 2000
#define PL_DECIDE_WAIT_SLURM_MS 800

/*   NOT_ASKED --signal, or an end that looks ordered--> ASKED --scontrol ended--> ANSWERED
 *   ANSWERED --the answer is not final, and the ranks end--> ASKED
 */
enum pl_slurm_question {
    PL_SLURM_NOT_ASKED,
    PL_SLURM_ASKED,
    PL_SLURM_ANSWERED,
};

struct pl_slurm_answer {
    enum pl_cause_kind kind; /* pl_cause_from_slurm(); none = Slurm knows of none */
    bool inferred;           /* Slurm does not say this kind: it is what is left over */
    bool silent;             /* scontrol failed */
    bool job_runs;           /* JobState=RUNNING */
    bool asked_late;         /* the question is from after all nodes had left */
    bool held;               /* srun has not been told of all ends: see above */
    bool final;              /* it came after a failure, or after all nodes had left: ask no more */
};

struct pl_evidence {
    const struct pl_failure *failures; /* by arrival */
    size_t n_failures;
    unsigned ntasks;
    bool plugin;     /* nobody but the ranks themselves gets the step's signals */
    bool terminated; /* the step got SIGTERM or SIGINT from outside, before any failure that such
                        a signal does not explain */
    bool signalled_late; /* it got one after a failure that was an exit code, before the cause */
    bool obeyed;         /* a rank has ended with 0 that may have done so at such a signal */
    bool all_left;       /* every node said bye, or is lost */
    bool launch_failed;  /* no world was published */
    bool has_cause;      /* a CAUSE was carried out */
    int64_t unstarted;   /* a rank that never started, -1 = none */
    bool unfinished;     /* a rank has no good end */
    enum pl_slurm_question question;
    struct pl_slurm_answer answer; /* valid if ANSWERED */
};

enum pl_decision_action {
    PL_DECIDE_WAIT,      /* for wait_ms or the next event; wait_ms -1 = for the next event */
    PL_DECIDE_ASK_SLURM, /* `scontrol show job` */
    PL_DECIDE_CAUSE,     /* record it and end the ranks */
    PL_DECIDE_LAUNCH,    /* record the cause `launch`; no rank is left to end */
    PL_DECIDE_END,       /* the attempt is over */
};

struct pl_decision {
    enum pl_decision_action action;
    int64_t wait_ms;
    /* CAUSE: either failures[root], or with root -1 this kind. */
    int64_t root;
    enum pl_cause_kind kind;
    enum pl_confidence confidence; /* of that kind */
    bool slurm_ends; /* Slurm itself ends the job, and the ranks with it, in its own time */
};

struct pl_decision pl_decide(const struct pl_evidence *e, uint64_t now_ns);

/* Reads the output of `scontrol -o show job`, NULL = it failed. Sets kind, inferred, silent and
 * job_runs. restart and terminated: see pl_cause_from_slurm(). */
struct pl_slurm_answer pl_slurm_answer_read(const char *output, unsigned restart, bool terminated);

/* The exit code of a step that was ended from outside: the highest of its ranks, as srun reports
 * it, else that of the signal; 0 if none is known, or for a cause of another kind. */
int pl_decide_outer_code(enum pl_cause_kind kind,
                         const struct pl_failure *failures,
                         size_t n,
                         int terminated);

#endif
