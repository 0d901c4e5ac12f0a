/* SPDX-License-Identifier: MIT */
/* Random numbers that are the same on every machine: xoshiro256** (Blackman and Vigna 2018,
 * prng.di.unimi.it), seeded through splitmix64. Not for secrets. */
#ifndef PL_RUNTIME_ENGINE_UTIL_RNG_H
#define PL_RUNTIME_ENGINE_UTIL_RNG_H

#include "common/base/macros.h"

struct pl_rng {
    uint64_t s[4];
};

/* Streams of one seed are independent. */
void pl_rng_init(struct pl_rng *rng, uint64_t seed, uint64_t stream);
/* Derives the seed of one stream of a seed. */
uint64_t pl_rng_seed(uint64_t seed, uint64_t stream);
uint64_t pl_rng_u64(struct pl_rng *rng);
uint64_t pl_rng_below(struct pl_rng *rng, uint64_t limit); /* [0, limit), unbiased; limit > 0 */
double pl_rng_uniform(struct pl_rng *rng);                 /* [0, 1), 53 bits */
void pl_rng_uniforms(struct pl_rng *rng, size_t n, double *ret); /* n of them */
double pl_rng_normal(struct pl_rng *rng); /* mean 0, variance 1 (Box and Muller) */
void pl_rng_normals(struct pl_rng *rng, size_t n, double *ret); /* n of them */

#endif
