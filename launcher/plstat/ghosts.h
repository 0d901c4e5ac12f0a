/* SPDX-License-Identifier: MIT */
/* Processes of this node that may have outlived their job. A ghost is one whose job has ended by
 * Slurm's own word. Looked at are processes that hold a GPU, of any user, and the caller's own (for
 * root: all) that carry PLUME_RUN_DIR. */
#ifndef PL_LAUNCHER_PLSTAT_GHOSTS_H
#define PL_LAUNCHER_PLSTAT_GHOSTS_H

#include "launcher/plstat/node_processes.h"
#include "launcher/plstat/notes.h"

#include <jansson.h>

enum pl_ghost_state {
    PL_GHOST_NO_JOB,  /* it says nothing of a job, or nobody may look */
    PL_GHOST_ALIVE,   /* its job has not ended */
    PL_GHOST_ENDED,   /* its job has ended: a ghost */
    PL_GHOST_UNKNOWN, /* Slurm does not say */
};
const char *pl_ghost_state_name(enum pl_ghost_state state);

struct pl_ghost {
    struct pl_node_process process;
    enum pl_ghost_state state;
    bool mine;     /* the caller may end it if it is a ghost */
    json_t *gpus;  /* numbers of the GPUs that it holds; NULL: none */
    int64_t bytes; /* memory on them; -1: not known */
    bool asked;    /* Slurm was asked because of it */
    bool end;      /* for pl_ghosts_end(), which sets result and why */
    int result;    /* 0: it has ended */
    struct pl_error why;
};

struct pl_ghosts {
    bool epilog;               /* see pl_ghosts_find() */
    int64_t job;               /* the job whose epilog runs */
    char sluid[PL_SLUID_SIZE]; /* and its run, where Slurm names it; "": it does not */
    uid_t job_uid;
    bool at_once; /* end by SIGKILL alone */
    json_t *gpus; /* array as in the message node_gpus (common/proto/messages.h); NULL: none seen */
    bool unsure;  /* the list may lack processes; a note says why */
    struct pl_ghost *list;
    size_t n;
};
void pl_ghosts_finish(struct pl_ghosts *ghosts);

/* Fills gpus and the list, sorted by pid. With `epilog` it looks instead for all processes of
 * job_uid that belong to `job`, and does not ask Slurm: slurmd runs an epilog only after the job
 * has ended. Notes what could not be asked. -ENOMEM, errors of /proc. */
int pl_ghosts_find(struct pl_ghosts *ghosts, struct pl_notes *notes, struct pl_error *err);

/* Ends the processes that have `end` set, by SIGTERM and after a grace by SIGKILL, through pidfds:
 * only those that are mine and, looked at again, still ghosts. Result of each: 0, or with its
 * reason -EPERM (not to be ended), -ESRCH (it had ended before), -ETIMEDOUT (survives SIGKILL). */
void pl_ghosts_end(struct pl_ghosts *ghosts);

/* With `epilog`, after pl_ghosts_end(): ends what has appeared meanwhile, as children that were
 * forked on SIGTERM, by SIGKILL at once; adds it to the list. Looks ten times at most. -ENOMEM,
 * errors of /proc. */
int pl_ghosts_end_new(struct pl_ghosts *ghosts, struct pl_notes *notes, struct pl_error *err);

#endif
