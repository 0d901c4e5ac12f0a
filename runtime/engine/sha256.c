/* SPDX-License-Identifier: MIT */
#include "runtime/engine/sha256.h"

#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static void compress(uint32_t h[8], const uint8_t *p)
{
    uint32_t w[64], s[8];

    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];

        w[i] = w[i - 16] + w[i - 7] + (rotr(a, 7) ^ rotr(a, 18) ^ (a >> 3)) +
               (rotr(b, 17) ^ rotr(b, 19) ^ (b >> 10));
    }
    memcpy(s, h, sizeof(s));
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = s[7] + (rotr(s[4], 6) ^ rotr(s[4], 11) ^ rotr(s[4], 25)) +
                      ((s[4] & s[5]) ^ (~s[4] & s[6])) + K[i] + w[i];
        uint32_t t2 = (rotr(s[0], 2) ^ rotr(s[0], 13) ^ rotr(s[0], 22)) +
                      ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));

        memmove(s + 1, s, 7 * sizeof(*s));
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++)
        h[i] += s[i];
}

void pl_sha256_init(struct pl_sha256 *sha)
{
    *sha = (struct pl_sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                    0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void pl_sha256_add(struct pl_sha256 *sha, const void *data, size_t len)
{
    const uint8_t *p = data;
    size_t have = sha->len % 64;

    sha->len += len;
    if (have) {
        size_t take = PL_MIN(len, 64 - have);

        memcpy(sha->block + have, p, take);
        p += take;
        len -= take;
        if (have + take < 64)
            return;
        compress(sha->h, sha->block);
    }
    for (; len >= 64; p += 64, len -= 64)
        compress(sha->h, p);
    if (len)
        memcpy(sha->block, p, len);
}

void pl_sha256_final(struct pl_sha256 *sha, uint8_t ret[PL_SHA256_BYTES])
{
    uint64_t bits = sha->len * 8;
    uint8_t pad[72] = {0x80};
    size_t n = 64 - (sha->len + 8) % 64;

    for (int i = 0; i < 8; i++)
        pad[n + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
    pl_sha256_add(sha, pad, n + 8);
    for (int i = 0; i < 32; i++)
        ret[i] = (uint8_t)(sha->h[i / 4] >> (24 - 8 * (i % 4)));
}

void pl_hmac_sha256(
    const void *key, size_t key_len, const void *data, size_t len, uint8_t ret[PL_SHA256_BYTES])
{
    uint8_t block[64] = {0}, pad[64];
    struct pl_sha256 sha;

    if (key_len > sizeof(block)) {
        pl_sha256_init(&sha);
        pl_sha256_add(&sha, key, key_len);
        pl_sha256_final(&sha, block);
    } else {
        memcpy(block, key, key_len);
    }
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] = block[i] ^ 0x36;
    pl_sha256_init(&sha);
    pl_sha256_add(&sha, pad, sizeof(pad));
    pl_sha256_add(&sha, data, len);
    pl_sha256_final(&sha, ret);
    for (size_t i = 0; i < sizeof(pad); i++)
        pad[i] = block[i] ^ 0x5c;
    pl_sha256_init(&sha);
    pl_sha256_add(&sha, pad, sizeof(pad));
    pl_sha256_add(&sha, ret, PL_SHA256_BYTES);
    pl_sha256_final(&sha, ret);
}

bool pl_bytes_equal(const void *a, const void *b, size_t len)
{
    const uint8_t *x = a, *y = b;
    uint8_t diff = 0;

    for (size_t i = 0; i < len; i++)
        diff |= x[i] ^ y[i];
    return diff == 0;
}
