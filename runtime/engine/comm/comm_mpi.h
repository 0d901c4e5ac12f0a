/* SPDX-License-Identifier: MIT */
/* The site's MPI: loaded when a job was started with one (mpirun, srun --mpi=pmix), or asked for.
 *
 * Data goes by MPI. Beside it stands a TCP communicator of the same members that carries nothing:
 * there a lost or failing rank is seen and told, which MPI itself would wait for for ever. */
#ifndef PL_RUNTIME_ENGINE_COMM_COMM_MPI_H
#define PL_RUNTIME_ENGINE_COMM_COMM_MPI_H

#include "runtime/engine/comm/comm.h"

/* Whether an MPI launcher started this process, by its environment. */
bool pl_mpi_launched(void);

/* Loads plume-mpi.so and starts MPI, once a process. *ret_world: rank, size, local_rank,
 * local_size and node as MPI sees them. -ENOTSUP where there is no plume-mpi.so or no MPI. */
int pl_mpi_open(struct pl_mpi **ret, struct pl_world *ret_world, struct pl_error *err);

/* Ends MPI, which waits for all ranks; `lost`: does not even try, since one will not come. */
void pl_mpi_close(struct pl_mpi *mpi, bool lost);

/* Equal parts of `bytes` of all ranks of the world, in place. Blocks. */
int pl_mpi_allgather(struct pl_mpi *mpi, void *buf, size_t bytes, struct pl_error *err);

/* Of the members of `tcp`, which is taken over, also on failure. */
int pl_comm_mpi_create(struct pl_mpi *mpi,
                       struct pl_comm *tcp,
                       struct pl_comm **ret,
                       struct pl_error *err);

#endif
