/* SPDX-License-Identifier: MIT */
/* The site's settings, from `scontrol show config`, for checks before a submission. */
#ifndef PL_LAUNCHER_SLURM_SLURM_SITE_H
#define PL_LAUNCHER_SLURM_SLURM_SITE_H

#include "launcher/slurm/slurm_conf.h"

struct pl_slurm_site {
    char release[32];      /* of the controller, "22.05.8" */
    char preempt_mode[64]; /* "OFF", "REQUEUE", "CANCEL", "GANG,SUSPEND", ... */
    char job_requeue[8];   /* JobRequeue: "1", or "0": requeued only where the job asks for it */
    char plugstack[256];   /* path of plugstack.conf */
    char auth[32];         /* AuthType: "auth/munge" */
    char cluster[64];      /* ClusterName */
    char namespace[64]; /* what gives jobs a /tmp of their own: "job_container/tmpfs"; "": none */
    char enforce[128];  /* AccountingStorageEnforce: "none", or "associations,limits,qos" */
    unsigned max_jobs;  /* MaxJobCount; 0: not known */
    struct pl_slurm_limits limits;
};

/* Asks scontrol. -ENOENT (no scontrol, no slurm.conf), -EHOSTUNREACH, -ETIMEDOUT. */
int pl_slurm_site_ask(struct pl_slurm_site *ret, struct pl_error *err);

/* Reads scontrol's output; what it lacks is "". -EINVAL if it has no MaxArraySize. Public for its
 * test. */
int pl_slurm_site_parse(const char *text, struct pl_slurm_site *ret);

/* Asks for a field of a partition, such as its PreemptMode, which replaces the site's, or its QoS;
 * "" without one, or where scontrol does not say. partition NULL: Slurm's default. */
void pl_slurm_site_partition(const char *partition, const char *field, char *ret, size_t size);

/* Finds the field in lines of `scontrol -o show partition`: of the partition of this name, or of
 * the default one. Public for its test. */
void pl_slurm_site_find(
    const char *text, const char *partition, const char *field, char *ret, size_t size);

/* True if a preempted job starts again under this mode. */
bool pl_slurm_preempt_requeues(const char *mode);

#endif
