/* SPDX-License-Identifier: MIT */
/* The number of jobs that Slurm's accounting lets a user have in the queue, and of those there:
 *   MaxSubmitJobs of the association, unless a QOS has one of the next two;
 *   MaxSubmitJobsPerUser and MaxSubmitJobsPerAccount of a QOS;
 *   GrpSubmitJobs of the association, of the account and of those above it, or of a QOS in their
 *   place.
 * Of the job's QOS and its partition's, the partition's comes first, unless the job's has the flag
 * OverPartQOS: what it sets, the other does not. sacctmgr(1) asks slurmdbd for the limits; scontrol
 * and squeue tell the jobs. */
#ifndef PL_LAUNCHER_SLURM_SLURM_ACCOUNTING_H
#define PL_LAUNCHER_SLURM_SLURM_ACCOUNTING_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PL_SLURM_CAPS_MAX 40

/* The cluster, account and so on of a job. NULL or "": Slurm's default, or none. */
struct pl_slurm_place {
    const char *cluster, *account, *partition, *qos, *partition_qos;
};

/* The jobs that count towards a limit. */
enum pl_slurm_cap_scope {
    PL_SLURM_CAP_USER_ACCOUNT, /* the user's of this account, and of the partition if there is one
                                */
    PL_SLURM_CAP_USER_QOS,     /* the user's of this QOS */
    PL_SLURM_CAP_ACCOUNT,      /* everybody's of this account and of those below it */
    PL_SLURM_CAP_QOS,          /* everybody's of this QOS */
    PL_SLURM_CAP_ACCOUNT_QOS,  /* everybody's of this account with this QOS */
};

struct pl_slurm_cap {
    enum pl_slurm_cap_scope scope;
    int64_t most, there; /* jobs, an array counts with all its tasks */
    char account[64], qos[64];
    char partition[64]; /* the jobs there; of a partition's QOS, which is not the jobs' own */
    char what[160];     /* "MaxSubmitJobs of account lab" */
};

struct pl_slurm_caps {
    struct pl_slurm_cap cap[PL_SLURM_CAPS_MAX];
    size_t n;
    bool user_by_qos, group_by_qos, account_by_qos; /* a QOS has set it */
};

/* Asks for the limits of the present user, and for the jobs that they count. *ret is the limit that
 * leaves the least room; without one its `most` is -1. -ENOENT (no sacctmgr), -EHOSTUNREACH,
 * -ETIMEDOUT; err says why. */
int pl_slurm_caps_ask(const struct pl_slurm_place *place,
                      struct pl_slurm_cap *ret,
                      struct pl_error *err);

/* Add the limits in sacctmgr's lines. Public for their test.
 *   associations  "DEFAULT-ACCOUNT|ACCOUNT|PARTITION|MAX|GRP|DEFAULT-QOS"; ret_qos gets the default
 *                 QOS of the association that counts, "" without one
 *   account       "ACCOUNT|PARENT|USER|GRP", of which those without a user are the account's;
 *                 ret_parent gets the account above, "" without one
 *   QOS           "NAME|MAX-PER-USER|GRP|MAX-PER-ACCOUNT|FLAGS" */
void pl_slurm_read_associations(const char *text,
                                const struct pl_slurm_place *place,
                                struct pl_slurm_caps *ret,
                                char *ret_qos,
                                size_t size);
void pl_slurm_read_account(const char *text,
                           const char *account,
                           struct pl_slurm_caps *ret,
                           char *ret_parent,
                           size_t size);
void pl_slurm_read_qos(const char *text, const char *account, struct pl_slurm_caps *ret);

/* Finds how many jobs the controller counts for GrpSubmitJobs, in the lines of `scontrol -o show
 * assoc_mgr`: of an account, or with account NULL of a QOS. -1: it does not say. For the test. */
int64_t pl_slurm_find_group(const char *text, const char *account, const char *qos);

#endif
