/* SPDX-License-Identifier: MIT */
/* Replaces slurm_compat.c in a build without libslurm. */
#include "launcher/slurm/slurm_compat.h"

int pl_slurm_query_ping(struct pl_error *err)
{
    return pl_error_set(
        err, -ENOTSUP,
        "built without libslurm: install its headers and build again with -Dslurm=enabled");
}

int pl_slurm_query_limits(struct pl_slurm_limits *ret, struct pl_error *err)
{
    return pl_error_set(
        err, -ENOTSUP,
        "built without libslurm: install its headers and build again with -Dslurm=enabled");
}

int pl_slurm_query_jobs(uid_t uid, json_t **ret, struct pl_error *err)
{
    return pl_error_set(
        err, -ENOTSUP,
        "built without libslurm: install its headers and build again with -Dslurm=enabled");
}
