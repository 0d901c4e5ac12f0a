/* SPDX-License-Identifier: MIT */
/* The functions that plume-mpi.so exports. It alone is compiled against an MPI, and is loaded when
 * a job uses MPI: pltrain itself needs none. This header includes no other.
 *
 * Collectives are started and then tested, so that the caller can check its peers in between: a
 * blocked MPI call has no way out when a rank is lost. One at a time. Functions return 0, or fill
 * `text` (PL_MPI_TEXT bytes) and return -1. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_MPI_TABLE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_MPI_TABLE_H

#include <stddef.h>

#define PL_MPI_TABLE_VERSION 2
#define PL_MPI_TABLE_SYMBOL "pl_mpi_table"
#define PL_MPI_TEXT 160

struct pl_mpi_layout {
    unsigned rank, size, local_rank, local_size;
    unsigned node; /* nodes are ordered by their lowest rank */
};

struct pl_mpi_table {
    unsigned version;
    int (*init)(struct pl_mpi_layout *ret, char *text);
    /* Ends MPI; all ranks call it. */
    void (*finalize)(void);
    /* Makes a group of ranks of the world. All of them make groups in the same order. */
    int (*group)(const unsigned *ranks, unsigned n, void **ret, char *text);
    void (*free)(void *group);
    /* In place; real: 0 = float, 1 = double. */
    int (*allreduce)(void *group, void *buf, size_t count, int real, char *text);
    int (*broadcast)(void *group, void *buf, size_t bytes, char *text);
    int (*barrier)(void *group, char *text);
    int (*allgather)(void *group, void *buf, const size_t *offset, char *text);
    /* Rank i's sum of elements offset[i] to offset[i + 1] goes to the start of its buf; the rest of
     * buf is undefined afterwards. */
    int (*reduce_scatter)(void *group, void *buf, const size_t *offset, int real, char *text);
    /* Progresses the collective in progress; *ret_done is 1 when it is complete. */
    int (*test)(void *group, int *ret_done, char *text);
    /* Gathers equal parts of all ranks of the world, in place, for the rendezvous. Blocks. */
    int (*gather_world)(void *buf, size_t bytes, char *text);
};

#endif
