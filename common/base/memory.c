/* SPDX-License-Identifier: MIT */
#include "common/base/memory.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/fs.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
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

/* "max", which is no limit, and a file that is missing: UINT64_MAX. */
static uint64_t number_in(const char *folder, const char *name)
{
    _cleanup_free_ char *path = pl_strf("%s/%s", folder, name), *text = NULL;
    unsigned long long n;
    char *end;

    if (!path || pl_file_read(path, 64, &text, NULL, NULL) < 0)
        return UINT64_MAX;
    n = strtoull(text, &end, 10);
    return end == text ? UINT64_MAX : n;
}

/* In a container the group's path is that of the host, or "/", while the mount shows the
 * container's own group at its top: folders that do not exist say nothing. */
static uint64_t lowest_above(const char *top, const char *group, const char *name)
{
    _cleanup_free_ char *folder = pl_strf("%s%s", top, group);
    size_t len = strlen(top);
    uint64_t least = UINT64_MAX;

    while (folder && strlen(folder) >= len) {
        char *slash = strrchr(folder, '/');

        least = PL_MIN(least, number_in(folder, name));
        if (!slash || strlen(folder) == len)
            break;
        *slash = '\0';
    }
    return least;
}

uint64_t pl_memory_of_groups(const char *self, const char *root)
{
    _cleanup_free_ char *text = NULL, *first = NULL;
    uint64_t least = UINT64_MAX;
    char *line, *rest;

    if (!root)
        root = pl_env(PL_ENV_PLUME_CGROUP_ROOT);
    if (!root || !*root)
        root = "/sys/fs/cgroup";
    first = pl_strf("%s/memory", root);
    if (!first || pl_file_read(self ? self : "/proc/self/cgroup", 65536, &text, NULL, NULL) < 0)
        return UINT64_MAX;
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;

        if (!path)
            continue;
        if (strncmp(line, "0::", 3) == 0)
            least = PL_MIN(least, lowest_above(root, path + 1, "memory.max"));
        else if (strncmp(names, ":memory:", 8) == 0)
            least = PL_MIN(least, lowest_above(first, path + 1, "memory.limit_in_bytes"));
    }
    return least;
}
