/* SPDX-License-Identifier: MIT */
/* Arguments that all optimizer updates share, twice: for ref and for the backend under test. */
#ifndef PL_TESTS_KERNELS_UPDATE_H
#define PL_TESTS_KERNELS_UPDATE_H

#include "tests/kernels/check.h"

#include <math.h>

struct update_case {
    struct pl_update ref, got;
    void *ref_mirrors[2], *got_mirrors[2];
};

static inline void update_setup(struct update_case *c, size_t n, enum fill fill)
{
    float *param = check_floats(n, fill), *grad = check_floats(n, fill);
    float *copy = check_floats((n + 1) / 2, FILL_ZERO);
    double *factor = check_doubles(1);

    c->ref = (struct pl_update){
        .n = n,
        .factor = check_random(2) ? 0.3 : 1,
        .factor_at = check_random(2) ? factor : NULL,
        .clip = check_random(2) ? 0.25 : INFINITY,
        .grad = grad,
        .param = param,
        .half = check_storage() == PL_REAL_F32 ? (enum pl_half)check_random(3) : PL_HALF_NONE,
        .rounded = check_random(2),
    };
    c->got = c->ref;
    c->got.param = check_copy(param, n);
    if (c->ref.half != PL_HALF_NONE) {
        c->ref.copy = (uint16_t *)(void *)copy;
        c->got.copy = (uint16_t *)(void *)check_copy(copy, (n + 1) / 2);
    }
    c->ref.n_mirrors = c->got.n_mirrors = check_host() ? (unsigned)check_random(3) : 0;
    c->ref.mirrors = c->ref_mirrors;
    c->got.mirrors = c->got_mirrors;
    for (unsigned i = 0; i < c->ref.n_mirrors; i++) {
        c->ref_mirrors[i] = check_floats(n, FILL_ZERO);
        c->got_mirrors[i] = check_floats(n, FILL_ZERO);
    }
}

static inline void update_check(const struct update_case *c)
{
    check_same("param", c->got.param, c->ref.param, c->ref.n);
    for (unsigned i = 0; i < c->ref.n_mirrors; i++) {
        check_same("ref's mirror", c->ref_mirrors[i], c->ref.param, c->ref.n);
        check_same("mirror", c->got_mirrors[i], c->ref.param, c->ref.n);
    }
    for (size_t i = 0; c->ref.copy && i < c->ref.n; i++) {
        float got = pl_f32_of_half(c->ref.half, c->got.copy[i]);
        float want = pl_f32_of_half(c->ref.half, c->ref.copy[i]);

        check_same("copy", &got, &want, 1);
        if (c->ref.rounded)
            check_same("rounded", &((float *)c->ref.param)[i], &want, 1);
    }
}

#endif
