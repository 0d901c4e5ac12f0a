/* SPDX-License-Identifier: MIT */
/* --container: the program runs in a container of Apptainer or Singularity. plrun starts it
 * (runtime/plrun/container.h). */
#ifndef PL_LAUNCHER_PLSUBMIT_CONTAINER_H
#define PL_LAUNCHER_PLSUBMIT_CONTAINER_H

#include "launcher/plsubmit/spec.h"

/* Checks --container with the other options, and makes the image's path absolute.
 * program  the user's word for it; NULL: the bundled module
 * -EINVAL (no such image, or what does not go together), -ENOMEM. */
int pl_container_check(struct pl_spec *spec, const char *program, struct pl_error *err);

#endif
