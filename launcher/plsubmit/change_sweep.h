/* SPDX-License-Identifier: MIT */
/* The command line of a change: --resume, --retry, --extend, --update, --cancel, --hold, --release.
 */
#ifndef PL_LAUNCHER_PLSUBMIT_CHANGE_SWEEP_H
#define PL_LAUNCHER_PLSUBMIT_CHANGE_SWEEP_H

#include "launcher/plsubmit/spec.h"

/* words    what is no option; NULL-terminated
 * bin_dir  plsubmit's folder
 * Prints what is done, or goes wrong. Returns an exit code. */
int pl_change_sweep(struct pl_spec *spec, char *const *words, const char *bin_dir);

#endif
