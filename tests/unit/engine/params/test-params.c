/* SPDX-License-Identifier: MIT */
/* Parameter arenas, start values and the plan of buckets. */
#include "kernels/pool/pool.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/reduce/reducer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    struct pl_comm *comm;
    struct pl_params params;
    struct pl_tape tape;
    plume_tensor x, labels, *w2, *b2, *unused, *w1, *b1;
    int32_t label[2];
    float pixels[6];
};

static plume_tensor *declare(struct fixture *f, const char *name, size_t rank, const size_t *shape)
{
    plume_tensor *t = NULL;
    enum plume_init init = rank == 2 ? PLUME_INIT_HE : PLUME_INIT_ONE;

    assert_int_equal(pl_params_declare(&f->params, name, init, rank, shape, &t, NULL), 0);
    return t;
}

static plume_tensor *
call(struct fixture *f, enum plume_op op, size_t n, plume_tensor *const *in, int64_t arg)
{
    plume_tensor *t = NULL;

    assert_int_equal(pl_op_call(&f->tape, op, in, n, &(struct plume_op_args){{arg}, {0}}, &t, NULL),
                     0);
    return t;
}

/* Declares in another order than the tape's. */
static void setup(struct fixture *f)
{
    struct pl_world world = {.size = 1, .local_size = 1};
    plume_tensor *h, *z;

    *f = (struct fixture){.label = {0, 3}};
    assert_int_equal(pl_comm_create(&world, NULL, &f->comm, NULL), 0);
    pl_params_init(&f->params, pl_device_cpu(), PL_REAL_F32);
    f->w2 = declare(f, "w2", 2, (size_t[]){4, 5});
    f->unused = declare(f, "unused", 1, (size_t[]){3});
    f->b2 = declare(f, "b2", 1, (size_t[]){4});
    f->w1 = declare(f, "w1", 2, (size_t[]){5, 3});
    f->b1 = declare(f, "b1", 1, (size_t[]){5});
    pl_tensor_init(&f->x, PLUME_F32, 2, (size_t[]){2, 3});
    pl_tensor_init(&f->labels, PLUME_I32, 1, (size_t[]){2});
    f->x.data = f->pixels;
    f->labels.data = f->label;
    pl_tape_init(&f->tape, pl_device_cpu(), PL_REAL_F32, true);
    pl_tape_begin(&f->tape);
    h = call(f, PLUME_OP_LINEAR, 3, (plume_tensor *[]){&f->x, f->w1, f->b1}, PLUME_RELU);
    z = call(f, PLUME_OP_LINEAR, 3, (plume_tensor *[]){h, f->w2, f->b2}, PLUME_IDENTITY);
    call(f, PLUME_OP_CROSS_ENTROPY, 2, (plume_tensor *[]){z, &f->labels}, 0);
    pl_tape_end(&f->tape);
    assert_int_equal(pl_params_layout(&f->params, &f->tape, f->comm, NULL), 0);
}

static void teardown(struct fixture *f)
{
    pl_params_finish(&f->params);
    pl_tape_finish(&f->tape);
    pl_comm_destroy(f->comm);
}

static void test_layout_follows_the_tape(void **state)
{
    static const char *const order[] = {"w1", "b1", "w2", "b2", "unused"};
    struct fixture f;

    setup(&f);
    for (size_t i = 0; i < 5; i++) {
        const struct pl_param *p = f.params.order[i];

        assert_string_equal(p->name, order[i]);
        assert_int_equal(p->offset % 16, 0); /* 64 bytes */
        assert_ptr_equal(p->tensor->data, (float *)f.params.values + p->offset);
        assert_ptr_equal(p->tensor->grad, (float *)f.params.grads + p->offset);
    }
    assert_int_equal(f.params.order[4]->first_node, SIZE_MAX);
    assert_int_equal(f.params.count % 64, 0); /* 256 bytes per rank */
    teardown(&f);
}

static void test_init_depends_on_seed_only(void **state)
{
    struct fixture f;
    char a[17], b[17], c[17];
    double sum = 0;

    setup(&f);
    assert_int_equal(pl_params_init_values(&f.params, NULL, 1, NULL), 0);
    assert_int_equal(pl_params_hash(&f.params, NULL, a, NULL), 0);
    assert_true(((float *)f.b1->data)[4] == 1);
    for (size_t i = 0; i < f.w2->count; i++)
        sum += fabs(((float *)f.w2->data)[i]);
    assert_true(sum > 1 && sum < 40);
    assert_int_equal(pl_params_init_values(&f.params, NULL, 2, NULL), 0);
    assert_int_equal(pl_params_hash(&f.params, NULL, b, NULL), 0);
    assert_int_equal(pl_params_init_values(&f.params, NULL, 1, NULL), 0);
    assert_int_equal(pl_params_hash(&f.params, NULL, c, NULL), 0);
    assert_string_not_equal(a, b);
    assert_string_equal(a, c);
    assert_int_equal(strlen(a), 16);
    teardown(&f);
}

/* Each parameter has a stream of its own, whoever draws it. */
static void test_init_does_not_depend_on_threads(void **state)
{
    enum { N = 40, COUNT = 24 * 30 };
    double first[N][COUNT], values[N][COUNT];

    for (unsigned threads = 1; threads <= 4; threads++) {
        struct pl_params params;

        pl_pool_resize(threads);
        pl_params_init(&params, pl_device_cpu(), PL_REAL_F64);
        for (size_t i = 0; i < N; i++) {
            plume_tensor *t = NULL;
            char name[8];

            snprintf(name, sizeof(name), "p%zu", i);
            assert_int_equal(
                pl_params_declare(&params, name, PLUME_INIT_HE, 2, (size_t[]){24, 30}, &t, NULL),
                0);
            params.list[i]->initial.kind = (enum plume_init)(i % (PLUME_INIT_ORTHOGONAL + 1));
            params.list[i]->initial.b = 1;
            t->data = values[i];
        }
        memset(values, 0xff, sizeof(values));
        assert_int_equal(pl_params_init_values(&params, NULL, 1, NULL), 0);
        if (threads == 1)
            memcpy(first, values, sizeof(first));
        assert_memory_equal(first, values, sizeof(first));
        pl_params_finish(&params);
    }
    pl_pool_resize(0);
}

static void test_declare_refuses(void **state)
{
    static const char *const bad[] = {"", "a b", ".a", "-a", "a/b", "a\"", "\xc3\xa4", "a\n"};
    struct pl_params p;
    plume_tensor *t = NULL;

    pl_params_init(&p, pl_device_cpu(), PL_REAL_F32);
    assert_int_equal(pl_params_declare(&p, "a", 0, 1, (size_t[]){3}, &t, NULL), 0);
    t = NULL;
    assert_int_equal(pl_params_declare(&p, "a", 0, 1, (size_t[]){3}, &t, NULL), -EEXIST);
    assert_int_equal(pl_params_declare(&p, "0.weight", 0, 1, (size_t[]){3}, &t, NULL), 0);
    t = NULL;
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_params_declare(&p, bad[i], 0, 1, (size_t[]){3}, &t, NULL), -EINVAL);
    assert_int_equal(pl_params_declare(&p, "plume.a", 0, 1, (size_t[]){3}, &t, NULL), -EINVAL);
    assert_int_equal(pl_params_declare(&p, "__metadata__", 0, 1, (size_t[]){3}, &t, NULL), -EINVAL);
    assert_int_equal(pl_params_declare(&p, "b", 0, 2, (size_t[]){3, 0}, &t, NULL), -EINVAL);
    assert_int_equal(pl_params_declare(&p, "b", 0, 2, (size_t[]){SIZE_MAX, 9}, &t, NULL), -EINVAL);
    assert_int_equal(pl_params_declare(&p, "b", 0, 6, (size_t[]){1, 1, 1, 1, 1, 1}, &t, NULL),
                     -EINVAL);
    assert_null(t);
    assert_int_equal(p.n, 2);
    pl_params_finish(&p);
}

static void test_buckets_cover_the_arena_backwards(void **state)
{
    struct fixture f;

    setup(&f);
    for (size_t max = 1; max < 1000; max += 37) {
        struct pl_reducer r;
        size_t end = f.params.count;

        assert_int_equal(pl_reducer_init(&r, &f.params, NULL, f.comm, max, max, NULL), 0);
        for (size_t i = 0; i < r.n; i++) {
            assert_int_equal(r.buckets[i].offset + r.buckets[i].count, end);
            end = r.buckets[i].offset;
            /* A bucket of several parameters is no larger than asked for. */
            assert_true(r.buckets[i].n <= 1 || r.buckets[i].count * sizeof(float) <= max);
        }
        assert_int_equal(end, 0);
        /* The first parameters come last, after the first node. */
        assert_int_equal(r.buckets[r.n - 1].ready_node, 0);
        pl_reducer_begin(&r, 1, false);
        assert_int_equal(pl_reducer_after_node(&r, 2, NULL), 0);
        assert_true(max > 600 || r.next < r.n);
        assert_int_equal(pl_reducer_after_node(&r, 1, NULL), 0);
        assert_true(r.next < r.n);
        assert_int_equal(pl_reducer_after_node(&r, 0, NULL), 0);
        assert_int_equal(r.next, r.n);
        pl_reducer_finish(&r);
    }
    teardown(&f);
}

/* The values of a parameter of this shape; f64. */
static const double *
made(struct pl_params *params, struct pl_initial initial, size_t rank, const size_t *shape)
{
    plume_tensor *t;

    assert_int_equal(pl_initial_check(&initial, rank, NULL), 0);
    pl_params_init(params, pl_device_cpu(), PL_REAL_F64);
    assert_int_equal(pl_params_declare(params, "w", PLUME_INIT_ZERO, rank, shape, &t, NULL), 0);
    params->list[0]->initial = initial;
    t->data = params->values = calloc(t->count, sizeof(double));
    assert_non_null(t->data);
    assert_int_equal(pl_params_init_values(params, NULL, 3, NULL), 0);
    return t->data;
}

static void unmake(struct pl_params *params)
{
    free(params->values);
    params->values = NULL;
    pl_params_finish(params);
}

/* torch.nn.init: mean, standard deviation and limits of 21600 numbers, fan_in 36 of (600, 4, 3, 3)
 * and fan_out 5400. The mean's own deviation is 1/147 of one, the deviation's 1/208: five of them.
 */
static void test_initial_values_have_their_distribution(void **state)
{
    const double xavier = sqrt(2.0 / (36 + 5400));
    const struct {
        struct pl_initial initial;
        double mean, deviation, low, high;
    } cases[] = {
        {{PLUME_INIT_NORMAL, 2, 0.5}, 2, 0.5, -1, 5},
        {{PLUME_INIT_UNIFORM, -1, 3}, 1, 4 / sqrt(12), -1, 3},
        {{PLUME_INIT_XAVIER_UNIFORM, 0, 0}, 0, xavier, -sqrt(3) * xavier, sqrt(3) * xavier},
        {{PLUME_INIT_XAVIER_NORMAL, 2, 0}, 0, 2 * xavier, -12 * xavier, 12 * xavier},
        {{PLUME_INIT_HE, 0, 0}, 0, sqrt(2.0 / 36), -2, 2},
        {{PLUME_INIT_FAN_IN, 0, 0}, 0, 1 / sqrt(36 * 3.0), -1.0 / 6, 1.0 / 6},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_params params;
        const double *x = made(&params, cases[i].initial, 4, (size_t[]){600, 4, 3, 3});
        double sum = 0, squares = 0;

        for (size_t k = 0; k < 21600; k++) {
            assert_true(x[k] >= cases[i].low && x[k] <= cases[i].high);
            sum += x[k] / 21600;
        }
        for (size_t k = 0; k < 21600; k++)
            squares += (x[k] - sum) * (x[k] - sum) / 21600;
        if (fabs(sum - cases[i].mean) > 5 * cases[i].deviation / 147 ||
            fabs(sqrt(squares) / cases[i].deviation - 1) > 5.0 / 208)
            fail_msg("case %zu: mean %g, deviation %g", i, sum, sqrt(squares));
        unmake(&params);
    }
}

static void test_orthogonal_values_are_orthonormal(void **state)
{
    static const size_t shapes[][4] = {{7, 7, 1, 1},  {40, 9, 1, 1}, {9, 40, 1, 1},
                                       {12, 2, 3, 3}, {1, 5, 1, 1},  {5, 1, 1, 1}};

    for (size_t s = 0; s < PL_COUNT(shapes); s++) {
        size_t rows = shapes[s][0], columns = shapes[s][1] * shapes[s][2] * shapes[s][3];
        bool by_row = rows <= columns;
        size_t m = by_row ? rows : columns, n = by_row ? columns : rows;
        struct pl_params params;
        const double *x =
            made(&params, (struct pl_initial){PLUME_INIT_ORTHOGONAL, 3, 0}, 4, shapes[s]);

        for (size_t i = 0; i < m; i++)
            for (size_t j = 0; j < m; j++) {
                double sum = 0;

                for (size_t k = 0; k < n; k++)
                    sum += by_row ? x[i * columns + k] * x[j * columns + k]
                                  : x[k * columns + i] * x[k * columns + j];
                assert_true(fabs(sum - (i == j ? 9 : 0)) < 1e-13);
            }
        unmake(&params);
    }
}

static void test_initial_values_are_checked(void **state)
{
    static const struct {
        struct pl_initial initial;
        size_t rank;
        const char *text;
    } cases[] = {
        {{(enum plume_init)77, 0, 0}, 2, "the kind of initial values 77 is unknown"},
        {{PLUME_INIT_NORMAL, 0, -1}, 2, "must not be negative, not -1"},
        {{PLUME_INIT_NORMAL, INFINITY, 1}, 2, "must be finite"},
        {{PLUME_INIT_UNIFORM, 1, 1}, 2, "a lower and an upper limit"},
        {{PLUME_INIT_XAVIER_NORMAL, 0, 0}, 1, "need two dimensions"},
        {{PLUME_INIT_ORTHOGONAL, 0, 0}, 1, "need two dimensions"},
    };

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_error err = {0};

        assert_int_equal(pl_initial_check(&cases[i].initial, cases[i].rank, &err), -EINVAL);
        assert_non_null(strstr(err.text, cases[i].text));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_follows_the_tape),
        cmocka_unit_test(test_init_depends_on_seed_only),
        cmocka_unit_test(test_init_does_not_depend_on_threads),
        cmocka_unit_test(test_declare_refuses),
        cmocka_unit_test(test_buckets_cover_the_arena_backwards),
        cmocka_unit_test(test_initial_values_have_their_distribution),
        cmocka_unit_test(test_orthogonal_values_are_orthonormal),
        cmocka_unit_test(test_initial_values_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
