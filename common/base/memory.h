/* SPDX-License-Identifier: MIT */
/* Memory for tensors and the like. */
#ifndef PL_COMMON_BASE_MEMORY_H
#define PL_COMMON_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Allocates bytes at a multiple of align (a power of two, at least a pointer's size), for free().
 * Of many megabytes the kernel is asked to use huge pages: a fault for 2 MiB instead of for 4 KiB,
 * and few of the processor's address translations (madvise(2), MADV_HUGEPAGE).
 * Returns 0, or -ENOMEM. */
int pl_memory_alloc(size_t align, size_t bytes, void **ret);

/* The bytes that the control groups of a process leave it and the others in them: the lowest limit
 * of its group and of those above. UINT64_MAX: none, or not known. self: "/proc/self/cgroup"; root:
 * the mount point; NULL: $PLUME_CGROUP_ROOT, or "/sys/fs/cgroup". */
uint64_t pl_memory_of_groups(const char *self, const char *root);

#endif
