/* SPDX-License-Identifier: MIT */
/* bench-reporter RATE SECONDS: a rank that sends RATE lines of three metrics per second to the node
 * daemon, as a training program does after each step. */
#include "common/base/parse.h"
#include "common/proto/rank/rank_link.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int64_t argument(const char *text)
{
    int64_t value;

    return pl_parse_int(text, 1, 100000, &value, NULL) == 0 ? value : -1;
}

static unsigned variable(const char *name)
{
    const char *text = getenv(name);
    int64_t value = 0;

    if (text)
        pl_parse_int(text, 0, 1 << 20, &value, NULL);
    return (unsigned)value;
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"loss", "lr", "tokens_per_s"};
    struct pl_rank_link link = PL_RANK_LINK_INIT;
    struct pl_error err = {0};
    const char *path = getenv("PLUME_SOCKET");
    int64_t rate = argc == 3 ? argument(argv[1]) : -1, seconds = argc == 3 ? argument(argv[2]) : -1;
    struct timespec next;

    if (rate < 0 || seconds < 0 || !path) {
        fputs("bench-reporter RATE SECONDS, under plrun\n", stderr);
        return 2;
    }
    if (pl_rank_link_open(&link, path, 10000, &err) < 0 ||
        pl_rank_link_hello(&link, PL_RANK_ROLE_PROGRAM, variable("RANK"), variable("LOCAL_RANK"),
                           getpid(), false, NULL, 0, &err) < 0) {
        fprintf(stderr, "bench-reporter: %s\n", pl_error_text(&err));
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (int64_t step = 1; step <= rate * seconds; step++) {
        double values[] = {1.0 / (double)step, 1e-3, 1234.5 + (double)(step % 10)};

        pl_rank_link_metrics(&link, step, -1, names, values, 3);
        next.tv_nsec += 1000000000 / rate;
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    printf("dropped %llu\n", (unsigned long long)link.dropped);
    pl_rank_link_close(&link);
    return 0;
}
