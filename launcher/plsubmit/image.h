/* SPDX-License-Identifier: MIT */
/* The values of --container and of --container-option. */
#ifndef PL_LAUNCHER_PLSUBMIT_IMAGE_H
#define PL_LAUNCHER_PLSUBMIT_IMAGE_H

#include "common/base/error.h"

/* Checks the form of one value. -EINVAL. */
int pl_image_check(const char *value, struct pl_error *err);
int pl_image_check_option(const char *value, struct pl_error *err);

#endif
