/* SPDX-License-Identifier: MIT */
/* Harness of the op tests: every backend (CPU levels; the CUDA tables of each type on the emulator,
 * by typed.h) against ref, on random and adversarial contents, odd
 * sizes and misaligned buffers, with guard bytes around each. The seed is printed and can be given
 * by PLUME_TEST_SEED. Idea: dav1d's checkasm. */
#ifndef PL_TESTS_KERNELS_CHECK_H
#define PL_TESTS_KERNELS_CHECK_H

#include "kernels/kernels.h"

#include <stdbool.h>

enum fill {
    FILL_RANDOM,  /* uniform in [-1, 1] */
    FILL_ZERO,    /* both zeros */
    FILL_DENORM,  /* numbers below the smallest normal one, and zeros */
    FILL_LARGE,   /* magnitudes up to CHECK_LARGE, mixed with small ones */
    FILL_SPECIAL, /* NaN, infinities, largest and smallest numbers among random ones */
    FILL_COUNT,
};

/* Products of two, summed a thousand times, stay finite. */
#define CHECK_LARGE 1e17f
/* Half a unit in the last place of 1.0f: the rounding error of one f32 operation. */
#define CHECK_EPS 5.96e-8

/* Sets the text that names the running case in messages. */
void check_case(const char *fmt, ...) PL_PRINTF(1, 2);

uint64_t check_random(uint64_t limit);

/* The type of the running table's arrays: what the case gives is rounded to it. */
enum pl_real check_storage(void);

/* True if the running table is one of the host's. */
bool check_host(void);

/* The number of cases, or their size: `cpu`, or `emulated` on the emulator, which is much slower;
 * its four tables and the seeds of other runs cover the rest. With AddressSanitizer a fifth of it.
 */
size_t check_many(size_t cpu, size_t emulated);

/* From one size to the next where all are tested: 1, or 7 under compute-sanitizer, where a case
 * takes some 20 times as long. */
size_t check_step(void);

/* n floats between guards, starting `shift` floats past a 64-byte boundary (0 to 15 at random).
 * Freed by check_end_case(). */
float *check_floats(size_t n, enum fill fill);
float *check_copy(const float *from, size_t n);
int32_t *check_labels(size_t n, size_t classes);

/* The allowed distance of two numbers near `want` after rounding to check_storage(); 0 except for
 * 16 bits. */
double check_rounding(double want);

/* Fails if |got - want| > tolerance; equal infinities and two NaNs are equal. Results of 16 bits
 * may also differ by check_rounding(want). */
void check_close(const char *what, size_t i, double got, double want, double tolerance);
/* Bit for bit, but for NaNs, of which any is as good as another. */
void check_same(const char *what, const float *got, const float *want, size_t n);

/* n doubles in [-1, 1]; as check_floats(). */
double *check_doubles(size_t n);

/* Compares dx [n] with the central differences of loss(ctx) for each element of x, which ctx uses.
 * The difference has two errors, h^2 of its formula and eps / h of its rounding, with a minimum
 * near h = 6e-6; with terms near 1 they stay below 1e-8 times `terms`, the number of terms in the
 * sum. A function with a kink (relu, max) needs x away from it: |x| > 1e-4 is enough. */
void check_gradient(const char *what,
                    double (*loss)(void *ctx),
                    void *ctx,
                    double *x,
                    size_t n,
                    const double *dx,
                    size_t terms);

/* Runs kernel(args) with 1, 2 and 3 threads; out [n] must come out with the same bits each time,
 * from the same contents. */
void check_threads(const char *what, void (*kernel)(void *args), void *args, float *out, size_t n);

/* True if this program is for a GPU (tests/gpu/card.c): it runs the CUDA tables only, and exits
 * with 77 and the reason on machines without a GPU. */
bool check_card(void);

/* Checks all guards and frees all buffers. */
void check_end_case(void);

/* The test of one op: called once for each backend this machine can run. */
void check_op(const struct pl_kernels *ref, const struct pl_kernels *got);

/* An op's test may define it: checks gradients of ref's f64 table by check_gradient(). Called once.
 */
void check_gradients(const struct pl_kernels *f64);

#endif
