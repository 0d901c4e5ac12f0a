/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/rng.h"

#include <string.h>

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = (*x += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void pl_rng_init(struct pl_rng *rng, uint64_t seed, uint64_t stream)
{
    uint64_t x = seed;

    x = splitmix(&x) ^ stream;
    for (size_t i = 0; i < PL_COUNT(rng->s); i++)
        rng->s[i] = splitmix(&x);
}

uint64_t pl_rng_seed(uint64_t seed, uint64_t stream)
{
    struct pl_rng rng;

    pl_rng_init(&rng, seed, stream);
    return pl_rng_u64(&rng);
}

static uint64_t rotl(uint64_t x, int k)
{
    return (x << k) | (x >> (64 - k));
}

static inline uint64_t next(uint64_t s[4])
{
    uint64_t result = rotl(s[1] * 5, 7) * 9, t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t pl_rng_u64(struct pl_rng *rng)
{
    return next(rng->s);
}

uint64_t pl_rng_below(struct pl_rng *rng, uint64_t limit)
{
    uint64_t reject = -limit % limit, x; /* 2^64 mod limit: numbers below it would be biased */

    do
        x = pl_rng_u64(rng);
    while (x < reject);
    return x % limit;
}

double pl_rng_uniform(struct pl_rng *rng)
{
    return (double)(pl_rng_u64(rng) >> 11) * 0x1p-53;
}

void pl_rng_uniforms(struct pl_rng *rng, size_t n, double *ret)
{
    uint64_t s[4];

    memcpy(s, rng->s, sizeof(s)); /* stays in registers */
    for (size_t i = 0; i < n; i++)
        ret[i] = (double)(int64_t)(next(s) >> 11) * 0x1p-53;
    memcpy(rng->s, s, sizeof(s));
}
