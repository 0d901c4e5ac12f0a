/* SPDX-License-Identifier: MIT */
/* Checks the command line of pltrain for every value of each axis before the trials are queued. */
#ifndef PL_LAUNCHER_PLSUBMIT_HPARAMS_H
#define PL_LAUNCHER_PLSUBMIT_HPARAMS_H

#include "launcher/plsubmit/grid.h"

/* True if a program's name or path is pltrain's. */
bool pl_hparams_is_pltrain(const char *program);

/* True if `pltrain` finds a module of this name and can load it. */
bool pl_hparams_is_module(const char *name, const char *pltrain);

/* Runs "pltrain MODULE --list-hparams" with the values of all axes. pltrain checks the names of
 * options and hyper-parameters, and the range of each value; a repeated option counts last. Where
 * options stand before the module, only the first 64 values of each axis are tried.
 * argv         the program with its placeholders, NULL-terminated
 * pltrain      path of the pltrain that checks; without it nothing is checked
 * ret_warning  pltrain cannot check here, for instance without a library of the module, or argv[0]
 * is another program than the pltrain that checks, which refuses; NULL: neither. The caller frees
 * it. Returns 0, -EINVAL (err has pltrain's own text), -ENOENT (the same: there is no such module,
 * or its file is none), -ENOMEM. */
int pl_hparams_check(const struct pl_grid *grid,
                     char *const *argv,
                     const char *pltrain,
                     char **ret_warning,
                     struct pl_error *err);

#endif
