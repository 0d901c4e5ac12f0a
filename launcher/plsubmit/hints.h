/* SPDX-License-Identifier: MIT */
/* Looks for options and programs that Slurm and the program take, and that surely do not do what
 * they are for. */
#ifndef PL_LAUNCHER_PLSUBMIT_HINTS_H
#define PL_LAUNCHER_PLSUBMIT_HINTS_H

#include "launcher/plsubmit/spec.h"

/* Adds warnings to a resolved spec. -EINVAL (a --metric that can match nothing), -ENOMEM. */
int pl_hints_add(struct pl_spec *spec, struct pl_error *err);

/* Adds warnings about the values of the axes alone. -ENOMEM. */
int pl_hints_axes(struct pl_spec *spec);

/* Prints the warnings. -EINVAL: there are some, and --strict refuses them. */
int pl_hints_show(const struct pl_spec *spec);

#endif
