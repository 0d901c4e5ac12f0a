/* SPDX-License-Identifier: MIT */
/* Each target exports libFuzzer's entry (https://llvm.org/docs/LibFuzzer.html), called by
 * libFuzzer under ./dev fuzz and by replay.c in the suite. Aborts where a promise is broken. */
#ifndef PL_TESTS_FUZZ_FUZZ_H
#define PL_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the code under test. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

/* The input as a string: NUL-terminated, caller frees. NUL bytes inside end it early. */
static inline char *fuzz_string(const uint8_t *data, size_t size)
{
    char *s = malloc(size + 1);

    FUZZ_CHECK(s);
    if (size)
        memcpy(s, data, size);
    s[size] = '\0';
    return s;
}

#endif
