/* SPDX-License-Identifier: MIT */
/* A cuDNN for tests of its callers: it runs graphs synchronously, op by op, in plain loops over
 * host memory, from their descriptors alone. */
#ifndef PL_TESTS_FAKES_FAKE_CUDNN_H
#define PL_TESTS_FAKES_FAKE_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_DNN_ENGINES 40

struct fake_dnn {
    size_t version;                      /* as cudnnGetVersion() has it */
    unsigned engines;                    /* how many the heuristics name */
    int64_t first_engine;                /* its number, 0: 100 */
    int note[FAKE_DNN_ENGINES];          /* each one's numerical note, or -1 */
    int64_t workspace[FAKE_DNN_ENGINES]; /* bytes */
    unsigned ns[FAKE_DNN_ENGINES];       /* that a run takes */
    bool fails[FAKE_DNN_ENGINES];        /* its runs */
    uint64_t now;                        /* the sum of all runs' times */
    bool no_fusion;                      /* no engine for more than one op */
    bool no_squares;                     /* nor for 16 channels */
    bool fallbacks;                      /* engines are in the list of fallbacks only */
    unsigned unmade;                     /* of so many first engines no plan can be made */
    bool missing;                        /* there is no library */
    bool broken;                         /* running fails */
    unsigned runs, asked, taken,
        last;                      /* taken: the engine of the last plan; last: of the last run */
    unsigned by_squares;           /* convolutions of 16 channels ... */
    unsigned square_taps;          /* the last one's, of a channel */
    unsigned descriptors, handles; /* alive */
    unsigned streams;              /* times that a handle got one */
};
extern struct fake_dnn fake_dnn;

#endif
