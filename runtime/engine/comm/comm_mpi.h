/* SPDX-License-Identifier: MIT */
/* The site's MPI: loaded if the job was started with one (mpirun, srun --mpi=pmix), or on request.
 *
 * Data goes through MPI. A TCP communicator of the same members carries no data: it detects and
 * reports a lost or failing rank, for which MPI itself would wait without limit. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_MPI_H
#define PL_RUNTIME_ENGINE_COMM_COMM_MPI_H

#include "runtime/engine/comm/comm.h"

/* The most bytes of one call: MPI counts with an int. Tests set less. */
extern size_t pl_mpi_slice;

/* True if an MPI launcher started this process, by its environment. */
bool pl_mpi_launched(void);

/* Loads plume-mpi.so and starts MPI, once per process. *ret_world gets MPI's rank, size,
 * local_rank, local_size and node. -ENOTSUP: no plume-mpi.so, or no MPI. */
int pl_mpi_open(struct pl_mpi **ret, struct pl_world *ret_world, struct pl_error *err);

/* Ends MPI, which waits for all ranks. `lost`: a rank is lost, so do not call MPI at all. */
void pl_mpi_close(struct pl_mpi *mpi, bool lost);

/* Gathers equal parts of `bytes` of all ranks of the world, in place. Blocks. */
int pl_mpi_allgather(struct pl_mpi *mpi, void *buf, size_t bytes, struct pl_error *err);

/* Has the members of `tcp`; takes ownership of it, also on failure. */
int pl_comm_mpi_create(struct pl_mpi *mpi,
                       struct pl_comm *tcp,
                       struct pl_comm **ret,
                       struct pl_error *err);

#endif
