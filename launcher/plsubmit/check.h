/* SPDX-License-Identifier: MIT */
/* --check: everything that can be known before a submission, and nothing is submitted. */
#ifndef PL_LAUNCHER_PLSUBMIT_CHECK_H
#define PL_LAUNCHER_PLSUBMIT_CHECK_H

#include "launcher/plsubmit/launch.h"

/* Prints "ok" and "wrong" lines to out; the spec's warnings are wrong, too. Sets *ret_wrong to the
 * number of those. -ENOMEM, -EIO. */
int pl_check_run(const struct pl_launch *launch,
                 FILE *out,
                 unsigned *ret_wrong,
                 struct pl_error *err);

#endif
