/* SPDX-License-Identifier: MIT */
/* How many threads a rank computes with. */
#ifndef PL_RUNTIME_PLTRAIN_THREADS_H
#define PL_RUNTIME_PLTRAIN_THREADS_H

#include "runtime/engine/comm/comm.h"

/* Sets the pool's size: what this process may use (mask, cgroup, $OMP_NUM_THREADS), divided by the
 * ranks of this node that have the very same CPUs; nothing is divided where Slurm has given each
 * task CPUs of its own, nor where OMP_NUM_THREADS says it. At least 1. Collective. */
int pl_threads_share(struct pl_comm *comm, struct pl_error *err);

#endif
