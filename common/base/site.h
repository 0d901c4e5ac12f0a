/* SPDX-License-Identifier: MIT */
/* The site's settings, plume.conf(5). They win over the environment and the options of users. */
#ifndef PL_COMMON_BASE_SITE_H
#define PL_COMMON_BASE_SITE_H

#include "common/base/error.h"

#include <stdbool.h>
#include <sys/types.h>

#define PL_SITE_FILE "/etc/plume/plume.conf"

/* Reads PL_SITE_FILE and sets the environment variables that its keys stand for. A program calls it
 * first, while it has one thread. Returns 0, also if the file does not exist; -EPERM if anybody
 * but root could have written it; -EINVAL, with file and line, if a line is wrong. */
int pl_site_load(struct pl_error *err);

/* The same of this file, which `owner` may own, too. For tests. */
int pl_site_load_from(const char *path, uid_t owner, struct pl_error *err);

/* Checks another file of the site. Its lines run with the rights of the user who reads it. Returns
 * 0, also if the file does not exist; otherwise the errors of pl_site_load(). */
int pl_site_check_file(const char *path, struct pl_error *err);

/* Bits that no new run folder has, by the file that was read; 0 without one. */
mode_t pl_site_folder_mask(void);

/* True if ranks must not serve NCCL's RAS, which answers every user of their node. */
bool pl_site_nccl_ras_off(void);

#endif
