/* SPDX-License-Identifier: MIT */
/* Checks that the program's arguments use the axes of the grid. */
#ifndef PL_LAUNCHER_PLSUBMIT_AXES_H
#define PL_LAUNCHER_PLSUBMIT_AXES_H

#include "launcher/plsubmit/grid.h"

/* Looks for {NAME} in the arguments, and for what is not there.
 * argv        the program and its arguments, NULL-terminated
 * literal     names of --literal, whose {NAME} is the program's own; NULL or NULL-terminated
 * is_pltrain  the program does not read PLUME_PARAM_NAME
 * own_words   the arguments stand after "--": none of them can be meant for plsubmit
 * ret_unused  an axis that no argument uses although another one is used; NULL: none
 * ret_wrong   an argument, or all after its '=', that is {NAME} of no axis; or --grid, which comes
 *             after the program; NULL: none
 * Returns 0, -EINVAL ({NAME} is nearly an axis; an unused axis of pltrain; an axis has a name of
 * --literal), -ENOMEM. */
int pl_axes_check(const struct pl_grid *grid,
                  const char *const *argv,
                  char *const *literal,
                  bool is_pltrain,
                  bool own_words,
                  const char **ret_unused,
                  const char **ret_wrong,
                  struct pl_error *err);

#endif
