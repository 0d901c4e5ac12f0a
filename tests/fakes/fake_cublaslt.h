/* SPDX-License-Identifier: MIT */
/* A cublasLt for tests of the code that calls it: it does, in plain loops over the host's memory,
 * what NVIDIA's documentation says of the descriptors it is given, at once, and fails the test
 * where they break a rule of it. */
#ifndef PL_TESTS_FAKES_FAKE_CUBLASLT_H
#define PL_TESTS_FAKES_FAKE_CUBLASLT_H

#include <stdbool.h>

struct fake_lt {
    bool no_algorithm;   /* the heuristics find none ... */
    bool no_epilogue;    /* ... for any epilogue */
    bool not_supported;  /* the product itself says so */
    bool broken;         /* it fails */
    unsigned heuristics; /* times asked */
    unsigned products;   /* done */
    unsigned handles;    /* alive */
    unsigned tf32;       /* products that allowed it */
};
extern struct fake_lt fake_lt;

#endif
