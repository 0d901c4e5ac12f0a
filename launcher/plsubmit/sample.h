/* SPDX-License-Identifier: MIT */
/* Random search: N draws of values for some axes. */
#ifndef PL_LAUNCHER_PLSUBMIT_SAMPLE_H
#define PL_LAUNCHER_PLSUBMIT_SAMPLE_H

#include "launcher/plsubmit/grid.h"

/* Adds an axis for each "NAME=DISTRIBUTION" of the list, with n values that belong together as
 * those of zipped axes do: trial i of the product has draw i of all of them. int(LO,HI)       a
 * whole number, LO and HI included float(LO,HI)     a number, evenly distributed log(LO,HI)       a
 * number whose logarithm is evenly distributed choice(A,B,...)  one of these values, which are
 * written as those of pl_grid_add() No two draws are equal. The draws depend on the list and the
 * seed only, and never change: numbers are made by splitmix64 (Steele et al. 2014,
 * doi 10.1145/2660193.2660195) from the seed and the number of the attempt, and rounded to 15
 * digits. list     NULL-terminated, not empty Returns 0, -EINVAL (bad text; fewer different draws
 * than n exist), -ENOMEM. */
int pl_sample_add(
    struct pl_grid *grid, char *const *list, unsigned n, uint64_t seed, struct pl_error *err);

#endif
