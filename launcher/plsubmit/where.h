/* SPDX-License-Identifier: MIT */
/* --where: conditions that choose trials of a grid, such as "layers * width <= 512 and opt !=
 * 'sgd'".
 *
 *   or        and ("or" and)*                            also ||
 *   and       not ("and" not)*                           also &&
 *   not       "not" not | comparison                     also !
 *   comparison  sum (("==" | "!=" | "<" | "<=" | ">" | ">=") sum)?
 *   sum       product (("+" | "-") product)*
 *   product   sign (("*" | "/" | "%") sign)*
 *   sign      "-" sign | NUMBER | 'TEXT' | "TEXT" | AXIS | {AXIS} | "(" or ")"
 *
 * An axis has the trial's value: a number if all of it is one. == and != compare numbers with
 * numbers and else texts; the others need numbers. A remainder has the divisor's sign, as in
 * Python. */
#ifndef PL_LAUNCHER_PLSUBMIT_WHERE_H
#define PL_LAUNCHER_PLSUBMIT_WHERE_H

#include "launcher/plsubmit/grid.h"

#define PL_WHERE_POINTS_MAX 10000000u /* of a grid that is looked at */

/* Keeps the trials of which all conditions are true, in their order; not more than grid->most.
 * exprs  NULL-terminated, at least one
 * -EINVAL (not of the form, no such axis, no number where one is needed, no trial left), -E2BIG,
 * -ENOMEM. */
int pl_where_apply(struct pl_grid *grid, char *const *exprs, struct pl_error *err);

#endif
