/* SPDX-License-Identifier: MIT */
/* .npy files, random numbers, SHA-256 and hyper-parameters. */
#include "kernels/kernels.h"
#include "runtime/engine/data/npy.h"
#include "runtime/engine/util/hparam.h"
#include "runtime/engine/util/rng_private.h"
#include "runtime/engine/util/sha256_private.h"
#include "runtime/engine/util/xxh64.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A file of version 1.0 with this header text; returns its length. */
static size_t make_npy(char *file, const char *header, const void *data, size_t bytes)
{
    size_t len = strlen(header);

    memcpy(file, "\x93NUMPY\x01\x00", 8);
    file[8] = (char)(len & 255);
    file[9] = (char)(len >> 8);
    memcpy(file + 10, header, len);
    memcpy(file + 10 + len, data, bytes);
    return 10 + len + bytes;
}

static void test_npy_reads_what_numpy_writes(void **state)
{
    static const int32_t data[] = {1, -2, 3, 4, 5, 6};
    static const int64_t wide[] = {INT32_MIN, 5};
    struct plume_array a;
    int32_t second;
    char file[512];
    size_t len;

    len = make_npy(file, "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }   \n", data,
                   sizeof(data));
    assert_int_equal(pl_npy_parse(file, len, &a, NULL), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(a.rank, 2);
    assert_int_equal(a.shape[0], 3);
    assert_int_equal(a.shape[1], 2);
    assert_int_equal(a.count, 6);
    memcpy(&second, (const char *)a.data + 4, 4);
    assert_int_equal(second, -2);
    len = make_npy(file, "{\"shape\":(6,),\"fortran_order\":False,\"descr\":\"|u1\"}", data, 6);
    assert_int_equal(pl_npy_parse(file, len, &a, NULL), 0);
    assert_int_equal(a.rank, 1);
    len = make_npy(file, "{'descr': '<f8', 'fortran_order': False, 'shape': (), }\n", data, 8);
    assert_int_equal(pl_npy_parse(file, len, &a, NULL), 0);
    assert_int_equal(a.rank, 0);
    assert_int_equal(a.count, 1);
    len = make_npy(file, "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1)}", wide, 16);
    assert_int_equal(pl_npy_parse(file, len, &a, NULL), 0);
    assert_int_equal(a.dtype, PLUME_I32);
    assert_int_equal(a.stride, 4);
    assert_int_equal(((const int32_t *)a.data)[0], INT32_MIN);
    assert_int_equal(((const int32_t *)a.data)[1], 5);
    pl_array_close(&a);
    len = make_npy(file, "{'descr': '<u2', 'fortran_order': False, 'shape': (2, )}", data, 4);
    assert_int_equal(pl_npy_parse(file, len, &a, NULL), 0);
    assert_int_equal(a.dtype, PLUME_U16);
}

static void test_npy_refuses(void **state)
{
    static const struct {
        const char *header, *word;
        int code;
    } cases[] = {
        {"{'descr': '>i4', 'fortran_order': False, 'shape': (1,), }", "'>i4'", -ENOTSUP},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", "structured",
         -ENOTSUP},
        {"{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", "not fit into 32", -ERANGE},
        {"{'descr': '|u1', 'fortran_order': True, 'shape': (1,), }", "Fortran", -ENOTSUP},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (9,), }", "truncated", -EINVAL},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,2,3,4,5,6), }",
         "more than 5 dimensions", -ENOTSUP},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,), }",
         "malformed", -EINVAL},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296,4294967296), }",
         "malformed", -ERANGE},
        {"{'descr': '|u1', 'fortran_order': False}", "malformed", -EINVAL},
        {"{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (1,)}", "malformed",
         -EINVAL},
        {"{'descr': '|u1', 'fortran_order': 0, 'shape': (1,)}", "malformed", -EINVAL},
        {"{'descr': '|u1", "structured", -ENOTSUP},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (1,)} 1", "malformed", -EINVAL},
        {"", "malformed", -EINVAL},
    };
    struct plume_array a = {.rank = 77};
    struct pl_error err;
    char file[512];

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        size_t len = make_npy(file, cases[i].header, "12345678", 8);
        _cleanup_free_ char *exact = malloc(len); /* for ASan */

        memcpy(exact, file, len);
        err = (struct pl_error){0};
        assert_int_equal(pl_npy_parse(exact, len, &a, &err), cases[i].code);
        if (!strstr(err.text, cases[i].word))
            fail_msg("'%s' has no '%s'", err.text, cases[i].word);
        assert_int_equal(a.rank, 77);
    }
    assert_int_equal(pl_npy_parse("PK\3\4.......", 11, &a, &err), -EINVAL);
    assert_int_equal(pl_npy_parse("\x93NUMPY\x01\x00\xff\xff", 10, &a, &err), -EINVAL);
    assert_int_equal(pl_npy_parse("\x93NUMPY\x09\x00\x01\x00x", 11, &a, &err), -ENOTSUP);
}

static void test_rng_uniforms(void **state)
{
    struct pl_rng one, many;
    double x[33];

    pl_rng_init(&one, 5, 6);
    many = one;
    for (size_t n = 0; n <= PL_COUNT(x); n += 11) {
        pl_rng_uniforms(&many, n, x);
        for (size_t i = 0; i < n; i++)
            assert_true(x[i] == pl_rng_uniform(&one));
    }
    assert_memory_equal(&one, &many, sizeof(one));
}

static void test_rng(void **state)
{
    struct pl_rng rng;
    double mean = 0, square = 0;
    size_t count[7] = {0};

    pl_rng_init(&rng, 1, 2);
    for (int i = 0; i < 70000; i++) {
        double x = pl_rng_normal(&rng), u = pl_rng_uniform(&rng);

        assert_true(u >= 0 && u < 1);
        mean += x / 70000;
        square += x * x / 70000;
        count[pl_rng_below(&rng, 7)]++;
    }
    /* Six standard deviations of 70000 draws: 1/sqrt(70000) = 0.0038. */
    assert_true(fabs(mean) < 0.023 && fabs(square - 1) < 0.033);
    for (size_t i = 0; i < 7; i++)
        assert_true(count[i] > 9400 && count[i] < 10600);
}

/* By the C library, within some ulp: a draw is a product of four rounded factors. */
static double box_muller(const double *u)
{
    return sqrt(-2 * log(1 - u[0])) * cos(6.28318530717958647693 * u[1]);
}

/* Each level has the bits of the plain one, in each place of a vector, for random and extreme
 * numbers. */
static void test_rng_normals_by_level(void **state)
{
    static const double extremes[] = {
        0,     0x1p-53,    0x1p-52,       0.125, 0.25, 0x1p-2 + 0x1p-53,
        0.375, 0.5,        0.5 - 0x1p-53, 0.625, 0.75, 0.75 - 0x1p-53,
        0.875, 1 - 0x1p-53};
    const size_t n_extremes = PL_COUNT(extremes) * PL_COUNT(extremes), n = 30000;
    _cleanup_free_ double *u = calloc(2 * n, sizeof(*u)), *any = calloc(n, sizeof(*any));
    _cleanup_free_ double *x = calloc(n, sizeof(*x));
    struct pl_rng rng;

    pl_rng_init(&rng, 3, 4);
    pl_rng_uniforms(&rng, 2 * n, u);
    for (size_t i = 0; i < n_extremes; i++) {
        u[2 * i] = extremes[i % PL_COUNT(extremes)];
        u[2 * i + 1] = extremes[i / PL_COUNT(extremes)];
    }
    assert_true(pl_rng_box_muller(0, u, n, any));
    for (size_t i = 0; i < n; i++) {
        double want = box_muller(u + 2 * i);

        if (!(fabs(any[i] - want) <= 1e-15 * fabs(want) + 1e-25))
            fail_msg("of %a and %a: %a, not %a", u[2 * i], u[2 * i + 1], any[i], want);
    }
    for (unsigned level = 1; level < PL_RNG_LEVELS; level++)
        for (size_t at = 0, len; at < n; at += len) {
            len = PL_MIN(pl_rng_below(&rng, 40), n - at);
            if (!pl_rng_box_muller(level, u + 2 * at, len, x + at))
                break; /* not this processor's */
            assert_memory_equal(x + at, any + at, len * sizeof(*x));
        }
}

/* The same numbers, one by one or many, on any machine. */
static void test_rng_normals_repeat(void **state)
{
    struct pl_rng one, many;
    double x[700];

    pl_rng_init(&one, 5, 6);
    many = one;
    for (size_t n = 0; n <= PL_COUNT(x); n += 175) {
        pl_rng_normals(&many, n, x);
        for (size_t i = 0; i < n; i++)
            assert_true(x[i] == pl_rng_normal(&one));
    }
    assert_memory_equal(&one, &many, sizeof(one));
    pl_rng_init(&one, 7, 8);
    pl_rng_normals(&one, PL_COUNT(x), x);
    assert_int_equal(pl_xxh64(x, sizeof(x)), 0x1f3373252e816cd1);
}

/* The implementation for this processor agrees with the portable one. */
static void test_sha256_compress_any(void **state)
{
    uint8_t bytes[64 * 5];
    struct pl_sha256 sha, any;

    pl_sha256_init(&sha);
    any = sha;
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * i * 7 + i);
    for (size_t blocks = 0; blocks <= 5; blocks++) {
        pl_sha256_add(&sha, bytes, 64 * blocks);
        pl_sha256_compress_any(any.h, bytes, blocks);
        assert_memory_equal(sha.h, any.h, sizeof(any.h));
    }
}

static void hex(const uint8_t *digest, char *ret)
{
    for (size_t i = 0; i < PL_SHA256_BYTES; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

/* FIPS 180-4's examples, and RFC 4231's cases 2 and 6. */
static void test_sha256(void **state)
{
    uint8_t digest[PL_SHA256_BYTES], key[131];
    struct pl_sha256 sha;
    char text[65];

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, "a", 1);
    pl_sha256_add(&sha, "bc", 2);
    pl_sha256_final(&sha, digest);
    hex(digest, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    pl_sha256_init(&sha);
    for (int i = 0; i < 1000; i++) {
        char a[1000];

        memset(a, 'a', sizeof(a));
        pl_sha256_add(&sha, a, (size_t)i);
        pl_sha256_add(&sha, a, (size_t)(1000 - i));
    }
    pl_sha256_final(&sha, digest);
    hex(digest, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    pl_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest);
    hex(digest, text);
    assert_string_equal(text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    pl_hmac_sha256(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                   digest);
    hex(digest, text);
    assert_string_equal(text, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    assert_true(pl_bytes_equal("abc", "abd", 2));
    assert_false(pl_bytes_equal("abc", "abd", 3));
}

static void test_hparams(void **state)
{
    static const struct plume_hparam table[] = {
        {"hidden", "64", 1, 100, 1, "units"},
        {"lr", "0.5", 0, 1, 0, NULL},
        {0},
    };
    static const struct plume_hparam bad[] = {{"a b", "1", 0, 1, 0, NULL}, {0}};
    struct pl_error err = {0};
    struct pl_hparams h;

    assert_int_equal(pl_hparams_init(&h, table, NULL), 0);
    assert_true(pl_hparams_value(&h, "lr") == 0.5);
    assert_true(pl_hparams_value(&h, "momentum") == 0);
    assert_int_equal(pl_hparams_set(&h, "hidden=7", NULL), 0);
    assert_true(pl_hparams_value(&h, "hidden") == 7);
    assert_int_equal(pl_hparams_set(&h, "hiden=7", &err), -ENOENT);
    assert_string_equal(err.text, "unknown hyper-parameter 'hiden': did you mean hidden?");
    assert_int_equal(pl_hparams_set(&h, "layers=7", &err), -ENOENT);
    assert_string_equal(err.text, "unknown hyper-parameter 'layers': this module has lr, momentum, "
                                  "weight_decay, batch_size, epochs, hidden");
    assert_int_equal(pl_hparams_set(&h, "batch-size=3", NULL), 0); /* '-' for '_' */
    assert_true(pl_hparams_value(&h, "batch_size") == 3);
    assert_int_equal(pl_hparams_set(&h, "hidden", &err), -EINVAL);
    assert_int_equal(pl_hparams_set(&h, "hidden=", &err), -EINVAL);
    assert_int_equal(pl_hparams_set(&h, "hidden=1.5", &err), -EINVAL);
    assert_int_equal(pl_hparams_set(&h, "hidden=101", &err), -ERANGE);
    assert_int_equal(pl_hparams_set(&h, "lr=nan", &err), -EINVAL);
    assert_int_equal(pl_hparams_set(&h, "lr=1e-3x", &err), -EINVAL);
    assert_true(pl_hparams_value(&h, "hidden") == 7);
    pl_hparams_finish(&h);
    assert_int_equal(pl_hparams_init(&h, bad, NULL), -EINVAL);
}

static void test_threads_follow_affinity_and_environment(void **state)
{
    cpu_set_t all, one;
    unsigned n;

    unsetenv("OMP_NUM_THREADS");
    n = pl_threads_available();
    assert_in_range(n, 1, sysconf(_SC_NPROCESSORS_ONLN));
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(pl_threads_available(), 1);
    setenv("OMP_NUM_THREADS", "4096", 1);
    assert_int_equal(pl_threads_available(), n);
    setenv("OMP_NUM_THREADS", "many", 1);
    assert_int_equal(pl_threads_available(), n);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    assert_int_equal(pl_threads_available(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof(all), &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy_reads_what_numpy_writes),
        cmocka_unit_test(test_npy_refuses),
        cmocka_unit_test(test_rng),
        cmocka_unit_test(test_rng_normals_by_level),
        cmocka_unit_test(test_rng_normals_repeat),
        cmocka_unit_test(test_rng_uniforms),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_sha256_compress_any),
        cmocka_unit_test(test_hparams),
        cmocka_unit_test(test_threads_follow_affinity_and_environment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
