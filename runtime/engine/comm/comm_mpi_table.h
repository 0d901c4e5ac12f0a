/* SPDX-License-Identifier: MIT */
/* What plume-mpi.so offers, the only part that is compiled against an MPI: it is loaded when a job
 * uses MPI, so that pltrain needs none elsewhere. Includes nothing of ours, links nothing of ours.
 *
 * Collectives are started and then tested, so that the caller can look after its peers in between:
 * a blocked MPI call has no way out when a rank is lost. One at a time. Functions return 0, or fill
 * `text` (PL_MPI_TEXT bytes) and return -1. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_MPI_TABLE_H
#define PL_RUNTIME_ENGINE_COMM_COMM_MPI_TABLE_H

#include <stddef.h>

#define PL_MPI_TABLE_VERSION 1
#define PL_MPI_TABLE_SYMBOL "pl_mpi_table"
#define PL_MPI_TEXT 160

struct pl_mpi_layout {
    unsigned rank, size, local_rank, local_size;
    unsigned node; /* numbered by the lowest rank on it */
};

struct pl_mpi_table {
    unsigned version;
    int (*init)(struct pl_mpi_layout *ret, char *text);
    /* Ends MPI; all ranks call it. */
    void (*finalize)(void);
    /* A group of ranks of the world, which all of them make in the same order. */
    int (*group)(const unsigned *ranks, unsigned n, void **ret, char *text);
    void (*free)(void *group);
    /* In place; real: 0 = float, 1 = double. */
    int (*allreduce)(void *group, void *buf, size_t count, int real, char *text);
    int (*broadcast)(void *group, void *buf, size_t bytes, char *text);
    int (*barrier)(void *group, char *text);
    int (*allgather)(void *group, void *buf, const size_t *offset, char *text);
    /* Moves the one that was started on; *ret_done is 1 when it is over. */
    int (*test)(void *group, int *ret_done, char *text);
    /* The world, for the first meeting: equal parts, in place; blocks. */
    int (*gather_world)(void *buf, size_t bytes, char *text);
};

#endif
