/* SPDX-License-Identifier: MIT */
#include "common/base/memory.h"
#include "common/base/fault.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_LEAST (2 * HUGE_PAGE)

int pl_memory_alloc(size_t align, size_t bytes, void **ret)
{
    void *p;

    if (bytes >= HUGE_LEAST)
        align = PL_MAX(align, HUGE_PAGE);
    if (PL_FAULT("malloc", ENOMEM) || posix_memalign(&p, align, PL_MAX(bytes, (size_t)1)) != 0)
        return -ENOMEM;
    /* Only whole ones, so that no memory is used that was not asked for. A kernel without them
     * refuses, and all is as ever. */
    if (bytes >= HUGE_LEAST)
        (void)madvise(p, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    *ret = p;
    return 0;
}
