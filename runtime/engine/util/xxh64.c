/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/xxh64.h"

#include <string.h>

#define PRIME1 0x9e3779b185ebca87u
#define PRIME2 0xc2b2ae3d27d4eb4fu
#define PRIME3 0x165667b19e3779f9u
#define PRIME4 0x85ebca77c2b2ae63u
#define PRIME5 0x27d4eb2f165667c5u

static uint64_t rotate(uint64_t x, int k)
{
    return x << k | x >> (64 - k);
}

static uint64_t word(const unsigned char *p, size_t bytes)
{
    uint64_t x = 0;

    for (size_t i = 0; i < bytes;
         i++) /* little-endian; compiles to a plain load on little-endian machines */
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

static uint64_t stir(uint64_t lane, uint64_t input)
{
    return rotate(lane + input * PRIME2, 31) * PRIME1;
}

static void stripe(struct pl_xxh64 *x, const unsigned char *p)
{
    for (size_t i = 0; i < 4; i++)
        x->lane[i] = stir(x->lane[i], word(p + 8 * i, 8));
}

void pl_xxh64_init(struct pl_xxh64 *x)
{
    *x = (struct pl_xxh64){.lane = {PRIME1 + PRIME2, PRIME2, 0, 0 - PRIME1}};
}

void pl_xxh64_add(struct pl_xxh64 *x, const void *data, size_t len)
{
    const unsigned char *p = data;
    size_t have = x->total % 32;

    if (len == 0)
        return;
    x->total += len;
    if (have && have + len >= 32) {
        memcpy(x->rest + have, p, 32 - have);
        stripe(x, x->rest);
        p += 32 - have;
        len -= 32 - have;
        have = 0;
    }
    if (!have)
        for (; len >= 32; p += 32, len -= 32)
            stripe(x, p);
    memcpy(x->rest + have, p, len);
}

static uint64_t merge(uint64_t hash, uint64_t lane)
{
    return (hash ^ stir(0, lane)) * PRIME1 + PRIME4;
}

uint64_t pl_xxh64_final(const struct pl_xxh64 *x)
{
    const unsigned char *p = x->rest, *end = p + x->total % 32;
    uint64_t hash = PRIME5;

    if (x->total >= 32) {
        hash = rotate(x->lane[0], 1) + rotate(x->lane[1], 7) + rotate(x->lane[2], 12) +
               rotate(x->lane[3], 18);
        for (size_t i = 0; i < 4; i++)
            hash = merge(hash, x->lane[i]);
    }
    hash += x->total;
    for (; end - p >= 8; p += 8)
        hash = rotate(hash ^ stir(0, word(p, 8)), 27) * PRIME1 + PRIME4;
    if (end - p >= 4) {
        hash = rotate(hash ^ word(p, 4) * PRIME1, 23) * PRIME2 + PRIME3;
        p += 4;
    }
    for (; p < end; p++)
        hash = rotate(hash ^ *p * PRIME5, 11) * PRIME1;
    hash = (hash ^ hash >> 33) * PRIME2;
    hash = (hash ^ hash >> 29) * PRIME3;
    return hash ^ hash >> 32;
}

uint64_t pl_xxh64(const void *data, size_t len)
{
    struct pl_xxh64 x;

    pl_xxh64_init(&x);
    pl_xxh64_add(&x, data, len);
    return pl_xxh64_final(&x);
}
