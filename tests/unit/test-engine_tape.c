/* SPDX-License-Identifier: MIT */
/* The tape's record and replay, and every op's gradient against finite differences in f64. */
#include "runtime/engine/ops.h"
#include "runtime/engine/rng.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS 8

/* A few leaf tensors and a function of them. */
struct net {
    struct pl_tape tape;
    plume_tensor t[TENSORS];
    size_t n;
    int32_t labels[64];
};

static plume_tensor *leaf(struct net *net, enum pl_real real, size_t rank, const size_t *shape)
{
    plume_tensor *t = &net->t[net->n++];
    struct pl_rng rng;

    assert_int_equal(pl_tensor_init(t, pl_dtype_of_real(real), rank, shape), 0);
    t->data = calloc(t->count, 8);
    t->grad = calloc(t->count, 8);
    t->wants_grad = t->is_param = true;
    pl_rng_init(&rng, 42, net->n);
    for (size_t i = 0; i < t->count; i++) {
        double value = pl_rng_normal(&rng);

        if (real == PL_REAL_F64)
            ((double *)t->data)[i] = value;
        else
            ((float *)t->data)[i] = (float)value;
    }
    return t;
}

static plume_tensor *labels(struct net *net, size_t rows, size_t classes)
{
    plume_tensor *t = &net->t[net->n++];

    assert_int_equal(pl_tensor_init(t, PLUME_I32, 1, (size_t[]){rows}), 0);
    for (size_t i = 0; i < rows; i++)
        net->labels[i] = (int32_t)((i * 7) % classes);
    t->data = net->labels;
    return t;
}

static void finish(struct net *net)
{
    for (size_t i = 0; i < net->n; i++) {
        if (net->t[i].data != net->labels)
            free(net->t[i].data);
        free(net->t[i].grad);
    }
    pl_tape_finish(&net->tape);
}

typedef plume_tensor *(*function)(struct net *net);

static double value_of(struct net *net, function f)
{
    const plume_tensor *loss;

    pl_tape_begin(&net->tape);
    loss = f(net);
    pl_tape_end(&net->tape);
    return *(double *)loss->data;
}

/* Central differences with step h are off by h^2 f'''/6 and by rounding 1e-16 f/h; for h = 1e-5
 * and values around 1 both are below 1e-10. The tolerance leaves room for larger f'''. */
static void check_gradients(struct net *net, function f)
{
    const double h = 1e-5, tolerance = 1e-8;
    plume_tensor *loss;

    pl_tape_begin(&net->tape);
    loss = f(net);
    pl_tape_end(&net->tape);
    for (size_t i = 0; i < net->n; i++)
        if (net->t[i].grad)
            memset(net->t[i].grad, 0, net->t[i].count * 8);
    assert_int_equal(pl_tape_backward(&net->tape, loss, NULL, NULL, NULL), 0);
    for (size_t i = 0; i < net->n; i++) {
        plume_tensor *t = &net->t[i];

        for (size_t k = 0; t->wants_grad && k < t->count; k++) {
            double *x = (double *)t->data + k, keep = *x, up, down, got;

            *x = keep + h;
            up = value_of(net, f);
            *x = keep - h;
            down = value_of(net, f);
            *x = keep;
            got = ((double *)t->grad)[k];
            if (fabs(got - (up - down) / (2 * h)) > tolerance)
                fail_msg("tensor %zu element %zu: gradient %.12g, differences say %.12g", i, k, got,
                         (up - down) / (2 * h));
        }
    }
    assert_int_equal(net->tape.recordings, 1);
}

static plume_tensor *ok(int r, plume_tensor **t)
{
    assert_int_equal(r, 0);
    return *t;
}

#define LINEAR(x, w, b, act)                                                                       \
    ({                                                                                             \
        plume_tensor *t_ = NULL;                                                                   \
        int r_ = pl_op_linear(&net->tape, x, w, b, act, &t_, NULL);                                \
        ok(r_, &t_);                                                                               \
    })

static plume_tensor *entropy(struct net *net, plume_tensor *logits, plume_tensor *with)
{
    plume_tensor *t = NULL;
    int r = pl_op_cross_entropy(&net->tape, logits, with, &t, NULL);

    return ok(r, &t);
}

static plume_tensor *f_linear(struct net *net)
{
    return entropy(net, LINEAR(&net->t[0], &net->t[1], &net->t[2], PLUME_IDENTITY), &net->t[3]);
}

static plume_tensor *f_linear_no_bias(struct net *net)
{
    return entropy(net, LINEAR(&net->t[0], &net->t[1], NULL, PLUME_IDENTITY), &net->t[3]);
}

static plume_tensor *f_linear_relu(struct net *net)
{
    return entropy(net, LINEAR(&net->t[0], &net->t[1], &net->t[2], PLUME_RELU), &net->t[3]);
}

static plume_tensor *f_relu(struct net *net)
{
    plume_tensor *y = NULL;
    int r = pl_op_relu(&net->tape, LINEAR(&net->t[0], &net->t[1], NULL, PLUME_IDENTITY), &y, NULL);

    return entropy(net, ok(r, &y), &net->t[3]);
}

/* One tensor used by several nodes: gradients add up. */
static plume_tensor *f_shared(struct net *net)
{
    plume_tensor *h = LINEAR(&net->t[0], &net->t[1], &net->t[2], PLUME_RELU);
    plume_tensor *twice = LINEAR(h, &net->t[1], &net->t[2], PLUME_IDENTITY);
    plume_tensor *mixed = LINEAR(twice, h, NULL, PLUME_IDENTITY); /* an activation as weight */

    return entropy(net, mixed, &net->t[3]);
}

static void gradient_case(function f, size_t rows, size_t in, size_t out)
{
    struct net net = {0};

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){rows, in});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){out, in});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){out});
    labels(&net, rows, out);
    check_gradients(&net, f);
    finish(&net);
}

static void test_gradient_of_linear(void **state)
{
    gradient_case(f_linear, 5, 4, 3);
    gradient_case(f_linear, 1, 1, 2);
    gradient_case(f_linear_no_bias, 3, 5, 4);
    gradient_case(f_linear_relu, 6, 5, 7);
}

static void test_gradient_of_relu(void **state)
{
    gradient_case(f_relu, 4, 3, 5);
}

static void test_gradient_of_cross_entropy(void **state)
{
    gradient_case(f_linear_no_bias, 2, 1, 1); /* one class: no gradient */
    gradient_case(f_linear_no_bias, 7, 2, 11);
}

static void test_gradient_of_shared_tensors(void **state)
{
    gradient_case(f_shared, 4, 4, 4);
}

static void test_f32_gradients_are_near_f64(void **state)
{
    struct net a = {0}, b = {0};
    struct net *nets[] = {&a, &b};

    for (int i = 0; i < 2; i++) {
        enum pl_real real = i ? PL_REAL_F32 : PL_REAL_F64;
        plume_tensor *loss;

        pl_tape_init(&nets[i]->tape, pl_kernels_best(real), true);
        leaf(nets[i], real, 2, (size_t[]){16, 64});
        leaf(nets[i], real, 2, (size_t[]){10, 64});
        leaf(nets[i], real, 1, (size_t[]){10});
        labels(nets[i], 16, 10);
        pl_tape_begin(&nets[i]->tape);
        loss = f_linear_relu(nets[i]);
        pl_tape_end(&nets[i]->tape);
        assert_int_equal(pl_tape_backward(&nets[i]->tape, loss, NULL, NULL, NULL), 0);
    }
    /* 64 products of numbers around 3, rounded: 64 * 6e-8 * 10 */
    for (size_t k = 0; k < a.t[1].count; k++)
        assert_true(fabs(((double *)a.t[1].grad)[k] - ((float *)b.t[1].grad)[k]) < 4e-5);
    finish(&a);
    finish(&b);
}

static void test_tape_is_static_until_a_shape_changes(void **state)
{
    struct net net = {0};
    plume_tensor *first, *second;

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){6, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){3, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){3});
    labels(&net, 6, 3);
    pl_tape_begin(&net.tape);
    first = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_true(net.tape.changed);
    pl_tape_begin(&net.tape);
    second = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_ptr_equal(first, second);
    assert_false(net.tape.changed);
    assert_int_equal(net.tape.recordings, 1);

    net.t[0].shape[0] = net.t[3].shape[0] = 2; /* the last batch */
    net.t[0].count = 8;
    net.t[3].count = 2;
    pl_tape_begin(&net.tape);
    second = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_true(net.tape.changed);
    assert_int_equal(net.tape.recordings, 2);
    assert_int_equal(net.tape.nodes[0].out->shape[0], 2);
    assert_int_equal(pl_tape_backward(&net.tape, second, NULL, NULL, NULL), 0);

    pl_tape_begin(&net.tape); /* fewer ops: the rest goes */
    assert_int_equal(
        pl_op_linear(&net.tape, &net.t[0], &net.t[1], &net.t[2], PLUME_IDENTITY, &second, NULL), 0);
    pl_tape_end(&net.tape);
    assert_int_equal(net.tape.n, 1);
    assert_int_equal(net.tape.recordings, 3);
    finish(&net);
}

static int count_down(void *ctx, size_t index, struct pl_error *err)
{
    size_t *next = ctx;

    assert_int_equal(index, *next - 1);
    (*next)--;
    return index == 1 ? -ECANCELED : 0;
}

static void test_backward_reports_each_node_and_stops_on_failure(void **state)
{
    struct net net = {0};
    plume_tensor *loss;
    size_t next;

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    pl_tape_begin(&net.tape);
    loss = f_shared(&net);
    pl_tape_end(&net.tape);
    next = net.tape.n;
    assert_int_equal(pl_tape_backward(&net.tape, loss, count_down, &next, NULL), -ECANCELED);
    assert_int_equal(next, 1);
    finish(&net);
}

static void test_dry_tape_runs_nothing(void **state)
{
    struct net net = {0};
    plume_tensor *loss;

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    for (size_t i = 0; i < 3; i++) { /* as before the parameters are laid out */
        free(net.t[i].data);
        net.t[i].data = NULL;
    }
    net.tape.dry = true;
    pl_tape_begin(&net.tape);
    loss = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_int_equal(net.tape.n, 2);
    assert_true(*(double *)loss->data == 0);
    /* 2 * 4 * 4 * 4 and a bias each; twice that backward */
    assert_true(net.tape.nodes[0].op->flops(&net.tape.nodes[0], false) == 128 + 16);
    assert_true(net.tape.nodes[0].op->flops(&net.tape.nodes[0], true) == 256 + 16);
    assert_true(pl_tape_flops(&net.tape, false) > 144);
    finish(&net);
}

static void test_ops_refuse_shapes_that_do_not_fit(void **state)
{
    struct pl_error err = {0};
    struct net net = {0};
    plume_tensor *t = NULL;

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 5});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){3, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){3});
    labels(&net, 4, 4);
    leaf(&net, PL_REAL_F32, 2, (size_t[]){4, 4});
    assert_int_equal(pl_op_linear(&net.tape, &net.t[0], &net.t[1], NULL, PLUME_IDENTITY, &t, &err),
                     -EINVAL);
    assert_string_equal(err.text, "linear: shapes do not fit: x f64[4, 5], w f64[3, 4], b none");
    assert_int_equal(pl_op_linear(&net.tape, &net.t[4], &net.t[1], NULL, PLUME_IDENTITY, &t, &err),
                     -EINVAL);
    assert_int_equal(pl_op_relu(&net.tape, &net.t[3], &t, &err), -EINVAL);
    assert_int_equal(pl_op_cross_entropy(&net.tape, &net.t[0], &net.t[1], &t, &err), -EINVAL);
    assert_int_equal(pl_op_correct(&net.tape, &net.t[1], &net.t[3], &t, &err), -EINVAL);
    assert_null(t);
    assert_int_equal(net.tape.n, 0);
    finish(&net);
}

static void test_loss_must_depend_on_a_parameter(void **state)
{
    struct net net = {0};
    plume_tensor *loss;

    pl_tape_init(&net.tape, pl_kernels_ref(PL_REAL_F64), true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    for (size_t i = 0; i < 3; i++)
        net.t[i].wants_grad = false;
    pl_tape_begin(&net.tape);
    loss = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_int_equal(pl_tape_backward(&net.tape, loss, NULL, NULL, NULL), -EINVAL);
    finish(&net);
}

static void test_bump_goes_back_to_marks(void **state)
{
    struct pl_bump bump = {0};
    struct pl_bump_mark mark;
    char *a, *b, *c;

    a = pl_bump_alloc(&bump, 100);
    assert_int_equal((uintptr_t)a % PL_BUMP_ALIGN, 0);
    mark = pl_bump_mark(&bump);
    b = pl_bump_alloc(&bump, 10);
    assert_ptr_equal(b, a + 128);
    memset(b, 1, 10);
    pl_bump_alloc(&bump, 1000000); /* a chunk of its own */
    pl_bump_reset(&bump, mark);
    c = pl_bump_alloc(&bump, 10);
    assert_ptr_equal(b, c);
    assert_int_equal(c[0], 0);
    for (int i = 0; i < 100; i++)
        memset(pl_bump_alloc(&bump, 50000), 7, 50000);
    pl_bump_reset(&bump, mark);
    assert_non_null(pl_bump_alloc(&bump, 3000000)); /* chunks that are too small make way */
    assert_null(pl_bump_alloc(&bump, SIZE_MAX - 5));
    pl_bump_finish(&bump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_of_linear),
        cmocka_unit_test(test_gradient_of_relu),
        cmocka_unit_test(test_gradient_of_cross_entropy),
        cmocka_unit_test(test_gradient_of_shared_tensors),
        cmocka_unit_test(test_f32_gradients_are_near_f64),
        cmocka_unit_test(test_tape_is_static_until_a_shape_changes),
        cmocka_unit_test(test_backward_reports_each_node_and_stops_on_failure),
        cmocka_unit_test(test_dry_tape_runs_nothing),
        cmocka_unit_test(test_ops_refuse_shapes_that_do_not_fit),
        cmocka_unit_test(test_loss_must_depend_on_a_parameter),
        cmocka_unit_test(test_bump_goes_back_to_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
