/* SPDX-License-Identifier: MIT */
/* Releases of what a node's ranks talk to each other with: GPU driver, NCCL and MPI. No library is
 * loaded and no program runs: the releases are in names of files. */
#ifndef PL_COMMON_BASE_VERSIONS_H
#define PL_COMMON_BASE_VERSIONS_H

#include <stddef.h>

#define PL_VERSION_MAX 32

/* "": not known. */
struct pl_versions {
    char driver[PL_VERSION_MAX]; /* NVIDIA's, "535.104.05" */
    char nccl[PL_VERSION_MAX];   /* of the first libnccl.so.2, "2.18.3" */
    char mpi[PL_VERSION_MAX];    /* the first MPI library's file, "libmpi.so.40.30.4" */
};

/* Reads them from files below `root` ("": the system's). library_path: folders that are looked at
 * first, with colons; NULL: none. A PyTorch has an NCCL of its own. */
void pl_versions_read(const char *root, const char *library_path, struct pl_versions *ret);

/* The same for this node and LD_LIBRARY_PATH, in a child that has a second: a folder may be on a
 * file system that does not answer. */
void pl_versions_ask(struct pl_versions *ret);

/* The first word of a text that is numbers with points, "535.104.05"; "" without one. */
void pl_versions_release(const char *text, char *ret, size_t size);

#endif
