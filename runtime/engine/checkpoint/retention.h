/* SPDX-License-Identifier: MIT */
/* Which checkpoints of a run are kept, as Lightning's ModelCheckpoint: the best k by a monitored
 * value (without one: the newest), and last.ckpt beside them. Decides and remembers; writing and
 * removing is the caller's (ckpt_writer.h). */
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
    int k;                          /* how many; -1 = all, 0 = none */
    struct pl_retention_kept *kept; /* the best first; oldest first of equals */
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

/* Whether a checkpoint with this value is kept: 1 with *ret_path = where to write it and
 * *ret_remove = the file that it pushes out (or NULL), both the caller's; 0 without them. The name
 * is epoch=E-step=S.ckpt. -ENOMEM. */
int pl_retention_add(struct pl_retention *retention,
                     uint64_t epoch,
                     uint64_t step,
                     double value,
                     char **ret_path,
                     char **ret_remove);

/* For the checkpoint's "callbacks": appends a JSON object; takes one back (entries whose files are
 * gone or that a smaller k leaves out are forgotten). -ENOMEM, -EINVAL. */
int pl_retention_save(const struct pl_retention *retention, struct pl_buf *buf);
int pl_retention_load(struct pl_retention *retention, const char *json);

/* hpc_ckpt_N.ckpt (doc/semantics.md 4.5): the path for the next one, N = the highest there is + 1,
 * and the path of the highest (NULL where there is none). Caller frees. -ENOMEM, or what reading
 * the folder fails with (a folder that is not there has none). */
int pl_hpc_next(const char *dir, char **ret, struct pl_error *err);
int pl_hpc_latest(const char *dir, char **ret, struct pl_error *err);

#endif
