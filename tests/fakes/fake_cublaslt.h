/* SPDX-License-Identifier: MIT */
/* A cublasLt for tests of its callers: it does synchronously, in plain loops over host memory, what
 * NVIDIA's documentation says of the descriptors, and fails the test if they break a rule of it. */
#ifndef PL_TESTS_FAKES_FAKE_CUBLASLT_H
#define PL_TESTS_FAKES_FAKE_CUBLASLT_H

#include <stdbool.h>

struct fake_lt {
    bool missing;        /* there is no library */
    bool no_algorithm;   /* the heuristics find none ... */
    bool no_epilogue;    /* ... for any epilogue */
    bool not_supported;  /* returned by the product itself */
    bool broken;         /* it fails */
    unsigned heuristics; /* times asked */
    unsigned products;   /* done */
    unsigned handles;    /* alive */
    unsigned tf32;       /* products that allowed it */
};
extern struct fake_lt fake_lt;

#endif
