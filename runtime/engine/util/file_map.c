/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/file_map.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

#define MAPS_MAX 64 /* of more files the last have no name in a report */
#define PATH_BYTES 256

/* A signal handler reads them: a slot is in use as long as its `end` is not 0. */
static struct {
    atomic_flag taken;
    uintptr_t begin;
    atomic_uintptr_t end;
    char path[PATH_BYTES];
} slots[MAPS_MAX];

int pl_file_map(int fd, const char *path, size_t bytes, void **ret)
{
    void *map = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);

    if (map == MAP_FAILED)
        return -errno;
    for (size_t i = 0; i < MAPS_MAX; i++) {
        if (atomic_flag_test_and_set(&slots[i].taken))
            continue;
        slots[i].begin = (uintptr_t)map;
        snprintf(slots[i].path, sizeof(slots[i].path), "%s", path);
        atomic_store(&slots[i].end, (uintptr_t)map + bytes);
        break;
    }
    *ret = map;
    return 0;
}

void pl_file_unmap(void *map, size_t bytes)
{
    for (size_t i = 0; i < MAPS_MAX; i++) {
        if (atomic_load(&slots[i].end) != (uintptr_t)map + bytes ||
            slots[i].begin != (uintptr_t)map)
            continue;
        atomic_store(&slots[i].end, 0);
        atomic_flag_clear(&slots[i].taken);
        break;
    }
    munmap(map, bytes);
}

const char *pl_file_map_find(const void *address)
{
    for (size_t i = 0; i < MAPS_MAX; i++)
        if ((uintptr_t)address < atomic_load(&slots[i].end) && (uintptr_t)address >= slots[i].begin)
            return slots[i].path;
    return NULL;
}
