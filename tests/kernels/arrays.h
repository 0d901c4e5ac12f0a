/* SPDX-License-Identifier: MIT */
/* The arrays of each op's arguments: what typed.c converts. A new struct of arguments has its
 * function here. */
#ifndef PL_TESTS_KERNELS_ARRAYS_H
#define PL_TESTS_KERNELS_ARRAYS_H

#include "kernels/kernels.h"

#define ARRAYS_MAX 20

enum array_kind {
    ARRAY_IN,   /* of the table's type */
    ARRAY_OUT,  /* also read where the op adds */
    ARRAY_STAT, /* a row's statistics */
    ARRAY_RAW,  /* of a type that all tables have in common */
};

/* Elements at sums of index * stride. */
struct array {
    void **slot; /* the pointer in the struct of arguments */
    enum array_kind kind;
    const char *made_by; /* part of the name of the function that only writes it, all of it, and so
                            gets NaNs. NULL: none */
    size_t element;      /* bytes, of ARRAY_RAW */
    size_t rank, n[PL_COPY_RANK], stride[PL_COPY_RANK];
};

struct arrays {
    size_t n;
    struct array v[ARRAYS_MAX];
};

/* `element` is the size of one of the table's type. */
#define ARRAYS_DECLARE(args)                                                                       \
    void arrays_of_##args(struct pl_##args##_args *a, size_t element, struct arrays *ret)
ARRAYS_DECLARE(linear);
ARRAYS_DECLARE(matmul);
ARRAYS_DECLARE(conv2d);
ARRAYS_DECLARE(pool2d);
ARRAYS_DECLARE(batchnorm);
ARRAYS_DECLARE(add);
ARRAYS_DECLARE(relu);
ARRAYS_DECLARE(cross_entropy);
ARRAYS_DECLARE(correct);
ARRAYS_DECLARE(half);
ARRAYS_DECLARE(unary);
ARRAYS_DECLARE(binary);
ARRAYS_DECLARE(affine);
ARRAYS_DECLARE(reduce);
ARRAYS_DECLARE(layernorm);
ARRAYS_DECLARE(gru);
ARRAYS_DECLARE(lstm);
ARRAYS_DECLARE(softmax);
ARRAYS_DECLARE(mse);
ARRAYS_DECLARE(embedding);
ARRAYS_DECLARE(dropout);
ARRAYS_DECLARE(normalize);
ARRAYS_DECLARE(attention);
ARRAYS_DECLARE(copy);
ARRAYS_DECLARE(arange);
ARRAYS_DECLARE(map);
ARRAYS_DECLARE(choose);
ARRAYS_DECLARE(unfold);
ARRAYS_DECLARE(squares);
ARRAYS_DECLARE(resample);
ARRAYS_DECLARE(rotary);
ARRAYS_DECLARE(random);
ARRAYS_DECLARE(gather);
ARRAYS_DECLARE(top);
ARRAYS_DECLARE(whole);
ARRAYS_DECLARE(cumsum);
ARRAYS_DECLARE(one_hot);
ARRAYS_DECLARE(sgd);
ARRAYS_DECLARE(adam);
ARRAYS_DECLARE(rmsprop);
ARRAYS_DECLARE(adagrad);
ARRAYS_DECLARE(grad_stats);

#endif
