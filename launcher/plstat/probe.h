/* SPDX-License-Identifier: MIT */
/* The questions of plstat doctor to each node. */
#ifndef PL_LAUNCHER_PLSTAT_PROBE_H
#define PL_LAUNCHER_PLSTAT_PROBE_H

#include <jansson.h>

/* The facts of this node, a new reference; a fact that is not known has no key:
 *   node, host, time, version   names, seconds since 1970, release of this Plume
 *   slurm                       what `scontrol --version` prints
 *   plugin                      true if the plugin has started this task
 *   token                       the first line of `file`
 *   interfaces                  [{"name":"eth0","address":"10.0.0.1","speed":25000}], without
 * loopback and those of containers names [{"name":"n2","address":"10.0.0.2","back":"n2.site"}] of
 * the step's nodes driver, nccl, mpi           releases NULL when out of memory. */
json_t *pl_probe(const char *file);

#endif
