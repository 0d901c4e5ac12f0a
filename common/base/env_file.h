/* SPDX-License-Identifier: MIT */
/* Names of variables that a user may set for a trial, and files of such variables. */
#ifndef PL_COMMON_BASE_ENV_FILE_H
#define PL_COMMON_BASE_ENV_FILE_H

#include "common/base/error.h"

#include <stddef.h>

#define PL_ENV_FILE_MAX (1u << 20) /* bytes */

/* Checks a name of `len` bytes: [A-Za-z_][A-Za-z0-9_]*, none that Plume sets for a trial or a rank,
 * and none of bash's own. An assignment to some of the latter runs commands in its value
 * (RANDOM='a[$(CMD)]'), others change how the job script is read. -EINVAL. */
int pl_env_name_check(const char *name, size_t len, struct pl_error *err);

/* Reads lines NAME=VALUE, "export " may stand before NAME; empty lines and those that begin with #
 * are skipped. A value is literal: nothing in it is expanded or run. Quotes around a whole value
 * are removed; a value in double quotes with a \, $ or ` is refused, because other readers expand
 * it. The file must be the caller's and closed to all others, as an ssh key is.
 * ret  "NAME=VALUE", NULL-terminated; free with pl_strv_free()
 * Returns 0, -EPERM (owner or mode), -EINVAL (err has the line), -EFBIG, -ENOENT, -ENOMEM, ... */
int pl_env_file_read(const char *path, char ***ret, struct pl_error *err);

/* The same for text in memory; `path` is for messages. */
int pl_env_file_parse(
    const char *text, size_t len, const char *path, char ***ret, struct pl_error *err);

#endif
