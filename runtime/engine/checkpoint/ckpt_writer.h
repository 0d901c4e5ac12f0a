/* SPDX-License-Identifier: MIT */
/* Writes checkpoints asynchronously: the caller hands over a checkpoint in memory (a copy), and a
 * thread writes it. One job waits while another is written; a third blocks its submitter. The next
 * call returns a job's error. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CKPT_WRITER_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CKPT_WRITER_H

#include "runtime/engine/checkpoint/checkpoint.h"

struct pl_ckpt_writer;

struct pl_ckpt_job {
    struct pl_checkpoint checkpoint;
    char *temp; /* its file, complete but for the checksum (checkpoint_parts.h); NULL = none yet */
    char *path; /* malloc()ed, as all strings here */
    char *also; /* a second name for the file, e.g. last.ckpt; NULL = none */
    char *remove; /* a file to remove once the new one is safe; NULL = none */
};

/* The first job starts the thread. If none can be started, submit() warns once, writes itself and
 * returns the error of its own job. -ENOMEM. */
int pl_ckpt_writer_create(struct pl_ckpt_writer **ret, struct pl_error *err);

/* Takes ownership of the job, also on failure, and zeroes it. Returns the error of an earlier job,
 * and then does not start this one. */
int pl_ckpt_writer_submit(struct pl_ckpt_writer *writer,
                          struct pl_ckpt_job *job,
                          struct pl_error *err);

/* Waits until all jobs are written; returns an earlier error. */
int pl_ckpt_writer_flush(struct pl_ckpt_writer *writer, struct pl_error *err);

/* Waits for the jobs and ends the thread; errors are lost. NULL is ignored. */
void pl_ckpt_writer_destroy(struct pl_ckpt_writer *writer);
PL_DEFINE_CLEANUP(struct pl_ckpt_writer *, pl_ckpt_writer_destroy)

void pl_ckpt_job_finish(struct pl_ckpt_job *job);

/* Writes one job on the calling thread. */
int pl_ckpt_job_run(const struct pl_ckpt_job *job, struct pl_error *err);

#endif
