/* SPDX-License-Identifier: MIT */
/* The "state" of a rank in events and in the document of run_state.h:
 *   starting -> running -> done | failed | killed | lost      (killed: the runtime ended it)
 *   starting | running -> lost                                (its node's daemon is gone) */
#ifndef PL_COMMON_RUN_RANK_STATE_H
#define PL_COMMON_RUN_RANK_STATE_H

#include <stdbool.h>

enum pl_rank_state {
    PL_RANK_STARTING,
    PL_RANK_RUNNING,
    PL_RANK_DONE,
    PL_RANK_FAILED,
    PL_RANK_KILLED,
    PL_RANK_LOST,
    PL_RANK_UNKNOWN, /* a name of a later version */
};

/* "starting", ..., "lost"; "?" for unknown. */
const char *pl_rank_state_name(enum pl_rank_state state);

/* name may be NULL: unknown. */
enum pl_rank_state pl_rank_state_parse(const char *name);

/* True until the rank has ended: starting or running. */
bool pl_rank_state_open(enum pl_rank_state state);

#endif
