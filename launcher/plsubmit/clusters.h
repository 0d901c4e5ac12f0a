/* SPDX-License-Identifier: MIT */
/* sbatch can submit to another cluster of the site's accounting: --clusters, SLURM_CLUSTERS. */
#ifndef PL_LAUNCHER_PLSUBMIT_CLUSTERS_H
#define PL_LAUNCHER_PLSUBMIT_CLUSTERS_H

#include "common/base/buf.h"
#include "common/run/run_folder.h"

/* The clusters "a,b" of which sbatch takes one, by its arguments, else by a variable in env. NULL:
 * it takes this host's. Borrowed. */
const char *pl_clusters_chosen(const char *const *sbatch_args, char *const *env);

/* The cluster in the output "123;CLUSTER" of sbatch --parsable; the caller frees it. NULL: sbatch
 * has chosen none. */
char *pl_clusters_answer(const struct pl_buf *out);

/* Sets, in memory, the cluster that has got the first array: the others must go to the same one, as
 * they may wait for it. The next call that records something writes it. -ENOMEM.
 * cluster  NULL: it is this host's */
int pl_clusters_set(struct pl_run *run, const char *cluster);

/* Lets Slurm's commands ask this host's cluster, whatever the variables choose, as libslurm does.
 * run  a sweep of this cluster, or of one that is not known */
void pl_clusters_stay(const struct pl_run *run);

#endif
