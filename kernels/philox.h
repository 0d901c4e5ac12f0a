/* SPDX-License-Identifier: MIT */
/* Philox4x32-10, a counter-based generator: numbers from a key and a counter, without state
 * (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11). */
#ifndef PL_KERNELS_PHILOX_H
#define PL_KERNELS_PHILOX_H

#include "kernels/anywhere.h"

#include <math.h>
#include <stdint.h>

PL_ANYWHERE static inline void pl_philox(uint64_t key, uint64_t low, uint64_t high, uint32_t ret[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32);
    uint32_t c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);

    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

/* Number k of the four of a counter, as a random number of its kind: see pl_random_args. uniform:
 * in [0, 1) with 24 bits, which f32 holds. */
PL_ANYWHERE static inline double pl_random_uniform(const uint32_t number[4], unsigned k)
{
    return (double)(number[k] >> 8) * 0x1p-24;
}

/* p in [0, 1], both included. */
PL_ANYWHERE static inline double pl_random_bernoulli(const uint32_t number[4], unsigned k, double p)
{
    return (double)number[k] < p * 0x1p32 ? 1 : 0;
}

/* Of mean 0 and deviation 1: numbers 0 and 1 make two, 2 and 3 the other two (Box and Muller 1958).
 */
PL_ANYWHERE static inline double pl_random_normal(const uint32_t number[4], unsigned k)
{
    double length = sqrt(-2 * log(((double)number[k & 2] + 1) * 0x1p-32));
    double angle = 6.283185307179586 * ((double)number[k | 1] * 0x1p-32);

    return length * (k & 1 ? sin(angle) : cos(angle));
}

/* The threshold below which a number means dropped: p of all numbers, p in [0, 1). */
static inline uint32_t pl_dropout_limit(double p)
{
    return (uint32_t)(p * 4294967296.0);
}

#endif
