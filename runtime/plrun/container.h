/* SPDX-License-Identifier: MIT */
/* PLUME_CONTAINER: a rank's program runs in a container of Apptainer or Singularity. plrun, the
 * node daemon and the command to save stay outside, so that the image needs nothing of Plume:
 *
 *   plrun --> apptainer exec --bind ... IMAGE PROGRAM ARG...
 *
 * Inside, the working directory, the run folder and the folder of the daemon's socket have the
 * paths that they have outside, and the variables of the rank win over those that the image sets.
 */
#ifndef PL_RUNTIME_PLRUN_CONTAINER_H
#define PL_RUNTIME_PLRUN_CONTAINER_H

#include "common/base/error.h"

#include <stdbool.h>

/* True if PLUME_CONTAINER names an image. */
bool pl_container_is_set(void);

/* Makes the command line that runs argv in the container, and sets the variables for it. Call it
 * in the rank's process before exec: it changes the environment. Free *ret with pl_strv_free().
 * -ENOENT: neither apptainer nor singularity is in PATH; -ENOMEM. */
int pl_container_words(char *const *argv, char ***ret, struct pl_error *err);

#endif
