/* SPDX-License-Identifier: MIT */
/* AddressSanitizer makes a test several times slower, and looks for other mistakes than numbers. It
 * gets one in `share` of many similar cases, each day other ones: all of them in `share` days.
 * Every other build has all cases. PLUME_TEST_DAY=N, days since 1970, repeats those of a day. */
#ifndef PL_TESTS_LIB_TODAY_H
#define PL_TESTS_LIB_TODAY_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef __SANITIZE_ADDRESS__
#define TODAY_ALL 0
#else
#define TODAY_ALL 1
#endif

/* True if a case with this number is one of today's. A test of several processes calls it once
 * before these begin: the day must not change between them. */
static inline bool today(uint64_t number, uint64_t share)
{
    static uint64_t day;
    const char *given = getenv("PLUME_TEST_DAY");

    if (TODAY_ALL)
        return true;
    if (!day) {
        day = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) / 86400;
        printf("# one in some cases; PLUME_TEST_DAY=%llu repeats them\n", (unsigned long long)day);
        fflush(stdout);
    }
    return (number + day) % share == 0;
}

#endif
