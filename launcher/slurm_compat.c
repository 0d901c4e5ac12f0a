/* SPDX-License-Identifier: MIT */
#include "launcher/slurm_compat.h"

#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>

#define MAX_CONTROLLERS 8

int pl_slurm_query_limits(struct pl_slurm_limits *ret, struct pl_error *err)
{
    slurm_conf_t *conf = NULL;
    bool there = false;

    slurm_init(NULL);
    /* A load of the configuration tries for half a minute, a ping does not. */
    for (int i = 0; i < MAX_CONTROLLERS && !there; i++)
        there = slurm_ping(i) == SLURM_SUCCESS;
    if (!there)
        return pl_error_set(err, -EHOSTUNREACH, "the Slurm controller does not answer");
    if (slurm_load_ctl_conf(0, &conf) != SLURM_SUCCESS)
        return pl_error_set(err, -EHOSTUNREACH, "%s", slurm_strerror(errno));
    *ret = (struct pl_slurm_limits){
        .max_array_size = conf->max_array_sz,
        .max_array_tasks = pl_slurm_max_array_tasks(conf->sched_params),
    };
    slurm_free_ctl_conf(conf);
    return 0;
}
