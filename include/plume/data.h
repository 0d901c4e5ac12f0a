/* SPDX-License-Identifier: MIT */
/* Sources of samples: data files, and the module's own. Included by plume/module.h, which has the
 * functions. */
#ifndef PL_DATA_H
#define PL_DATA_H

#include "plume/types.h"

#ifdef __cplusplus
extern "C" {
#endif

enum plume_stage {
    PLUME_TRAIN = 0,
    PLUME_VALIDATE = 1,
    PLUME_TEST = 2,
};

/* File formats. An array's dimension 0 is the sample. */
enum plume_format {
    PLUME_FORMAT_AUTO =
        0, /* by the file name extension: .npy, .csv, .txt (text), -ubyte or .idx (IDX) */
    /* NumPy's format 1.0 to 3.0, C order, b1, u1, u2, i4, i8, f4 or f8, little-endian. i8 becomes
     * i4; its numbers must fit. */
    PLUME_FORMAT_NPY = 1,
    /* MNIST's format: a big-endian header and array; i1 and i2 become i4. */
    PLUME_FORMAT_IDX = 2,
    /* CIFAR-10's binary version: field 0 the images [n, 3, 32, 32], field 1 the labels [n]; u8. */
    PLUME_FORMAT_CIFAR10 = 3,
    /* Token numbers, u2 or u4 (below 2^31), little-endian, read as windows. */
    PLUME_FORMAT_TOKENS_U16 = 4,
    PLUME_FORMAT_TOKENS_U32 = 5,
    /* Comma-separated numbers: the chosen columns, [n, columns], or [n] for a single one. If all
     * numbers are integers that fit into an int32 the array is int32, else f8. */
    PLUME_FORMAT_CSV = 6,
    /* Bytes, read as windows. A token is the index of a byte among the distinct bytes of all files,
     * sorted. See plume_vocabulary(). */
    PLUME_FORMAT_TEXT = 7,
    /* No file: synthetic samples, for measurements. See struct plume_source. */
    PLUME_FORMAT_SYNTHETIC = 8,
};

/* A data file; zero is the default of every member. */
struct plume_source {
    /* Relative paths are searched in $PLUME_DATA_DIR, then in Plume's own data folder. For tokens,
     * text and CIFAR-10 several paths, separated by ':', are concatenated; for text also a folder:
     * all its files (no links), in the order of their names. */
    const char *path;
    enum plume_format format;
    int field; /* CIFAR10 */
    /* Windows: sample i is the `window` tokens from i * stride + ahead on. So two arrays, with
     * ahead 0 and 1, are the inputs and targets of a language model; both have as many samples as
     * fit window + 1 tokens. stride 0 means window. ahead is 0 or 1. */
    size_t window, stride, ahead;
    /* CSV: column names, or column numbers from 0, separated by commas, in the order of the array;
     * NULL means all. */
    const char *columns;
    /* CSV: 1 = the first line has names, -1 = it has not, 0 = detect: a line of numbers, or one
     * without any; other lines are refused. */
    int header;
    /* Only this share of the samples (windows: of the tokens), e.g. 0.9 to 1 for validation.
     * end 0 means 1. */
    double begin, end;
    /* SYNTHETIC: `samples` samples of shape[0..rank-1]. classes 0: f4, uniform in [0, 1); else i4,
     * uniform in [0, classes). Seed, sample and classes determine the numbers, on any machine and
     * in any order of access. */
    size_t samples, rank, shape[PLUME_RANK_MAX - 1];
    uint32_t classes;
    uint64_t seed;
};

/* The samples of a stage. Filled by the data hook. */
struct plume_data {
    size_t struct_size; /* set by the engine */
    size_t n_fields;
    struct {
        const plume_array *array; /* dimension 0 is the sample; all fields have the same number.
                                     NULL: from `fill` */
        enum plume_dtype dtype; /* of the batch: PLUME_F32 (the engine's real type) from any array,
                                   or PLUME_I32 from integers */
        double scale;           /* real fields: value * scale + shift; 0 means 1 */
        double shift;
    } field[PLUME_FIELDS_MAX];

    /* The module's own source, for the fields without an array: `length` samples of
     * shape[i][0..rank[i]-1]. fill() writes sample `index` to out[i], as float or int32_t by the
     * field's dtype (as double if the engine's real type is f64: see real_size). out[i] is NULL for
     * fields with an array. fill() returns 0 or a negative errno. It runs on other threads than the
     * hooks, never on two at a time, and must return the same for the same index and epoch. */
    size_t length;
    size_t rank[PLUME_FIELDS_MAX];
    size_t shape[PLUME_FIELDS_MAX][PLUME_RANK_MAX];
    int (*fill)(void *ctx, uint64_t epoch, size_t index, void *const *out, size_t real_size);
    void *ctx;

    /* The samples to use, in this order, instead of all of them (training: instead of a shuffled
     * order). Ranks give the same list, and divide it like all samples. Each epoch has the list as
     * it was at the start: to draw samples anew in each epoch, let fill() choose them by its epoch.
     * Borrowed; must live as long as the module. */
    const size_t *order;
    size_t n_order;

    int drop_last; /* not 0: each rank drops an incomplete last batch; pltrain --predict does not */
    int drop_tail; /* training, not 0: if the samples cannot be divided equally among ranks, drop
                      some instead of repeating some */
};

/* A batch. field[i] is [rows, rest of the array's shape]. rows is at most the hyper-parameter
 * batch_size; the last batch of an epoch may have fewer. */
struct plume_batch {
    size_t struct_size;
    size_t rows;
    int64_t index; /* of the batch in the epoch */
    size_t n_fields;
    plume_tensor *field[PLUME_FIELDS_MAX];
};

#ifdef __cplusplus
}
#endif

#endif
