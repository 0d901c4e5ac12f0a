/* SPDX-License-Identifier: MIT */
/* Products whose answers take times that a test gives, and a home for the choices. */
#ifndef PL_TESTS_UNIT_ENGINE_CUDA_CUBLASLT_CHOICES_H
#define PL_TESTS_UNIT_ENGINE_CUDA_CUBLASLT_CHOICES_H

#include "tests/unit/engine/cuda/cublaslt_fixture.h"

#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

/* A product of [m, k] and [k, 5] with its answers' times. Returns who has done it. */
static unsigned timed_product_of(size_t m, size_t k, bool add, const unsigned *ns, unsigned answers)
{
    static const uint8_t shift[ARRAYS];
    struct pl_matmul_args s = {.batch = 1,
                               .m = m,
                               .n = 5,
                               .k = k,
                               .a_row = k,
                               .b_row = 5,
                               .c_row = 5,
                               .scale = 1,
                               .add = add,
                               .a = array(1, 0, PL_REAL_F32, shift),
                               .b = array(1, 1, PL_REAL_F32, shift),
                               .c = array(1, 2, PL_REAL_F32, shift)};

    fake_lt.answers = answers;
    memset(fake_lt.ns, 0, sizeof(fake_lt.ns));
    memcpy(fake_lt.ns, ns, answers * sizeof(*ns));
    fill(PL_REAL_F32);
    table[PL_REAL_F32].matmul(&s);
    s.a = array(0, 0, PL_REAL_F32, shift);
    s.b = array(0, 1, PL_REAL_F32, shift);
    s.c = array(0, 2, PL_REAL_F32, shift);
    pl_kernels_ref(PL_REAL_F32)->matmul(&s);
    compare(PL_REAL_F32, 0, "timed");
    return fake_lt.last;
}

static unsigned timed_product(size_t m, bool add, const unsigned *ns, unsigned answers)
{
    return timed_product_of(m, 6, add, ns, answers);
}

static const unsigned third[] = {100, 0, 70, 80, 90, 90, 90, 90, 1};

#define CARD "card 1"

/* A home of its own with the choice for one product. `file`: where it is. */
static void new_home(char home[64], char file[192])
{
    char pattern[128];
    glob_t found;

    snprintf(home, 64, "/tmp/plume-test-XXXXXX");
    assert_non_null(mkdtemp(home));
    assert_int_equal(setenv("PLUME_HOME", home, 1), 0);
    start_timed(false, CARD);
    assert_int_equal(timed_product(4, false, third, 9), 2);
    end();
    snprintf(pattern, sizeof(pattern), "%s/gpu-products/*", home);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(file, 192, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void end_home(const char *home)
{
    char text[128];
    glob_t found;

    snprintf(text, sizeof(text), "%s/gpu-products/*", home);
    assert_int_equal(glob(text, 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++)
        assert_int_equal(unlink(found.gl_pathv[i]), 0);
    globfree(&found);
    snprintf(text, sizeof(text), "%s/gpu-products", home);
    assert_int_equal(rmdir(text), 0);
    assert_int_equal(rmdir(home), 0);
}

#endif
