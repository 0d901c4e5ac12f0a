/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"
#include "common/base/parse.h"
#include "kernels/pool/pool.h"
#include "tests/kernels/typed.h"
#include "tests/lib/today.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/random.h>

#ifdef PL_TEST_CUDA
#include "kernels/cuda/cuda.h"
#include "tests/cuda/emulator.h"
#endif

#define GUARD 64
#define GUARD_BYTE 0xa5
#define BUFFERS_MAX 48

static struct buffer {
    unsigned char *memory, *data;
    size_t bytes;
} buffers[BUFFERS_MAX];
static size_t n_buffers;
static uint64_t seed, state, checks;
static char current[256];
static const char *backend;
static enum pl_real storage; /* of the table that is tested */
static bool aligned;         /* the buffers of the case */
static bool any;             /* whether a table was tested */
static bool on_emulator;     /* that table */

static void PL_PRINTF(1, 2) give_up(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "%s: %s: ", backend, current);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nrepeat with PLUME_TEST_SEED=%llu\n", (unsigned long long)seed);
    exit(1);
}

void check_case(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(current, sizeof(current), fmt, ap);
    va_end(ap);
}

uint64_t check_random(uint64_t limit)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u); /* splitmix64 */

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % limit;
}

enum pl_real check_storage(void)
{
    return storage;
}

size_t check_many(size_t cpu, size_t emulated)
{
    size_t n = on_emulator ? emulated : cpu;

#ifdef __SANITIZE_ADDRESS__
    if (n > 1)
        n = PL_MAX(n / 5, (size_t)1);
#endif
    return n;
}

size_t check_step(void)
{
    return getenv("CHECK_SANITIZER") ? 7 : 1;
}

/* In half of the cases all buffers are 64-byte aligned: kernels may move several elements at once
 * only if all arrays are aligned. */
static void *buffer(size_t bytes, size_t element)
{
    size_t shift = check_random(64 / element) * element;
    struct buffer *b = &buffers[n_buffers++];

    if (n_buffers == 1)
        aligned = check_random(2);
    if (aligned)
        shift = 0;

    if (n_buffers > BUFFERS_MAX)
        give_up("too many buffers");
    *b = (struct buffer){.memory = aligned_alloc(64, (bytes + 2 * GUARD + 64 + 63) / 64 * 64),
                         .bytes = bytes};
    if (!b->memory)
        give_up("out of memory");
    memset(b->memory, GUARD_BYTE, bytes + 2 * GUARD + 64);
    b->data = b->memory + GUARD + shift;
    return b->data;
}

static float uniform(void)
{
    return (float)check_random(1 << 24) / (float)(1 << 23) - 1;
}

static float value(enum fill fill)
{
    static const float special[] = {NAN,      INFINITY, -INFINITY, 3.4e38f, -3.4e38f,
                                    1.2e-38f, 1e-45f,   0.0f,      -0.0f};

    switch (fill) {
    case FILL_ZERO:
        return check_random(2) ? 0.0f : -0.0f;
    case FILL_DENORM:
        return check_random(4) ? uniform() * 1e-39f : 0;
    case FILL_LARGE:
        return check_random(2) ? uniform() * CHECK_LARGE : uniform();
    case FILL_SPECIAL:
        return check_random(4) ? uniform() : special[check_random(PL_COUNT(special))];
    default:
        return uniform();
    }
}

float *check_floats(size_t n, enum fill fill)
{
    float *p = buffer(n * sizeof(*p), sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = typed_round(storage, value(fill));
    return p;
}

float *check_copy(const float *from, size_t n)
{
    float *p = buffer(n * sizeof(*p), sizeof(*p));

    memcpy(p, from, n * sizeof(*p));
    return p;
}

double *check_doubles(size_t n)
{
    double *p = buffer(n * sizeof(*p), sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = (double)check_random(1u << 30) / (1u << 29) - 1;
    return p;
}

int32_t *check_labels(size_t n, size_t classes)
{
    int32_t *p = buffer(n * sizeof(*p), sizeof(*p));

    for (size_t i = 0; i < n; i++)
        p[i] = (int32_t)check_random(classes);
    return p;
}

/* A 16-bit result is rounded once from numbers that differ slightly: the results may be neighbours.
 */
double check_rounding(double want)
{
    if (storage == PL_REAL_BF16)
        return 0x1p-7 * fabs(want) + 0x1p-133;
    return storage == PL_REAL_F16 ? 0x1p-10 * fabs(want) + 0x1p-24 : 0;
}

void check_close(const char *what, size_t i, double got, double want, double tolerance)
{
    checks++;
    tolerance += check_rounding(want);
    if (got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= tolerance)
        return;
    give_up("%s[%zu] is %.9g, not %.9g (difference %.3g, allowed %.3g)", what, i, got, want,
            fabs(got - want), tolerance);
}

void check_same(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        checks++;
        if (memcmp(&got[i], &want[i], sizeof(*got)) != 0 && !(isnan(got[i]) && isnan(want[i])))
            give_up("%s[%zu] is %.9g, not %.9g", what, i, got[i], want[i]);
    }
}

void check_gradient(const char *what,
                    double (*loss)(void *ctx),
                    void *ctx,
                    double *x,
                    size_t n,
                    const double *dx,
                    size_t terms)
{
    const double h = 6e-6;

    for (size_t i = 0; i < n; i++) {
        double at = x[i], up, down;

        x[i] = at + h;
        up = loss(ctx);
        x[i] = at - h;
        down = loss(ctx);
        x[i] = at;
        check_close(what, i, dx[i], (up - down) / (2 * h), 1e-8 * (double)(terms + 10));
    }
}

void check_threads(const char *what, void (*kernel)(void *args), void *args, float *out, size_t n)
{
    float *before = check_copy(out, n), *first = NULL;

    for (unsigned threads = 1; threads <= 3; threads++) {
        pl_pool_resize(threads);
        memcpy(out, before, n * sizeof(*out));
        kernel(args);
        if (first)
            check_same(what, out, first, n);
        else
            first = check_copy(out, n);
    }
    pl_pool_resize(1);
}

void check_end_case(void)
{
    for (size_t i = 0; i < n_buffers; i++) {
        struct buffer *b = &buffers[i];
        size_t total = b->bytes + 2 * GUARD + 64;

        for (size_t k = 0; k < total; k++)
            if ((b->memory + k < b->data || b->memory + k >= b->data + b->bytes) &&
                b->memory[k] != GUARD_BYTE)
                give_up("buffer %zu of %zu bytes: byte %td is written", i, b->bytes,
                        b->memory + k - b->data);
        free(b->memory);
    }
    n_buffers = 0;
}

extern const struct pl_kernels pl_cpu_v4_anywhere_table;

/* The backends that this machine can run, then NULL. Level 2 (AVX-512) has no checks by a sanitizer
 * (kernels/meson.build): "anywhere" has its code with them. */
static const struct pl_kernels *table(unsigned i)
{
    for (unsigned level = 0; level < (TODAY_ALL ? 3 : 2); level++)
        if (pl_kernels_cpu(level) && i-- == 0)
            return pl_kernels_cpu(level);
    return i == 0 ? &pl_cpu_v4_anywhere_table : NULL;
}

__attribute__((weak)) void check_gradients(const struct pl_kernels *f64) {}

__attribute__((weak)) bool check_card(void)
{
    return false;
}

/* The trace looks at kernels/cuda/ alone: the host's tables are those of every other build. */
#ifdef PL_EMULATOR_TRACE
#define HOST_TABLES false
#else
#define HOST_TABLES true
#endif

static bool on_host = true;

bool check_host(void)
{
    return on_host;
}

static jmp_buf not_there;

static void run(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    state = seed;
    checks = 0;
    backend = got->name;
    if (setjmp(not_there)) {
        printf("%s: not there yet\n", backend);
        return;
    }
    check_op(ref, got);
    any = true;
    printf("%s: %llu values agree (seed %llu)\n", backend, (unsigned long long)checks,
           (unsigned long long)seed);
}

#ifdef PL_TEST_CUDA
static void absent(const char *name)
{
    check_end_case();
    longjmp(not_there, 1);
}

/* Builds that look at accesses leave f16 out: bf16 has the same accesses, and the two types differ
 * in their numbers alone (kernels/cuda/types.cuh). */
#if defined(PL_EMULATOR_TRACE) || defined(__SANITIZE_ADDRESS__)
#define CUDA_REALS PL_REAL_F16
#else
#define CUDA_REALS (PL_REAL_F16 + 1)
#endif

/* kernels/cuda/, on the emulator or a card: see typed.h. */
static void run_cuda(void)
{
    for (int real = PL_REAL_F32; real < CUDA_REALS; real++) {
        if (real != PL_REAL_F32 && !today((uint64_t)real, 2))
            continue;
        const struct pl_kernels *ref =
            pl_kernels_ref(real == PL_REAL_F64 ? PL_REAL_F64 : PL_REAL_F32);
        const struct pl_kernels *got = pl_kernels_cuda((enum pl_real)real);

        pl_emu_seed(seed);
        on_emulator = true;
        storage = (enum pl_real)real;
        run(typed_table(TYPED_REF, ref, storage, absent),
            typed_table(TYPED_GOT, got, storage, absent));
    }
}
#endif

int main(void)
{
    const char *given = getenv("PLUME_TEST_SEED");
    int64_t number;

    if (given && pl_parse_int(given, 0, INT64_MAX, &number, NULL) == 0)
        seed = (uint64_t)number;
    else if (getrandom(&seed, sizeof(seed), 0) != sizeof(seed))
        return 1;
    seed >>= 1;
    if (given)
        seed = (uint64_t)number;
    pl_pool_resize(1);
    state = seed;
    if (HOST_TABLES && !check_card()) {
        backend = "ref/f64";
        check_gradients(pl_kernels_ref(PL_REAL_F64));
        for (unsigned i = 0; table(i); i++)
            run(pl_kernels_ref(PL_REAL_F32), table(i));
    }
#ifdef PL_TEST_CUDA
    on_host = false;
    run_cuda();
#endif
    return any ? 0 : 77;
}
