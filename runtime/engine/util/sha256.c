/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/sha256_private.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

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

/* One round. The callers rotate the roles of the eight words by the order of arguments. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                           \
    do {                                                                                           \
        uint32_t t = (h) + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) +                              \
                     (((e) & (f)) ^ (~(e) & (g))) + K[i] + w[i];                                   \
                                                                                                   \
        (d) += t;                                                                                  \
        (h) = t + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) +                                       \
              (((a) & (b)) ^ ((a) & (c)) ^ ((b) & (c)));                                           \
    } while (0)

void pl_sha256_compress_any(uint32_t state[8], const uint8_t *p, size_t blocks)
{
    for (; blocks > 0; blocks--, p += 64) {
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7], w[64];

        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
                   (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 64; i++) {
            uint32_t x = w[i - 15], y = w[i - 2];

            w[i] = w[i - 16] + w[i - 7] + (rotr(x, 7) ^ rotr(x, 18) ^ (x >> 3)) +
                   (rotr(y, 17) ^ rotr(y, 19) ^ (y >> 10));
        }
        for (int i = 0; i < 64; i += 8) {
            ROUND(a, b, c, d, e, f, g, h, i);
            ROUND(h, a, b, c, d, e, f, g, i + 1);
            ROUND(g, h, a, b, c, d, e, f, i + 2);
            ROUND(f, g, h, a, b, c, d, e, i + 3);
            ROUND(e, f, g, h, a, b, c, d, i + 4);
            ROUND(d, e, f, g, h, a, b, c, i + 5);
            ROUND(c, d, e, f, g, h, a, b, i + 6);
            ROUND(b, c, d, e, f, g, h, a, i + 7);
        }
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
        state[4] += e;
        state[5] += f;
        state[6] += g;
        state[7] += h;
    }
}

#if defined(__x86_64__)
/* Uses the processor's SHA extensions: Gulley et al., "Intel SHA Extensions", 2013. The state is
 * kept as ABEF and CDGH. A vector holds four words of the schedule; a pass does four rounds. */
__attribute__((target("sha,sse4.1,ssse3"))) static void
compress_sha(uint32_t state[8], const uint8_t *p, size_t blocks)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i cdab = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i efgh =
        _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);

    for (; blocks > 0; blocks--, p += 64) {
        __m128i w[4], abef_before = abef, cdgh_before = cdgh;

#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m128i k = _mm_loadu_si128((const __m128i *)(const void *)(K + 4 * i));

            if (i < 4) {
                w[i] = _mm_shuffle_epi8(
                    _mm_loadu_si128((const __m128i *)(const void *)(p + 16 * i)), swap);
            } else {
                __m128i last = w[(i + 3) % 4];

                w[i % 4] = _mm_sha256msg2_epu32(
                    _mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]),
                                  _mm_alignr_epi8(last, w[(i + 2) % 4], 4)),
                    last);
            }
            k = _mm_add_epi32(k, w[i % 4]);
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, k);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(k, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }
    cdab = _mm_shuffle_epi32(abef, 0x1b); /* holds feba here */
    efgh = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(cdab, efgh, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(efgh, cdab, 8));
}

static bool has_sha(void)
{
    static atomic_int known; /* 0 = unknown, 1 = no, 2 = yes */
    int answer = atomic_load_explicit(&known, memory_order_relaxed);
    unsigned a, b, c, d;

    if (!answer) {
        answer = 1;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA) &&
            __get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_1) && (c & bit_SSSE3))
            answer = 2;
        atomic_store_explicit(&known, answer, memory_order_relaxed);
    }
    return answer == 2;
}
#else
static bool has_sha(void)
{
    return false;
}

#define compress_sha pl_sha256_compress_any
#endif

static void compress(uint32_t state[8], const uint8_t *p, size_t blocks)
{
    if (has_sha())
        compress_sha(state, p, blocks);
    else
        pl_sha256_compress_any(state, p, blocks);
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
        compress(sha->h, sha->block, 1);
    }
    compress(sha->h, p, len / 64);
    if (len % 64)
        memcpy(sha->block, p + len / 64 * 64, len % 64);
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
