/* SPDX-License-Identifier: MIT */
/* bench-crasher RANK DELAY-MS: rank RANK writes the time of day to stderr and raises SIGSEGV; the
 * other ranks wait until they are ended. */
#include "common/base/parse.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *text = getenv("RANK");
    int64_t rank = -1, crashing = -2, delay_ms = 0;
    struct rlimit no_core = {0, 0};
    struct timespec t;

    if (!text || argc != 3 || pl_parse_int(text, 0, 1 << 20, &rank, NULL) < 0 ||
        pl_parse_int(argv[1], 0, 1 << 20, &crashing, NULL) < 0 ||
        pl_parse_int(argv[2], 0, 1 << 20, &delay_ms, NULL) < 0) {
        fputs("bench-crasher RANK DELAY-MS, under plrun\n", stderr);
        return 2;
    }
    if (rank != crashing)
        for (;;)
            pause();
    setrlimit(RLIMIT_CORE, &no_core);
    t = (struct timespec){delay_ms / 1000, delay_ms % 1000 * 1000000};
    nanosleep(&t, NULL);
    clock_gettime(CLOCK_REALTIME, &t);
    fprintf(stderr, "crash %lld.%09ld\n", (long long)t.tv_sec, t.tv_nsec);
    raise(SIGSEGV);
    return 1;
}
