/* SPDX-License-Identifier: MIT */
/* Number of threads of a rank. */
#ifndef PL_RUNTIME_PLTRAIN_THREADS_H
#define PL_RUNTIME_PLTRAIN_THREADS_H

#include "runtime/engine/comm/comm.h"

/* Sets the pool's size: the threads that this process may use (mask, cgroup, $OMP_NUM_THREADS),
 * divided by the ranks of this node that have the same CPU mask. Slurm gives each task its own
 * CPUs: then nothing is divided, nor with OMP_NUM_THREADS. At least 1. Collective. */
int pl_threads_share(struct pl_comm *comm, struct pl_error *err);

#endif
