/* SPDX-License-Identifier: MIT */
/* Normal numbers by Box and Muller (1958), in vectors. Logarithm and cosine are computed here, by
 * additions, products, quotients and roots that IEEE 754 rounds in one way: the numbers have the
 * same bits on every machine, whatever its vectors and its C library. The polynomials are those of
 * fdlibm (Sun Microsystems 1993: e_log.c, k_sin.c, k_cos.c). */
#include "runtime/engine/util/rng_private.h"

#include <math.h>
#include <string.h>

#define BLOCK 256 /* numbers made at a time */

#define PL_INLINE static inline __attribute__((always_inline))

PL_INLINE uint64_t bits_of(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

PL_INLINE double of_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* The logarithm of a normal x > 0, within 1 ulp: x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)). */
PL_INLINE double log_of(double x)
{
    const uint64_t one = 0x3ff0000000000000u, root = 0x3fe6a09e667f3bcdu; /* sqrt(1/2) */
    const double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    uint64_t bits = bits_of(x) + (one - root);
    /* 2^52 + an integer has that integer in its low bits. */
    double k = of_bits(bits >> 52 | 0x4330000000000000u) - (0x1p52 + 1023);
    double f = of_bits((bits & 0x000fffffffffffffu) + root) - 1;
    double s = f / (2 + f), z = s * s, w = z * z, half = 0.5 * f * f;
    double odd = 2.222219843214978396e-01 + w * 1.531383769920937332e-01;
    double even = 1.818357216161805012e-01 + w * 1.479819860511658591e-01;
    double r;

    odd = w * (3.999999999940941908e-01 + w * odd);
    even = z * (6.666666666666735130e-01 + w * (2.857142874366239149e-01 + w * even));
    r = even + odd;
    return k * ln2_high - ((half - (s * (half + r) + k * ln2_low)) - f);
}

/* The cosine of x in [0, 2 pi], within 1 ulp: x = n pi/2 + r, |r| <= pi/4. */
PL_INLINE double cos_of(double x)
{
    const double magic =
        0x1.8p52; /* adding it rounds to an integer, which is in the low bits then */
    const double half_pi = 1.57079632673412561417e+00, half_pi_low = 6.07710050650619224932e-11;
    double shifted = x * 6.36619772367581382433e-01 + magic, n = shifted - magic;
    double r = x - n * half_pi - n * half_pi_low, z = r * r, half = 0.5 * z, one = 1 - half;
    uint64_t quarter = bits_of(shifted);
    double s, c;

    s = -2.50507602534068634195e-08 + z * 1.58969099521155010221e-10;
    s = -1.98412698298579493134e-04 + z * (2.75573137070700676789e-06 + z * s);
    s = -1.66666666666666324348e-01 + z * (8.33333333332248946124e-03 + z * s);
    s = r + r * z * s;
    c = 2.08757232129817482790e-09 + z * -1.13596475577881948265e-11;
    c = 2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 + z * c);
    c = 4.16666666666666019037e-02 + z * (-1.38888888888741095749e-03 + z * c);
    c = one + (((1 - one) - half) + z * z * c);
    return of_bits(bits_of(quarter & 1 ? s : c) ^ (((quarter + 1) & 2) << 62));
}

PL_INLINE void box_muller(const double *restrict u, size_t n, double *restrict ret)
{
    for (size_t i = 0; i < n; i++)
        ret[i] = sqrt(-2 * log_of(1 - u[2 * i])) * cos_of(6.28318530717958647693 * u[2 * i + 1]);
}

static void box_muller_any(const double *u, size_t n, double *ret)
{
    box_muller(u, n, ret);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void box_muller_avx2(const double *u, size_t n, double *ret)
{
    box_muller(u, n, ret);
}

__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
box_muller_avx512(const double *u, size_t n, double *ret)
{
    box_muller(u, n, ret);
}

static unsigned best_level(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return 2;
    return __builtin_cpu_supports("avx2") ? 1 : 0;
}
#else
#define box_muller_avx2 box_muller_any
#define box_muller_avx512 box_muller_any

static unsigned best_level(void)
{
    return 0;
}
#endif

bool pl_rng_box_muller(unsigned level, const double *u, size_t n, double *ret)
{
    static void (*const levels[PL_RNG_LEVELS])(const double *, size_t, double *) = {
        box_muller_any, box_muller_avx2, box_muller_avx512};

    if (level > best_level())
        return false;
    levels[level](u, n, ret);
    return true;
}

void pl_rng_normals(struct pl_rng *rng, size_t n, double *ret)
{
    double u[2 * BLOCK];
    unsigned level = best_level();

    for (size_t at = 0, part; at < n; at += part) {
        part = PL_MIN(n - at, (size_t)BLOCK);
        pl_rng_uniforms(rng, 2 * part, u);
        pl_rng_box_muller(level, u, part, ret + at);
    }
}

double pl_rng_normal(struct pl_rng *rng)
{
    double x;

    pl_rng_normals(rng, 1, &x);
    return x;
}
