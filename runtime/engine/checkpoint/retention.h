/* SPDX-License-Identifier: MIT */
/* The retention of a run's checkpoints, as by Lightning's ModelCheckpoint: the best k by a
 * monitored value (without one: the newest), and last.ckpt in addition. It only decides; the caller
 * writes and removes files (ckpt_writer.h). */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_RETENTION_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_RETENTION_H

#include "common/base/buf.h"
#include "common/base/error.h"

#include <stdbool.h>

struct pl_retention_kept {
    double value; /* NaN counts as worst */
    char *path;
};

struct pl_retention {
    char *dir;
    char *monitor; /* a logged value with its stage's prefix; NULL = none */
    bool maximize;
    int k;                          /* number to keep; -1 = all, 0 = none */
    struct pl_retention_kept *kept; /* the best first; of equal ones the oldest first */
    size_t n;
};

/* Strings are copied. -EINVAL, -ENOMEM. */
int pl_retention_init(struct pl_retention *retention,
                      const char *dir,
                      const char *monitor,
                      bool maximize,
                      int k,
                      struct pl_error *err);
void pl_retention_finish(struct pl_retention *retention);

/* Returns 1 if a checkpoint with this value is kept, with *ret_path = its file and *ret_remove =
 * the file that it replaces (or NULL), both owned by the caller; 0 if not. The name is
 * epoch=E-step=S.ckpt. -ENOMEM. */
int pl_retention_add(struct pl_retention *retention,
                     uint64_t epoch,
                     uint64_t step,
                     double value,
                     char **ret_path,
                     char **ret_remove);

/* For the checkpoint's "callbacks": appends a JSON object; reads one back. Entries over a smaller
 * k, without a file, or with a file of another folder are dropped: a run removes files of its own
 * folder only. -ENOMEM, -EINVAL. */
int pl_retention_save(const struct pl_retention *retention, struct pl_buf *buf);
int pl_retention_load(struct pl_retention *retention, const char *json);

/* hpc_ckpt_N.ckpt (doc/semantics.md 4.5): the path of the next one, N = the highest existing + 1,
 * and the path of the highest (NULL if there is none). The caller frees both. -ENOMEM, or the error
 * of reading the folder (a missing folder has none). */
int pl_hpc_next(const char *dir, char **ret, struct pl_error *err);
int pl_hpc_latest(const char *dir, char **ret, struct pl_error *err);

/* Removes all hpc_ckpt_N.ckpt but the highest. -errno. */
int pl_hpc_remove_older(const char *dir, struct pl_error *err);

#endif
