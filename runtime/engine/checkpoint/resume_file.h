/* SPDX-License-Identifier: MIT */
/* The checkpoint that a run continues from. */
#ifndef PL_RUNTIME_ENGINE_CHECKPOINT_RESUME_FILE_H
#define PL_RUNTIME_ENGINE_CHECKPOINT_RESUME_FILE_H

#include "common/base/error.h"

/* dir    folder of checkpoints; NULL = none
 * asked  a path, or "last": last.ckpt in the folder if it exists; NULL = none
 * *ret   the path, the caller frees it; NULL = the run does not resume
 *
 * An hpc_ckpt_N.ckpt in the folder marks a run that was interrupted and goes on by itself. The run
 * then continues from the file with the highest global step among `asked`, the highest hpc_ckpt_N,
 * last.ckpt and the newest epoch=E-step=S.ckpt. Files that are unreadable or have weights only are
 * passed over; without any other file the hpc_ckpt_N is the result. -ENOMEM, or the error of
 * reading the folder. Logs a warning per unreadable file. */
int pl_resume_file(const char *dir, const char *asked, char **ret, struct pl_error *err);

#endif
