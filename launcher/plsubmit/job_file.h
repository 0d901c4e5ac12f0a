/* SPDX-License-Identifier: MIT */
/* Options from YAML files: the keys are the long names of plsubmit's options, and each value passes
 * through the setter of the option table, so that a file means what the command line means. */
#ifndef PL_LAUNCHER_PLSUBMIT_JOB_FILE_H
#define PL_LAUNCHER_PLSUBMIT_JOB_FILE_H

#include "launcher/plsubmit/spec.h"

/* Reads a file into *ret, a zeroed spec.
 * origin  PL_ORIGIN_JOB_FILE, or PL_ORIGIN_SITE_FILE or PL_ORIGIN_USER_FILE, which may not have a
 *         program or trials
 * -ENOENT, -EINVAL (err has "FILE:LINE:COLUMN: ..."), -EFBIG, -ENOTSUP (built without libyaml),
 * -ENOMEM and errors of open(2). */
int pl_job_file_read(const char *path,
                     enum pl_origin origin,
                     struct pl_spec *ret,
                     struct pl_error *err);

/* The same of a text; path is for messages. */
int pl_job_file_parse(const char *path,
                      const char *text,
                      size_t len,
                      enum pl_origin origin,
                      struct pl_spec *ret,
                      struct pl_error *err);

/* Puts the job file of --job-file, the user's file and the site's below the options of the command
 * line, in this order: what a higher source sets, a lower one does not. Errors as
 * pl_job_file_read(). */
int pl_job_files_apply(struct pl_spec *spec, struct pl_error *err);

/* Sets options that `spec` does not set from `lower`, which is left empty. -ENOMEM. */
int pl_job_file_merge(struct pl_spec *spec, struct pl_spec *lower);

/* Appends a job file with what the command line and the job file set.
 * words  the program and its arguments, NULL-terminated; may be NULL
 * -EINVAL (YAML cannot have a value), -ENOMEM. */
int pl_job_file_format(const struct pl_spec *spec,
                       char *const *words,
                       struct pl_buf *out,
                       struct pl_error *err);

/* --write-job: writes a text to a new file, or to stdout for "-". -EEXIST, errors of write(2). */
int pl_job_file_write(const struct pl_spec *spec, const struct pl_buf *text, struct pl_error *err);

#endif
