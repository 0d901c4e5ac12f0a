/* SPDX-License-Identifier: MIT */
/* For tests. */
#ifndef PL_RUNTIME_ENGINE_UTIL_RNG_PRIVATE_H
#define PL_RUNTIME_ENGINE_UTIL_RNG_PRIVATE_H

#include "runtime/engine/util/rng.h"

#include <stdbool.h>

#define PL_RNG_LEVELS 3 /* of vectors: any processor's, AVX2, AVX-512 */

/* Makes ret[i] of the uniform numbers u[2 i] and u[2 i + 1], with the same bits at each level.
 * False if this processor does not have the level. */
bool pl_rng_box_muller(unsigned level, const double *u, size_t n, double *ret);

#endif
