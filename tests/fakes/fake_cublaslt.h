/* SPDX-License-Identifier: MIT */
/* A cublasLt for tests of its callers: it does synchronously, in plain loops over host memory, what
 * NVIDIA's documentation says of the descriptors, and fails the test if they break a rule of it. */
#ifndef PL_TESTS_FAKES_FAKE_CUBLASLT_H
#define PL_TESTS_FAKES_FAKE_CUBLASLT_H

#include <stdbool.h>
#include <stdint.h>

#define FAKE_LT_ANSWERS 16

struct fake_lt {
    bool missing;        /* there is no library */
    bool no_algorithm;   /* the heuristics find none ... */
    bool no_epilogue;    /* ... for any epilogue */
    bool no_wide_bgrad;  /* ... for that of a bias' gradient where D is wider than A and B */
    bool no_descriptors; /* it does not know an attribute */
    bool not_supported;  /* returned by the product itself */
    bool broken;         /* it fails */
    unsigned heuristics; /* times asked, ... */
    unsigned asked;      /* the last time for so many */
    unsigned products;   /* done */
    unsigned handles;    /* alive */
    unsigned tf32;       /* products that allowed it */
    /* The heuristics know so many algorithms (0: one). A product takes as long by each, on the
     * clock `now`; 0: it is refused. last: who did the last one. */
    unsigned answers;
    unsigned ns[FAKE_LT_ANSWERS], last;
    unsigned cold;        /* so many products take half of the time */
    unsigned epilogue_ns; /* what an epilogue takes beside it; not that of a bias */
    uint64_t now;
    /* Time of a variant in percent; 0: 100. Of another order of the blocks, of clusters of this
     * shape, of so many parts of k, which need memory of their own. */
    bool no_variants; /* it checks none */
    unsigned swizzled, clusters[8], parts[8];
    uint64_t parts_bytes;
    unsigned checked; /* variants */
    struct fake_lt_variant {
        uint32_t swizzling, scheme;
        int32_t parts;
        uint16_t cluster;
    } last_variant;
};
extern struct fake_lt fake_lt;

/* Of a cublasLtMatmulAlgo_t that the fake has made. */
struct fake_lt_variant *fake_lt_variant_of(void *algo);

#endif
