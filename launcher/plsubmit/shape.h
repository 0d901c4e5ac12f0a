/* SPDX-License-Identifier: MIT */
/* The shape of a trial: nodes, ranks, GPUs and CPUs, from any of sbatch's ways to ask for them. */
#ifndef PL_LAUNCHER_PLSUBMIT_SHAPE_H
#define PL_LAUNCHER_PLSUBMIT_SHAPE_H

#include "launcher/plsubmit/spec.h"

/* 0 in any field: not known here, Slurm decides. */
struct pl_shape {
    unsigned nodes, nodes_max; /* equal, unless --nodes is a range */
    unsigned ranks;            /* of all nodes */
    unsigned ranks_per_node;
    unsigned gpus; /* of all nodes */
    unsigned gpus_per_node;
    unsigned gpus_per_rank;
    unsigned cpus_per_rank;
};

/* The number of GPUs in a list of generic resources: "gpu", "gpu:8", "license:1,gpu:a100:4".
 * 0: none. */
unsigned pl_shape_count_gres(const char *value);

/* Sets the defaults of nodes and ranks: one node, and one rank per GPU. It leaves out a default
 * that would conflict with another option. -ENOMEM. */
int pl_shape_defaults(struct pl_spec *spec);

/* Reads the shape from the options. */
struct pl_shape pl_shape_of(const struct pl_spec *spec);

/* Appends "2 nodes x 4 ranks x 1 GPU x 3 CPUs". -ENOMEM. */
int pl_shape_format(const struct pl_shape *shape, struct pl_buf *out);

#endif
