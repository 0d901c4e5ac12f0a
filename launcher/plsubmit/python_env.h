/* SPDX-License-Identifier: MIT */
/* --venv and --conda: Python environments that the job script activates before the set-up. */
#ifndef PL_LAUNCHER_PLSUBMIT_PYTHON_ENV_H
#define PL_LAUNCHER_PLSUBMIT_PYTHON_ENV_H

#include "launcher/plsubmit/spec.h"

/* Checks both options, and makes their folders absolute. -EINVAL: no such environment, or both are
 * given; -ENOMEM. */
int pl_python_env_check(struct pl_spec *spec, struct pl_error *err);

/* Finds the program of this name (without '/') in --venv. *ret is NULL without one; the caller
 * frees it. -ENOMEM. */
int pl_python_env_program(const struct pl_spec *spec, const char *name, char **ret);

/* Makes the line of shell that activates the environment. *ret is NULL without one; the caller
 * frees it. -EINVAL (a line break in a path), -ENOMEM. */
int pl_python_env_command(const struct pl_spec *spec, char **ret);

#endif
