/* SPDX-License-Identifier: MIT */
/* The number of jobs that a user may have in the queue, by Slurm's accounting: MaxSubmitJobs of the
 * association, or MaxSubmitJobsPerUser of the QOS in its place; and GrpSubmitJobs of the
 * association, of the account and of those above it, or of the QOS. sacctmgr(1) asks slurmdbd. */
#ifndef PL_LAUNCHER_SLURM_SLURM_ACCOUNTING_H
#define PL_LAUNCHER_SLURM_SLURM_ACCOUNTING_H

#include "common/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The cluster, account and so on of a job. NULL or "": Slurm's default, or none. */
struct pl_slurm_place {
    const char *cluster, *account, *partition, *qos, *partition_qos;
};

struct pl_slurm_submit_limit {
    int64_t most;   /* jobs, an array counts with all its tasks; -1: no limit */
    char what[160]; /* whose limit: "MaxSubmitJobs of account lab" */
    /* a QOS has MaxSubmitJobsPerUser, or GrpSubmitJobs: it replaces those of the association and of
     * the accounts, which may be lower */
    bool user_by_qos, group_by_qos;
};

/* Asks for the lowest limit of the present user. -ENOENT (no sacctmgr), -EHOSTUNREACH, -ETIMEDOUT;
 * err says why. */
int pl_slurm_submit_limit_ask(const struct pl_slurm_place *place,
                              struct pl_slurm_submit_limit *ret,
                              struct pl_error *err);

/* Lower *ret to the limits in sacctmgr's lines. Public for their test.
 *   associations  "DEFAULT-ACCOUNT|ACCOUNT|PARTITION|MAX|GRP|DEFAULT-QOS"; ret_qos gets the default
 *                 QOS of the association that counts, "" without one
 *   account       "ACCOUNT|PARENT|USER|GRP", of which those without a user are the account's;
 *                 ret_parent gets the account above, "" without one
 *   QOS           "NAME|MAX-PER-USER|GRP" */
void pl_slurm_read_associations(const char *text,
                                const struct pl_slurm_place *place,
                                struct pl_slurm_submit_limit *ret,
                                char *ret_qos,
                                size_t size);
void pl_slurm_read_account(const char *text,
                           const char *account,
                           struct pl_slurm_submit_limit *ret,
                           char *ret_parent,
                           size_t size);
void pl_slurm_read_qos(const char *text, struct pl_slurm_submit_limit *ret);

/* Counts the user's jobs in the queue, each task of an array for itself. -EHOSTUNREACH, ... */
int pl_slurm_count_jobs(int64_t *ret, struct pl_error *err);

#endif
