/* SPDX-License-Identifier: MIT */
/* Temporary folders of tests. */
#ifndef PL_TESTS_LIB_TMPDIR_H
#define PL_TESTS_LIB_TMPDIR_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

/* Creates a folder in /tmp and writes its path. 0 or -1. */
static inline int tmpdir_make(char *path, size_t size)
{
    int n = snprintf(path, size, "/tmp/plume-test-XXXXXX");

    return n < 0 || (size_t)n >= size || !mkdtemp(path) ? -1 : 0;
}

static inline int
tmpdir_remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return remove(path);
}

/* Removes the folder with everything in it. 0 or -1. */
static inline int tmpdir_remove(const char *path)
{
    return nftw(path, tmpdir_remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
