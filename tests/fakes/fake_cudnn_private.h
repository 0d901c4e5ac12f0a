/* SPDX-License-Identifier: MIT */
/* Descriptors of the fake cuDNN, and their attributes. fake_cudnn.c takes them from the caller,
 * fake_cudnn_graph.c runs the graph that they describe. */
#ifndef PL_TESTS_FAKES_FAKE_CUDNN_PRIVATE_H
#define PL_TESTS_FAKES_FAKE_CUDNN_PRIVATE_H

#include "tests/fakes/fake_cudnn.h"

#include <cudnn.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct attribute {
    int name, type;
    int64_t n;
    _Alignas(8) unsigned char bytes[256];
};

struct desc {
    int type;
    bool final;
    size_t n;
    struct attribute list[10];
    struct desc *graph; /* of a configuration or an engine */
    unsigned engine;
};

/* NULL: it is not set. */
static inline const struct attribute *find(const struct desc *d, int name)
{
    for (size_t i = 0; i < d->n; i++)
        if (d->list[i].name == name)
            return &d->list[i];
    return NULL;
}

/* The test fails if it is not set, has another type, or not n values (n 0: any number). */
static inline const struct attribute *need(const struct desc *d, int name, int type, int64_t n)
{
    const struct attribute *a = find(d, name);

    if (!a || a->type != type || (n && a->n != n))
        fail_msg("descriptor %d lacks attribute %d of type %d", d->type, name, type);
    return a;
}

static inline int64_t number(const struct desc *d, int name, size_t i)
{
    return ((const int64_t *)need(d, name, CUDNN_TYPE_INT64, 0)->bytes)[i];
}

static inline int word(const struct desc *d, int name, int type)
{
    return *(const int *)need(d, name, type, 1)->bytes;
}

static inline struct desc *child(const struct desc *d, int name, size_t i)
{
    struct desc *c =
        ((struct desc *const *)need(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0)->bytes)[i];

    assert_true(c->final || d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    return c;
}

/* Runs the ops of a graph one after another, on the arrays whose addresses the pack has. */
void fake_cudnn_run_graph(const struct attribute *ops, const struct desc *pack);

#endif
