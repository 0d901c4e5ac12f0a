/* SPDX-License-Identifier: MIT */
/* Chains of views against an oracle that writes down, for each element of a view, its element of
 * the leaf. Values, weights and factors are small whole numbers, so that all sums are exact. */
#include "tests/unit/engine/engine_net.h"

#define CHAINS 6000
#define VIEWS 8      /* of a chain */
#define COUNT_MAX 96 /* elements of a leaf */

/* A tensor of the tape and the oracle's value of it. */
struct view {
    plume_tensor *t;
    size_t rank, shape[PLUME_RANK_MAX], count;
    size_t from[COUNT_MAX]; /* by element in row-major order: its element of the leaf, */
    double factor;          /* which is multiplied by this */
};

struct chain {
    struct net net; /* t[0] the leaf, t[1] and t[2] the weights of the two ends */
    struct view view[VIEWS + 1];
    size_t n;
};

static void begin(struct chain *c, enum pl_real real, size_t rank, const size_t *shape)
{
    struct view *v = &c->view[0];
    plume_tensor *t;

    *c = (struct chain){.n = 1};
    pl_tape_init(&c->net.tape, pl_device_cpu(), real, true);
    t = leaf(&c->net, real, rank, shape);
    leaf(&c->net, real, 1, (size_t[]){COUNT_MAX});
    leaf(&c->net, real, 1, (size_t[]){COUNT_MAX});
    assert_true(t->count <= COUNT_MAX);
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < c->net.t[k].count; i++) {
            double value = (double)((i * 7 + k * 5) % 61) + 1;

            if (real == PL_REAL_F64)
                ((double *)c->net.t[k].data)[i] = value;
            else
                ((float *)c->net.t[k].data)[i] = (float)value;
        }
    *v = (struct view){.t = t, .rank = rank, .count = t->count, .factor = 1};
    memcpy(v->shape, shape, rank * sizeof(*shape));
    for (size_t i = 0; i < v->count; i++)
        v->from[i] = i;
    pl_tape_begin(&c->net.tape);
}

static plume_tensor *
apply(struct chain *c, enum plume_op which, size_t n, plume_tensor *const *in, const int64_t *args)
{
    struct plume_op_args a = {{0}, {2, 0}}; /* affine: twice x */
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (args)
        memcpy(a.i, args, (PLUME_RANK_MAX + 1) * sizeof(*args));
    if (pl_op_call(&c->net.tape, which, in, n, &a, &t, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return t;
}

/* A new view by `which` of `x`; the caller fills in the oracle's value. */
static struct view *
view(struct chain *c, const struct view *x, enum plume_op which, const int64_t *args)
{
    struct view *v = &c->view[c->n++];

    *v = *x;
    v->t = apply(c, which, 1, (plume_tensor *[]){x->t}, args);
    return v;
}

static void reshape(struct chain *c, const struct view *x, size_t rank, const size_t *shape)
{
    int64_t args[PLUME_RANK_MAX + 1] = {(int64_t)rank};
    struct view *v;

    for (size_t i = 0; i < rank; i++)
        args[i + 1] = (int64_t)shape[i];
    v = view(c, x, PLUME_OP_RESHAPE, args);
    v->rank = rank;
    memcpy(v->shape, shape, rank * sizeof(*shape));
}

/* The positions of x's elements at the indices of v, from `first` in each dimension; dimension d of
 * v is order[d] of x. */
static void walk(struct view *v, const struct view *x, const size_t *first, const size_t *order)
{
    v->count = 1;
    for (size_t d = 0; d < v->rank; d++)
        v->count *= v->shape[d];
    for (size_t i = 0; i < v->count; i++) {
        size_t index[PLUME_RANK_MAX], rest = i, at = 0;

        for (size_t d = v->rank; d-- > 0; rest /= v->shape[d])
            index[order[d]] = first[order[d]] + rest % v->shape[d];
        for (size_t d = 0; d < x->rank; d++)
            at = at * x->shape[d] + index[d];
        v->from[i] = x->from[at];
    }
}

static const size_t straight[PLUME_RANK_MAX] = {0, 1, 2, 3, 4};

static void permute(struct chain *c, const struct view *x, const size_t *order)
{
    int64_t args[PLUME_RANK_MAX + 1] = {0};
    struct view *v;

    for (size_t i = 0; i < x->rank; i++)
        args[i] = (int64_t)order[i];
    v = view(c, x, PLUME_OP_PERMUTE, args);
    for (size_t i = 0; i < x->rank; i++)
        v->shape[i] = x->shape[order[i]];
    walk(v, x, (size_t[PLUME_RANK_MAX]){0}, order);
}

static void slice(struct chain *c, const struct view *x, size_t dim, size_t first, size_t count)
{
    struct view *v =
        view(c, x, PLUME_OP_SLICE,
             (int64_t[PLUME_RANK_MAX + 1]){(int64_t)dim, (int64_t)first, (int64_t)count});
    size_t start[PLUME_RANK_MAX] = {0};

    start[dim] = first;
    v->shape[dim] = count;
    walk(v, x, start, straight);
}

/* The view flat, with its own values; and the sum of them by weights. */
static plume_tensor *flat(struct chain *c, const struct view *x)
{
    return apply(c, PLUME_OP_RESHAPE, 1, (plume_tensor *[]){x->t},
                 (int64_t[PLUME_RANK_MAX + 1]){1, (int64_t)x->count});
}

static plume_tensor *weighed(struct chain *c, plume_tensor *row, size_t weights)
{
    plume_tensor *w = apply(c, PLUME_OP_SLICE, 1, (plume_tensor *[]){&c->net.t[weights]},
                            (int64_t[PLUME_RANK_MAX + 1]){0, 0, (int64_t)row->count});

    w = apply(c, PLUME_OP_BINARY, 2, (plume_tensor *[]){row, w}, (int64_t[PLUME_RANK_MAX + 1]){2});
    return apply(c, PLUME_OP_REDUCE, 1, &w, (int64_t[PLUME_RANK_MAX + 1]){0, 9});
}

static double number(const plume_tensor *t, const void *memory, size_t i)
{
    return t->dtype == PLUME_F64 ? ((const double *)memory)[i] : (double)((const float *)memory)[i];
}

/* Runs forward and backward of the sum of two views' weighed sums, and compares the views' values
 * and all gradients. */
static void end(struct chain *c, const struct view *a, const struct view *b, const char *what)
{
    const struct view *ends[] = {a, b};
    plume_tensor *copies[2], *sums[2], *loss, *roots[3];
    const plume_tensor *x = &c->net.t[0];
    double want[COUNT_MAX] = {0};

    for (size_t k = 0; k < 2; k++) {
        plume_tensor *row = flat(c, ends[k]);

        assert_int_equal(row->count, ends[k]->count);
        roots[k + 1] = copies[k] = apply(c, PLUME_OP_AFFINE, 1, &row, NULL); /* twice */
        sums[k] = weighed(c, row, k + 1);
    }
    roots[0] = loss = apply(c, PLUME_OP_BINARY, 2, sums, NULL);
    pl_tape_end(&c->net.tape);
    assert_int_equal(pl_tape_prepare(&c->net.tape, roots, 3, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&c->net.tape, NULL), 0);
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < ends[k]->count; i++) {
            double is = number(copies[k], pl_tensor_data(copies[k]), i) / 2;
            double should = ends[k]->factor * number(x, x->data, ends[k]->from[i]);

            if (is != should)
                fail_msg("%s: element %zu of end %zu is %g, not %g", what, i, k, is, should);
            want[ends[k]->from[i]] += ends[k]->factor * number(x, c->net.t[k + 1].data, i);
        }
    for (size_t k = 0; k < 3; k++)
        memset(c->net.t[k].grad, 0xff, c->net.t[k].count * 8);
    assert_int_equal(backward(&c->net, loss), 0);
    for (size_t i = 0; i < x->count; i++)
        if (number(x, x->grad, i) != want[i])
            fail_msg("%s: the gradient of element %zu is %g, not %g", what, i,
                     number(x, x->grad, i), want[i]);
    finish(&c->net);
}

static void test_units_permuted_to_the_end_and_back(void **state)
{
    static const struct {
        size_t shape[4], order[4];
    } cases[] = {
        {{4, 8, 1, 1}, {1, 2, 3, 0}},
        {{3, 17, 1, 1}, {1, 2, 3, 0}},
        {{1, 4, 8, 1}, {2, 0, 3, 1}},
        {{1, 5, 1, 6}, {3, 2, 1, 0}},
    };
    struct chain c;

    (void)state;
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        begin(&c, PL_REAL_F64, 4, cases[i].shape);
        permute(&c, &c.view[0], cases[i].order);
        reshape(&c, &c.view[1], 1, &c.view[1].count);
        end(&c, &c.view[2], &c.view[1], "units");
    }
}

/* [batch, time, width] -> [time, heads, batch, dim] -> [rows, dim], with one head. */
static void test_one_head(void **state)
{
    static const size_t sizes[][3] = {{2, 3, 4}, {3, 2, 5}, {1, 4, 6}, {4, 1, 3}, {5, 3, 1}};
    struct chain c;

    (void)state;
    for (size_t i = 0; i < PL_COUNT(sizes); i++) {
        size_t batch = sizes[i][0], time = sizes[i][1], width = sizes[i][2];

        begin(&c, PL_REAL_F64, 3, sizes[i]);
        reshape(&c, &c.view[0], 4, (size_t[]){batch, time, 1, width});
        permute(&c, &c.view[1], (size_t[]){1, 2, 0, 3});
        reshape(&c, &c.view[2], 2, (size_t[]){time * batch, width});
        reshape(&c, &c.view[2], 1, (size_t[]){time * batch * width});
        end(&c, &c.view[3], &c.view[4], "one head");
    }
}

static void test_slice_beside_a_unit(void **state)
{
    struct chain c;

    (void)state;
    begin(&c, PL_REAL_F64, 3, (size_t[]){7, 1, 7});
    slice(&c, &c.view[0], 2, 3, 2);
    reshape(&c, &c.view[1], 1, (size_t[]){14});
    end(&c, &c.view[2], &c.view[1], "slice");
    begin(&c, PL_REAL_F64, 3, (size_t[]){1, 5, 3});
    slice(&c, &c.view[0], 1, 2, 1);
    slice(&c, &c.view[1], 2, 1, 1);
    reshape(&c, &c.view[2], 5, (size_t[]){1, 1, 1, 1, 1});
    reshape(&c, &c.view[2], 0, (size_t[]){0});
    end(&c, &c.view[3], &c.view[4], "one element");
}

/* A random shape of `count` elements: prime factors on dimensions by chance, often with units. */
static size_t random_shape(struct pl_rng *rng, size_t count, size_t *ret)
{
    size_t rank = pl_rng_below(rng, PLUME_RANK_MAX) + 1;

    for (size_t i = 0; i < rank; i++)
        ret[i] = 1;
    for (size_t p = 2; count > 1; p++)
        for (; count % p == 0; count /= p)
            ret[pl_rng_below(rng, rank)] *= p;
    return rank;
}

static void random_view(struct chain *c, struct pl_rng *rng)
{
    const struct view *x = &c->view[pl_rng_below(rng, c->n)];
    size_t shape[PLUME_RANK_MAX], order[PLUME_RANK_MAX], dim, first;
    struct view *v;

    if (pl_rng_below(rng, 2)) /* chains rather than bushes */
        x = &c->view[c->n - 1];
    switch (pl_rng_below(rng, x->rank ? 7 : 1)) {
    case 0:
    case 1:
        reshape(c, x, random_shape(rng, x->count, shape), shape);
        return;
    case 2:
        dim = pl_rng_below(rng, x->rank);
        first = pl_rng_below(rng, x->shape[dim]);
        slice(c, x, dim, first, 1 + pl_rng_below(rng, x->shape[dim] - first));
        return;
    case 3:
        v = view(c, x, PLUME_OP_AFFINE, NULL);
        v->factor *= 2;
        return;
    default:
        memcpy(order, straight, sizeof(order));
        for (size_t i = x->rank; i > 1; i--) {
            size_t k = pl_rng_below(rng, i), keep = order[k];

            order[k] = order[i - 1];
            order[i - 1] = keep;
        }
        permute(c, x, order);
    }
}

/* PLUME_TEST_SEED repeats a chain that failed. */
static void test_random_chains(void **state)
{
    const char *seed = getenv("PLUME_TEST_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 0, n = seed ? 1 : CHAINS;
    struct chain c;

    (void)state;
    for (uint64_t s = first; s < first + n; s++) {
        size_t shape[PLUME_RANK_MAX], rank;
        struct pl_rng rng;
        char what[48];

        pl_rng_init(&rng, s, 11);
        rank = random_shape(&rng, 1 + pl_rng_below(&rng, COUNT_MAX), shape);
        begin(&c, s % 2 ? PL_REAL_F64 : PL_REAL_F32, rank, shape);
        for (size_t i = 1 + pl_rng_below(&rng, VIEWS); i-- > 0;)
            random_view(&c, &rng);
        snprintf(what, sizeof(what), "PLUME_TEST_SEED=%llu", (unsigned long long)s);
        end(&c, &c.view[c.n - 1], &c.view[pl_rng_below(&rng, c.n)], what);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units_permuted_to_the_end_and_back),
        cmocka_unit_test(test_one_head),
        cmocka_unit_test(test_slice_beside_a_unit),
        cmocka_unit_test(test_random_chains),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
