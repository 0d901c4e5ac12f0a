/* SPDX-License-Identifier: MIT */
#include "runtime/node/limit.h"
#include "common/base/macros.h"

#define SLICE_MS 250u

static void start_slice(struct pl_limit *limit);

static void on_slice(uv_timer_t *timer)
{
    struct pl_limit *limit = timer->data;

    if (limit->left_ms)
        start_slice(limit);
    else if (limit->over)
        limit->over(limit->ctx);
}

static void start_slice(struct pl_limit *limit)
{
    uint64_t slice_ms = PL_MIN(limit->left_ms, (uint64_t)SLICE_MS);

    limit->left_ms -= slice_ms;
    uv_timer_start(&limit->timer, on_slice, slice_ms, 0);
}

void pl_limit_init(struct pl_limit *limit, uv_loop_t *loop, void (*over)(void *ctx), void *ctx)
{
    uv_timer_init(loop, &limit->timer);
    limit->timer.data = limit;
    limit->over = over;
    limit->ctx = ctx;
    limit->left_ms = 0;
}

void pl_limit_start(struct pl_limit *limit, uint64_t ms)
{
    limit->left_ms = ms;
    start_slice(limit);
}

void pl_limit_stop(struct pl_limit *limit)
{
    limit->left_ms = 0;
    uv_timer_stop(&limit->timer);
}

bool pl_limit_runs(const struct pl_limit *limit)
{
    return uv_is_active((const uv_handle_t *)&limit->timer);
}

uint64_t pl_limit_left_ms(const struct pl_limit *limit)
{
    return pl_limit_runs(limit) ? limit->left_ms + uv_timer_get_due_in(&limit->timer) : 0;
}
