/* SPDX-License-Identifier: MIT */
/* Shared by hang.c and hang_hint.c. */
#ifndef PL_RUNTIME_PLRUND_HUB_HANG_PRIVATE_H
#define PL_RUNTIME_PLRUND_HUB_HANG_PRIVATE_H

#include "common/run/on_hang.h"
#include "runtime/plrund/hub/hub_private.h"
#include "runtime/plrund/hub/slow.h"
#include "runtime/plrund/hub/stall.h"

#define PL_HANG_EXCERPT_MAX 1536 /* bytes of a stack that the cause has */
#define PL_HANG_HINT_ASK_FACTOR                                                                    \
    6 /* of the least limit: between probes where none reports steps                               \
       */

struct pl_hub_hang {
    struct pl_hub *hub;
    uv_timer_t timer;
    struct pl_stall stall;
    struct pl_slow slow;
    bool *behind;       /* scratch of the verdict; while suspected: the ranks in question */
    char (*doing)[128]; /* by rank, from the last probe */
    int64_t *cpu_ms, *idle_ms, *silent_s; /* by rank, from the probes; -1 = not known */
    enum pl_on_hang policy;
    bool suspected, seen, all, held, hinted, at_work, acted;
    uint64_t tick_ns, asked_ns, next_ns, stopped_ns, stacks_due_ns, slow_ns, hint_ns;
    unsigned n_stacks;                 /* on their way */
    char excerpt[PL_HANG_EXCERPT_MAX]; /* of the first rank's stack */
    double for_s;
};

/* hang_hint.c */
bool pl_hang_reports_steps(const struct pl_hub_hang *h);
/* A probe's word of a rank, ms after the one before. */
void pl_hang_note_cpu(struct pl_hub_hang *h, const struct pl_msg_node_probed_item *m, uint64_t ms);
/* Without steps nothing is known, but a rank that neither computes nor writes is worth a look: sets
 * the ranks in question, and hinted. Returns true if that is news. */
bool pl_hang_hint(struct pl_hub_hang *h);

#endif
