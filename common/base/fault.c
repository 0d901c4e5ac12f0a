/* SPDX-License-Identifier: MIT */
#include "common/base/fault.h"
#include "common/base/macros.h"

#include <stdatomic.h>
#include <string.h>

static const char *const points[] = {"accept", "connect", "fork", "malloc", "write"};

/* The call of `point` that PLUME_FAIL names; 0 = none. */
static unsigned long failing_call(const char *point)
{
    const char *p = getenv("PLUME_FAIL");
    size_t len = strlen(point);

    for (; p && *p; p = strchr(p, ',')) {
        p += *p == ',';
        if (strncmp(p, point, len) == 0 && p[len] == ':')
            return strtoul(p + len + 1, NULL, 10);
    }
    return 0;
}

bool pl_fault(const char *point, int error)
{
    static atomic_ulong calls[PL_COUNT(points)];

    for (size_t i = 0; i < PL_COUNT(points); i++)
        if (strcmp(point, points[i]) == 0 &&
            atomic_fetch_add(&calls[i], 1) + 1 == failing_call(point)) {
            errno = error;
            return true;
        }
    return false;
}
