/* SPDX-License-Identifier: MIT */
/* Limits on waiting that a suspension does not use up. A process that is stopped (scontrol suspend,
 * gang scheduling, a debugger) finds all its timers due when it goes on, before it has looked at
 * what has come meanwhile. So a limit is counted in slices, and what passes in one of them counts
 * for no more than that slice. On a busy machine a limit is longer than its time. */
#ifndef PL_RUNTIME_NODE_LIMIT_H
#define PL_RUNTIME_NODE_LIMIT_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/*   stopped --start--> running --its time is over--> stopped, and `over` is called
 *   running --stop--> stopped
 */
struct pl_limit {
    uv_timer_t timer;
    uint64_t left_ms; /* after the slice that runs */
    void (*over)(void *ctx);
    void *ctx; /* over's */
};

/* over may be NULL: then pl_limit_runs() tells. Called from the loop, it may start the limit again.
 */
void pl_limit_init(struct pl_limit *limit, uv_loop_t *loop, void (*over)(void *ctx), void *ctx);

/* Starts, or starts anew. 0 = over in the loop's next turn. */
void pl_limit_start(struct pl_limit *limit, uint64_t ms);
void pl_limit_stop(struct pl_limit *limit);
bool pl_limit_runs(const struct pl_limit *limit);

/* Time that is left at most, 0 = it does not run. */
uint64_t pl_limit_left_ms(const struct pl_limit *limit);

#endif
