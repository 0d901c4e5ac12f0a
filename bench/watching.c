/* SPDX-License-Identifier: MIT */
/* bench-watching STEPS: processor time, in ns per step, that a rank of pltrain spends for those who
 * look for hangs and slow ranks: the page with its place, the time of its own, and a report every
 * ten steps to the node daemon. */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/proto/rank/place.h"
#include "common/proto/rank/rank_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Of a step. */
#define HOOKS 8       /* as many as a module may have */
#define COLLECTIVES 4 /* three buckets, and the agreement on time */
#define CLOCKS 3      /* looks at the clock beside those of collectives */
#define LOG_EVERY 10

static uint64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void step(struct pl_rank_link *link, int64_t number)
{
    static const char *const hooks[] = {
        "on_train_batch_start",     "training_step",      "training_step_end", "on_after_backward",
        "on_before_optimizer_step", "on_train_batch_end", "validation_step",   "fill"};
    static const char *const names[] = {"loss", "lr", "epoch"};
    static volatile uint64_t sum_ns;
    double values[] = {1.0 / (double)number, 1e-3, 1};

    for (int i = 0; i < HOOKS; i++) {
        pl_place_hook(0, hooks[i]);
        pl_place_hook(0, NULL);
    }
    for (int i = 0; i < COLLECTIVES; i++) {
        uint64_t begin = pl_now_ns();

        pl_place_enter(i ? "allreduce" : "allgather");
        pl_place_leave();
        sum_ns += pl_now_ns() - begin;
    }
    for (int i = 0; i < CLOCKS; i++)
        sum_ns += pl_now_ns();
    if (number % LOG_EVERY == 0)
        pl_rank_link_metrics(link, number, (int64_t)(sum_ns % 1000), names, values, 3);
}

int main(int argc, char **argv)
{
    struct pl_rank_link link = PL_RANK_LINK_INIT;
    struct pl_error err = {0};
    const char *path = getenv("PLUME_SOCKET");
    int64_t steps = 0;
    uint64_t begin;

    if (argc != 2 || !path || pl_parse_int(argv[1], 1, 1000000000, &steps, NULL) < 0) {
        fputs("bench-watching STEPS, under plrun\n", stderr);
        return 2;
    }
    if (pl_rank_link_open(&link, path, 10000, &err) < 0 ||
        pl_rank_link_hello(&link, PL_RANK_ROLE_PROGRAM, 0, 0, getpid(), false, NULL, 0, &err) < 0) {
        fprintf(stderr, "bench-watching: %s\n", pl_error_text(&err));
        return 1;
    }
    pl_place_open();
    begin = cpu_ns();
    for (int64_t i = 1; i <= steps; i++)
        step(&link, i);
    printf("ns %.1f dropped %llu\n", (double)(cpu_ns() - begin) / (double)steps,
           (unsigned long long)link.dropped);
    pl_rank_link_close(&link);
    return 0;
}
