/* SPDX-License-Identifier: MIT */
/* A rank's report of what is wrong. */
#ifndef PL_TESTS_ENGINE_SAY_H
#define PL_TESTS_ENGINE_SAY_H

#include "common/base/error.h"

#include <stdarg.h>
#include <stdio.h>

static char wrong[256];

static inline const char *PL_PRINTF(1, 2) say(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(wrong, sizeof(wrong), fmt, ap);
    va_end(ap);
    return wrong;
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            return say("%s", pl_error_text(&err));                                                 \
    } while (0)

#endif
