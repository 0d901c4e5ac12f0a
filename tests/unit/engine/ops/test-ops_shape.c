/* SPDX-License-Identifier: MIT */
/* The functions of the headers beside plume/ops_nn.h, as a module calls them: attention, pooling,
 * einsum, shapes and random numbers, and what each refuses. */
#include "plume/ops_attention.h"
#include "plume/ops_einsum.h"
#include "plume/ops_image.h"
#include "plume/ops_nn.h"
#include "plume/ops_shape.h"
#include "tests/unit/engine/ops/op_step.h"

/* The sum of |y| of attention with this dropout, and of which probabilities. */
static double attended(double dropout, bool training)
{
    struct step step;
    struct plume_attention_how how = {.heads = 2, .kv_heads = 1, .dropout = dropout};
    plume_tensor *q, *k, *y;
    double sum = 0;

    begin(&step);
    step.tape.want_grad = training;
    q = REAL(1, 3, 4);
    k = OTHER(1, 5, 2);
    y = plume_attention_with(&step.pl, q, k, k, &how);
    pl_tape_end(&step.tape);
    assert_int_equal(pl_tape_prepare(&step.tape, &y, 1, 0, NULL), 0);
    assert_int_equal(pl_tape_forward(&step.tape, NULL), 0);
    for (size_t i = 0; i < y->count; i++)
        sum += fabs(((const double *)pl_tensor_data(y))[i]);
    pl_tape_finish(&step.tape);
    return sum;
}

static void test_attention_drops_in_training_only(void **state)
{
    double whole = attended(0, true), dropped = attended(0.5, true);

    (void)state;
    assert_true(whole == attended(0.5, false));
    assert_true(dropped != whole && dropped == attended(0.5, true));
}

/* Shapes that do not fit are refused by a hook's failure, not by a crash. */
static void test_refused_calls(void **state)
{
    struct step step;
    struct plume_attention_how how = {.heads = 2, .kv_heads = 3};
    plume_tensor *x, *y;

    (void)state;
    begin(&step);
    x = REAL(1, 3, 4);
    assert_null(plume_attention_with(&step.pl, x, x, x, &how));
    assert_int_equal(step.failed, -EINVAL);
    step.failed = 0;
    how.kv_heads = 0;
    y = plume_reshape(&step.pl, x, SHAPE(1, 6, 2)); /* keys of half the width */
    assert_null(plume_attention_with(&step.pl, x, y, y, &how));
    assert_int_equal(step.failed, -EINVAL);
    assert_null(plume_attention_with(&step.pl, x, NULL, y, &how));
    step.failed = 0;
    assert_null(plume_conv1d(&step.pl, x, plume_reshape(&step.pl, x, SHAPE(3, 4)), NULL, 1, 0, 1, 1,
                             PLUME_IDENTITY));
    assert_int_equal(step.failed, -EINVAL);
    step.failed = 0;
    assert_null(plume_pad(&step.pl, x, 3, 1, 1, 0));
    assert_int_equal(step.failed, -EINVAL);
    step.failed = 0;
    assert_null(plume_tril(&step.pl, plume_reshape(&step.pl, x, SHAPE(12)), 0));
    assert_string_equal(step.text, "tril: there is no dimension 1 among 1");
    step.failed = 0;
    assert_null(plume_var(&step.pl, x, 0, 1, 1));
    assert_string_equal(step.text,
                        "var: 1 elements with the correction 1: there must be more than that");
    assert_null(plume_std(&step.pl, x, 1, 2, 3));
    assert_null(plume_flip(&step.pl, x, 3));
    assert_string_equal(step.text, "flip: there is no dimension 3 among 3");
    assert_null(plume_roll(&step.pl, x, (size_t)-1, 1));
    assert_null(plume_adaptive_max_pool(&step.pl, x, 3, 1));
    assert_string_equal(step.text, "adaptive max pool: there is no dimension 3 among 3");
    assert_null(plume_adaptive_max_pool(&step.pl, x, 2, 0));
    assert_string_equal(step.text, "adaptive max pool: the size is 0, or exceeds 32 bits");
    step.text[0] = 0;
    assert_null(plume_adaptive_max_pool(&step.pl, x, 2, 0x7fffffff));
    assert_string_equal(step.text, "adaptive max pool: the size is 0, or exceeds 32 bits");
    assert_null(plume_adaptive_max_pool2d(&step.pl, x, 1, 1));
    assert_string_equal(step.text, "adaptive max pool: there is no dimension 3 among 3");
    assert_null(plume_add_dim(&step.pl, x, 4));
    assert_string_equal(step.text, "add_dim: there is no dimension 4 among 4");
    assert_null(plume_stack(&step.pl, 0, 0, &x));
    assert_string_equal(step.text, "stack: takes 1 to 4096 tensors");
    assert_int_equal(step.failed, -EINVAL);
    pl_tape_end(&step.tape);
    pl_tape_finish(&step.tape);
}

/* torch.nn.functional.adaptive_max_pool2d()'s values, and gradients of the sum of y by 1, 2, ...:
 * but of several NaNs the first has the gradient, as of plume_max_pool2d(), and PyTorch's the last.
 */
static void test_adaptive_max_pools_of_equals(void **state)
{
    static const double inf = INFINITY, nan = NAN;
    const struct {
        size_t h, w, size[2];
        double x[16], y[4], grad[16];
    } known[] = {
        {1, 5, {1, 2}, {1, nan, 3, nan, 5}, {nan, nan}, {0, 1, 0, 2, 0}},
        {1, 5, {1, 2}, {-inf, -inf, -inf, -inf, -inf}, {-inf, -inf}, {1, 0, 2, 0, 0}},
        {1, 5, {1, 3}, {nan, nan, nan, -inf, inf}, {nan, nan, inf}, {1, 2, 0, 0, 3}},
        {1, 2, {1, 3}, {5, 7}, {5, 7, 7}, {1, 5}},
        {3, 3, {2, 2}, {0, -0.0, 0, -0.0, 0, 0, 0, 0, 0}, {0}, {1, 2, 0, 3, 4}},
        {3, 3, {2, 2}, {1, 2, nan, nan, 2, 2, 2, 1, 2}, {nan, nan, nan, 2}, {0, 0, 2, 4, 4}},
        {4,
         4,
         {2, 2},
         {1, 2, nan, 0, nan, 2, 2, 0, 2, 1, 2},
         {nan, nan, 2, 2},
         {0, 0, 2, 0, 1, 0, 0, 0, 3, 0, 4}},
    };

    (void)state;
    for (size_t k = 0; k < PL_COUNT(known); k++) {
        struct step step;
        plume_tensor *x, *y, *loss, *roots[2];
        size_t all = 0;

        begin(&step);
        x = REAL(1, 1, known[k].h, known[k].w);
        memcpy(step.data[0], known[k].x, sizeof(known[k].x));
        y = plume_adaptive_max_pool2d(&step.pl, x, known[k].size[0], known[k].size[1]);
        loss = plume_cumsum(&step.pl, plume_full(&step.pl, 1, &y->count, 1), 0);
        loss = plume_mul(&step.pl, loss, plume_reshape(&step.pl, y, 1, &all));
        roots[0] = plume_sum(&step.pl, loss, 0, 1);
        roots[1] = y;
        pl_tape_end(&step.tape);
        assert_int_equal(pl_tape_prepare(&step.tape, roots, 2, 1, NULL), 0);
        assert_int_equal(pl_tape_forward(&step.tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(&step.tape, &(struct pl_backward){.loss = roots[0], .seed = 1}, NULL),
            0);
        assert_int_equal(y->count, known[k].size[0] * known[k].size[1]);
        for (size_t i = 0; i < y->count + x->count; i++) {
            size_t at = i - y->count;
            bool back = i >= y->count;
            double got = back ? step.grad[0][at] : ((const double *)pl_tensor_data(y))[i];
            double want = back ? known[k].grad[at] : known[k].y[i];

            if (!(got == want || (isnan(got) && isnan(want))))
                fail_msg("case %zu: %s %zu is %g, not %g", k, back ? "gradient" : "value",
                         back ? at : i, got, want);
        }
        pl_tape_finish(&step.tape);
    }
}

/* Places that the index names once have src, others x; one that it names twice is NaN. */
static void test_scatter_takes_no_index_twice(void **state)
{
    int32_t places[] = {2, 0, 4, 0};
    struct step step;
    plume_tensor *x, *index, *src, *y;
    const double *got;

    (void)state;
    begin(&step);
    x = REAL(5);
    src = OTHER(4);
    index = &step.leaf[step.n++];
    assert_int_equal(pl_tensor_init(index, PLUME_I32, 1, (size_t[]){4}), 0);
    index->data = places;
    y = plume_scatter(&step.pl, x, 0, index, src);
    run(&step, y);
    got = pl_tensor_data(y);
    assert_true(isnan(got[0]) && got[1] == step.data[0][1] && got[2] == step.data[1][0]);
    assert_true(got[3] == step.data[0][3] && got[4] == step.data[1][2]);
    pl_tape_finish(&step.tape);
}

static void test_forms_that_einsum_refuses(void **state)
{
    static const struct {
        const char *form;
        int two;
        const char *why;
    } refused[] = {
        {"ij,jk", 1, "needs '->', and as many tensors as it is given"},
        {"ij->ji", 1, "needs '->', and as many tensors as it is given"},
        {"ij-", 0, "needs '->', and as many tensors as it is given"},
        {"", 0, "needs '->', and as many tensors as it is given"},
        {"ij,jk->ik", 0, "the second tensor is NULL"},
        {"ij,jk,kl->il", 1, "takes letters, ',', '->' and one '...' a tensor, not ','"},
        {"..j,jk->k", 1, "takes letters, ',', '->' and one '...' a tensor, not '.'"},
        {"...j...,jk->k", 1, "takes letters, ',', '->' and one '...' a tensor, not '.'"},
        {"...,...->...", 1, "two sizes has a dimension of '...'"},
        {"ii,jk->k", 1, "takes no diagonals: twice in one tensor is 'i'"},
        {"ij,jk->kk", 1, "takes no diagonals: twice in one tensor is 'k'"},
        {"ijk,jk->i", 1, "does not have as many letters as a tensor has dimensions"},
        {"abcdef,jk->a", 1, "has more dimensions than a tensor"},
        {"ij,jk->i", 1, "two sizes has 'j'"},
        {"ij,kl->im", 1, "no tensor has 'm'"},
        {"ij,kl->i->", 1, "takes letters, ',', '->' and one '...' a tensor, not '-'"},
    };
    struct step step;
    plume_tensor *a, *b, *none, *list[3];

    (void)state;
    begin(&step);
    a = REAL(2, 3);
    b = OTHER(4, 5);
    for (size_t i = 0; i < PL_COUNT(refused); i++) {
        char text[160];

        snprintf(text, sizeof(text), "einsum '%s': %s", refused[i].form, refused[i].why);
        step.text[0] = 0;
        assert_null(plume_einsum(&step.pl, refused[i].form, a, refused[i].two ? b : NULL));
        assert_string_equal(step.text, text);
    }
    none = REAL(2, 0);
    assert_null(plume_einsum(&step.pl, "ij->i", none, NULL));
    assert_string_equal(step.text, "einsum 'ij->i': takes no empty tensors: of size 0 is 'j'");
    assert_null(plume_einsum(&step.pl, "ji->ij", none, NULL));
    assert_string_equal(step.text, "einsum 'ji->ij': takes no empty tensors: of size 0 is 'i'");
    assert_null(plume_einsum(&step.pl, "i...->...i", none, NULL));
    assert_string_equal(step.text, "einsum 'i...->...i': takes no empty tensors: of size 0 is a "
                                   "dimension of '...'");
    assert_non_null(plume_einsum(&step.pl, " ij , Kl -> i K ", a, b));
    list[0] = list[2] = a;
    list[1] = b;
    assert_null(plume_einsum_all(&step.pl, "ab,cd,ae->be", 17, list));
    assert_non_null(strstr(step.text, "takes 1 to 16 tensors"));
    list[1] = plume_reshape(&step.pl, b, SHAPE(2, 2, 5, 1));
    assert_null(plume_einsum_all(&step.pl, "ab,cdef,cb->abdef", 3, list));
    assert_non_null(strstr(step.text, "too many dimensions: reorder them"));
    pl_tape_end(&step.tape);
    pl_tape_finish(&step.tape);
}

/* More tensors than an op takes: each is at its place, and gets its gradient. */
static void test_many_are_stacked(void **state)
{
    enum { MANY = 150 };
    struct step step;
    plume_tensor *x, *y, *list[MANY];

    (void)state;
    begin(&step);
    x = REAL(2);
    for (size_t i = 0; i < MANY; i++)
        list[i] = plume_scale(&step.pl, x, (double)i, 0);
    y = plume_stack(&step.pl, 1, MANY, list);
    y = plume_sum(
        &step.pl,
        plume_mul(&step.pl, y, plume_cumsum(&step.pl, plume_full(&step.pl, SHAPE(MANY), 1), 0)), 1,
        2);
    run(&step, y);
    for (size_t k = 0; k < 2; k++) {
        double want = 0;

        for (size_t i = 0; i < MANY; i++)
            want += (double)i * (double)(i + 1) * step.data[0][k];
        assert_true(fabs(((const double *)pl_tensor_data(y))[k] - want) <= 1e-9 * fabs(want));
    }
    pl_tape_finish(&step.tape);
}

/* Each is of the kind that its name says: whole numbers, a range, a mean. */
static void test_random_tensors(void **state)
{
    struct step step;
    plume_tensor *y[3];

    (void)state;
    begin(&step);
    y[0] = plume_bernoulli(&step.pl, SHAPE(10, 100), 0.25);
    y[1] = plume_uniform(&step.pl, SHAPE(10, 100), 2, 4);
    y[2] = plume_normal(&step.pl, SHAPE(10, 100), -3, 0.5);
    pl_tape_end(&step.tape);
    assert_int_equal(pl_tape_prepare(&step.tape, y, 3, 0, NULL), 0);
    assert_int_equal(pl_tape_forward(&step.tape, NULL), 0);
    for (size_t k = 0; k < 3; k++) {
        static const double mean[] = {0.25, 3, -3};
        const double *at = pl_tensor_data(y[k]);
        double sum = 0;

        for (size_t i = 0; i < 1000; i++) {
            sum += at[i] / 1000;
            assert_true(k != 0 || at[i] == 0 || at[i] == 1);
            assert_true(k != 1 || (at[i] >= 2 && at[i] < 4));
        }
        assert_true(fabs(sum - mean[k]) < 0.08);
    }
    pl_tape_finish(&step.tape);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_drops_in_training_only),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_adaptive_max_pools_of_equals),
        cmocka_unit_test(test_many_are_stacked),
        cmocka_unit_test(test_forms_that_einsum_refuses),
        cmocka_unit_test(test_scatter_takes_no_index_twice),
        cmocka_unit_test(test_random_tensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
