/* SPDX-License-Identifier: MIT */
/* Shared by spec.c and spec_resolve.c. */
#ifndef PL_LAUNCHER_PLSUBMIT_SPEC_PRIVATE_H
#define PL_LAUNCHER_PLSUBMIT_SPEC_PRIVATE_H

#include "launcher/plsubmit/spec.h"

/* Sets a value; text NULL removes it. -ENOMEM. */
int pl_spec_put(struct pl_spec *spec,
                enum pl_spec_key key,
                const char *text,
                enum pl_origin origin);

/* Sets sbatch's option KEY=VALUE as plsubmit's own option of that name does. Returns 1; 0 if
 * plsubmit has no such option or does not know the form of the value; -ENOMEM. */
int pl_spec_put_sbatch(struct pl_spec *spec, const char *text);

/* Sets options that the command line does not set from sbatch's SBATCH_* in env, and notes the
 * other variables for --show-config. -ENOMEM. */
int pl_spec_read_env(struct pl_spec *spec, char *const *env);

/* The option of a key, for its name. */
const struct pl_option *pl_spec_option(enum pl_spec_key key);
const char *pl_spec_list_name(enum pl_spec_list list);

#endif
