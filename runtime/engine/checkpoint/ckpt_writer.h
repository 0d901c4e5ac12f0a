/* SPDX-License-Identifier: MIT */
/* Writes checkpoints off the training path: the caller hands over a checkpoint in memory (the
 * copy), a thread of its own writes it. One waits while one is written; a third has its submitter
 * wait. Errors are told by the next call. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_CKPT_WRITER_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_CKPT_WRITER_H

#include "runtime/engine/checkpoint/checkpoint.h"

struct pl_ckpt_writer;

struct pl_ckpt_job {
    struct pl_checkpoint checkpoint;
    char *path;   /* malloc()ed, as all strings here */
    char *also;   /* a second name for the file, e.g. last.ckpt; NULL = none */
    char *remove; /* a file to remove once the new one is safe; NULL = none */
};

/* The thread begins with the first job. -ENOMEM. */
int pl_ckpt_writer_create(struct pl_ckpt_writer **ret, struct pl_error *err);

/* Takes the job over, also on failure, and leaves zeros behind. Returns an earlier job's failure,
 * and then does not begin this one. */
int pl_ckpt_writer_submit(struct pl_ckpt_writer *writer,
                          struct pl_ckpt_job *job,
                          struct pl_error *err);

/* Waits until all are written; an earlier failure. */
int pl_ckpt_writer_flush(struct pl_ckpt_writer *writer, struct pl_error *err);

/* Flushes and ends the thread; failures are lost. NULL is fine. */
void pl_ckpt_writer_destroy(struct pl_ckpt_writer *writer);
PL_DEFINE_CLEANUP(struct pl_ckpt_writer *, pl_ckpt_writer_destroy)

void pl_ckpt_job_finish(struct pl_ckpt_job *job);

/* The same on the calling thread. */
int pl_ckpt_job_run(const struct pl_ckpt_job *job, struct pl_error *err);

#endif
