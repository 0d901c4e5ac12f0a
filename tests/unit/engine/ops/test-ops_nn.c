/* SPDX-License-Identifier: MIT */
/* Losses, norms and statistics of plume/ops_nn.h, as a module calls them: they have PyTorch's
 * values and gradients. */
#include "plume/ops_nn.h"
#include "tests/golden/ops_nn.h"
#include "tests/unit/engine/ops/op_step.h"

#include <float.h>

/* The last leaf is w; `grads` others have gradients to compare. */
static void check(struct step *step, plume_tensor *y, const struct golden_nn *golden, size_t grads)
{
    run(step, y);
    same("y", pl_tensor_data(y), golden->y, y->count);
    for (size_t k = 0; k < grads; k++)
        same(k == 0 ? "first gradient" : "another gradient", step->grad[k], golden->grad[k],
             step->leaf[k].count);
    pl_tape_finish(&step->tape);
}

static void test_losses(void **state)
{
    struct step step;
    plume_tensor *a, *b;
    int32_t classes[4];

    (void)state;
    begin(&step);
    a = REAL(2, 3, 4);
    b = OTHER(3, 4);
    check(&step, plume_l1(&step.pl, a, b), &golden_l1, 2);
    begin(&step);
    a = REAL(2, 3, 4);
    b = OTHER(2, 3, 4);
    check(&step, plume_huber(&step.pl, a, b, 1.25), &golden_huber, 2);
    begin(&step);
    a = REAL(4, 6);
    b = SHARE(4, 6);
    check(&step, plume_bce_with_logits(&step.pl, a, b), &golden_bce, 2);
    begin(&step);
    a = REAL(4, 6);
    b = SHARE(4, 6);
    b->wants_grad = false;
    check(&step, plume_kl_div(&step.pl, a, b), &golden_kl, 1);
    begin(&step);
    a = REAL(4, 6);
    b = &step.leaf[step.n++];
    assert_int_equal(pl_tensor_init(b, PLUME_I32, 1, (size_t[]){4}), 0);
    for (int i = 0; i < 4; i++)
        classes[i] = i * 5 % 6;
    b->data = classes;
    check(&step, plume_cross_entropy_smooth(&step.pl, a, b, 0.15), &golden_smooth, 1);
}

/* Without smoothing a class that is masked out by minus infinity costs nothing; with it, it costs
 * infinity, as in PyTorch. */
static void test_smoothing_of_a_masked_class(void **state)
{
    (void)state;
    for (int smooth = 0; smooth < 2; smooth++) {
        int32_t classes[] = {0, 2};
        plume_tensor *logits, *labels, *loss;
        struct step step;

        begin(&step);
        logits = REAL(2, 3);
        step.data[0][1] = -INFINITY;
        labels = &step.leaf[step.n++];
        assert_int_equal(pl_tensor_init(labels, PLUME_I32, 1, (size_t[]){2}), 0);
        labels->data = classes;
        loss = plume_cross_entropy_smooth(&step.pl, logits, labels, smooth ? 0.1 : 0);
        run(&step, loss);
        if (smooth)
            assert_true(*(double *)pl_tensor_data(loss) == INFINITY);
        else
            assert_true(isfinite(*(double *)pl_tensor_data(loss)));
        for (size_t k = 0; k < 6 && !smooth; k++)
            assert_true(k == 1 ? step.grad[0][k] == 0 : isfinite(step.grad[0][k]));
        pl_tape_finish(&step.tape);
    }
}

/* A p of 0 adds 0, and one below 0, as of logarithms of shares, is an error: PyTorch's result is
 * NaN.
 */
static void test_kl_div_of_what_is_no_share(void **state)
{
    const double given[] = {0, -0.0, -0.25, -DBL_MIN, -INFINITY, NAN, DBL_MIN};

    (void)state;
    for (size_t i = 0; i < PL_COUNT(given); i++) {
        bool good = given[i] >= 0;
        struct step step;
        plume_tensor *log_q, *p, *kl;

        begin(&step);
        log_q = REAL(1, 3);
        p = SHARE(1, 3);
        step.data[1][0] = given[i];
        kl = plume_kl_div(&step.pl, log_q, p);
        run(&step, kl);
        assert_int_equal(isnan(*(double *)pl_tensor_data(kl)), !good);
        for (size_t k = 1; k < 3 && good; k++)
            assert_true(isfinite(step.grad[1][k]));
        if (good) {
            double want = (log(1.17549435e-38) - step.data[0][0]) * step.data[2][0];

            same("the gradient of p", &step.grad[1][0], &want, 1);
        }
        pl_tape_finish(&step.tape);
    }
}

/* Classes' labels or values of another shape. */
static plume_tensor *call(struct step *step, int which, plume_tensor *a, plume_tensor *b)
{
    struct plume_context *pl = &step->pl;

    switch (which) {
    case 0:
        return plume_l1(pl, a, b);
    case 1:
        return plume_huber(pl, a, b, 1);
    case 2:
        return plume_bce_with_logits(pl, a, b);
    case 3:
        return plume_kl_div(pl, a, b);
    case 4:
        return plume_nll(pl, plume_log_softmax(pl, a), b, NULL, -100);
    default:
        return plume_cross_entropy_but(pl, a, b, NULL, -100);
    }
}

static void test_losses_of_two_that_do_not_fit(void **state)
{
    enum { L1 = 1, HUBER = 2, BCE = 4, KL = 8, LABELS = 48 };
    static const struct {
        size_t a[5], b[5]; /* the rank, the shape */
        int asked, refused;
    } given[] = {
        {{1, 4}, {2, 4, 1}, 15, 15},
        {{2, 4, 1}, {1, 4}, 15, 15},
        {{2, 4, 1}, {2, 1, 4}, 15, 15},
        {{2, 2, 3}, {2, 3, 2}, 15, 15},
        {{2, 4, 6}, {1, 6}, 15, BCE | KL},
        {{1, 6}, {2, 4, 6}, 15, BCE | KL},
        {{2, 4, 6}, {1, 1}, 15, KL},
        {{1, 1}, {2, 4, 6}, 15, BCE | KL},
        {{2, 1, 6}, {1, 6}, 15, BCE | KL},
        {{1, 6}, {2, 1, 6}, 15, BCE | KL},
        {{2, 4, 6}, {2, 4, 6}, 15, 0},
        {{3, 2, 3, 4}, {2, 3, 2}, LABELS, LABELS},
        {{3, 2, 3, 4}, {3, 3, 2, 1}, LABELS, LABELS},
        {{4, 2, 1, 3, 4}, {2, 3, 2}, LABELS, LABELS},
        {{4, 2, 1, 3, 4}, {2, 2, 3}, LABELS, 0},
        {{3, 2, 3, 4}, {2, 2, 3}, LABELS, 0},
        {{3, 2, 3, 4}, {1, 6}, LABELS, 0},
        {{2, 6, 4}, {2, 2, 3}, LABELS, 0},
        {{2, 6, 4}, {2, 6, 1}, LABELS, 0},
        {{1, 4}, {1, 1}, LABELS, 0},
    };

    (void)state;
    for (size_t i = 0; i < 6 * PL_COUNT(given); i++) {
        const size_t *sa = given[i / 6].a, *sb = given[i / 6].b;
        int which = (int)(i % 6);
        bool refused = given[i / 6].refused >> which & 1;
        struct step step;
        plume_tensor *a, *b;

        if (!(given[i / 6].asked >> which & 1))
            continue;
        begin(&step);
        a = leaf(&step, sa[0], sa + 1, 7, 11, 5, 4);
        b = leaf(&step, sb[0], sb + 1, 1, 5, 0, 4);
        if (which >= 4)
            b->dtype = PLUME_I32;
        a = call(&step, which, a, b);
        if (!a != refused || step.failed != (refused ? -EINVAL : 0))
            fail_msg("loss %d, case %zu: '%s'", which, i / 6, step.text);
        if (refused && !strstr(step.text, ": is one transposed?: ["))
            fail_msg("loss %d: '%s'", which, step.text);
        pl_tape_end(&step.tape);
        pl_tape_finish(&step.tape);
    }
}

static void test_norms(void **state)
{
    struct step step;
    plume_tensor *x, *gamma, *beta, *y;

    (void)state;
    begin(&step);
    x = REAL(2, 3, 4);
    gamma = OTHER(4);
    check(&step, plume_rmsnorm(&step.pl, x, gamma, 0), &golden_rmsnorm, 2);
    begin(&step);
    x = REAL(2, 4, 3, 2);
    gamma = OTHER(4);
    beta = SHARE(4);
    check(&step, plume_groupnorm(&step.pl, x, 2, gamma, beta, 0), &golden_groupnorm, 3);
    begin(&step); /* without beta, and with one of 0 */
    x = REAL(2, 4, 3, 2);
    gamma = OTHER(4);
    beta = plume_full(&step.pl, SHAPE(4), 0);
    y = plume_sub(&step.pl, plume_groupnorm(&step.pl, x, 2, gamma, NULL, 0),
                  plume_groupnorm(&step.pl, x, 2, gamma, beta, 0));
    run(&step, y);
    for (size_t i = 0; i < y->count; i++)
        assert_true(((const double *)pl_tensor_data(y))[i] == 0);
    pl_tape_finish(&step.tape);
    begin(&step);
    x = REAL(2, 4, 3, 2);
    beta = OTHER(2);
    assert_null(plume_layernorm(&step.pl, x, NULL, beta, 0));
    assert_null(plume_groupnorm(&step.pl, x, 2, NULL, OTHER(4), 0));
    assert_null(plume_groupnorm(&step.pl, x, 3, NULL, NULL, 0));
    assert_int_equal(step.failed, -EINVAL);
    pl_tape_end(&step.tape);
    pl_tape_finish(&step.tape);
}

/* The squares of the larger numbers need more bits than an f64 has; their differences do not. */
static void test_batchnorm_far_from_zero(void **state)
{
    double y[2][8], var[2], slope[2][8];

    (void)state;
    for (int far = 0; far < 2; far++) {
        plume_tensor *x, *w, *b, *mean, *of_var, *out;
        struct step step;

        begin(&step);
        x = REAL(8, 1);
        w = REAL(1);
        b = REAL(1);
        mean = REAL(1);
        of_var = REAL(1);
        mean->wants_grad = of_var->wants_grad = mean->is_param = of_var->is_param = false;
        for (size_t i = 0; i < 8; i++)
            step.data[0][i] = (double)(i * i) + (far ? 0x1p27 : 0);
        step.data[3][0] = 0;
        step.data[4][0] = 1;
        out = plume_batchnorm(&step.pl, x, w, b, mean, of_var, 0, 0, PLUME_IDENTITY);
        run(&step, out);
        memcpy(y[far], pl_tensor_data(out), sizeof(y[far]));
        memcpy(slope[far], step.grad[0], sizeof(slope[far]));
        var[far] = step.data[4][0];
        pl_tape_finish(&step.tape);
    }
    same("y", y[1], y[0], 8);
    same("the gradient of x", slope[1], slope[0], 8);
    same("the running variance", &var[1], &var[0], 1);
}

static int of_one_rank(void *ctx, double *sums, size_t n)
{
    return 0;
}

/* Sums of the second channel's squares have lost 7 digits of its variance, and f64 has 16. An
 * infinite value of a channel makes its mean infinite, as in PyTorch, and not NaN. */
static void test_batchnorm_over_ranks_in_f64(void **state)
{
    double got[2][36]; /* y, the gradient of x, the running averages */

    (void)state;
    for (int far = 0; far < 3; far++) {
        plume_tensor *x, *w, *b, *mean, *of_var, *out;
        struct step step;

        begin(&step);
        step.tape.allreduce = of_one_rank;
        x = REAL(8, 2);
        w = REAL(2);
        b = REAL(2);
        mean = REAL(2);
        of_var = REAL(2);
        mean->wants_grad = of_var->wants_grad = mean->is_param = of_var->is_param = false;
        for (size_t i = 0; i < 16; i++)
            step.data[0][i] = 0.7 * (double)(i * i) + 0x1p17 - (far == 1 && i % 2 ? 0 : 0x1p17);
        if (far == 2)
            step.data[0][6] = INFINITY;
        for (size_t k = 0; k < 2; k++) {
            step.data[3][k] = 0;
            step.data[4][k] = 1;
        }
        out = plume_batchnorm(&step.pl, x, w, b, mean, of_var, 0, 0, PLUME_IDENTITY);
        run(&step, out);
        if (far == 2) {
            assert_true(isnan(((double *)pl_tensor_data(out))[0]));
            assert_true(step.data[3][0] == INFINITY);
        } else {
            memcpy(got[far], pl_tensor_data(out), 16 * sizeof(double));
            memcpy(got[far] + 16, step.grad[0], 16 * sizeof(double));
            memcpy(got[far] + 32, step.data[3], 2 * sizeof(double));
            memcpy(got[far] + 34, step.data[4], 2 * sizeof(double));
            got[far][33] -= far == 1 ? 0x1p17 / 10 : 0;
        }
        pl_tape_finish(&step.tape);
    }
    for (size_t i = 0; i < 36; i++) /* a mean is rounded by up to 2^-37 */
        if (!(fabs(got[1][i] - got[0][i]) < 1e-10))
            fail_msg("[%zu] is %.17g, not %.17g", i, got[1][i], got[0][i]);
}

/* The value and the gradients of two elements at the edges: torch.logsumexp()'s. */
static void test_logsumexp_of_infinities(void **state)
{
    static const double inf = INFINITY, nan = NAN;
    const struct {
        double x[2], y, grad[2];
    } known[] = {
        {{-inf, -inf}, -inf, {nan, nan}},    {{inf, 1}, inf, {nan, 0}},
        {{inf, inf}, inf, {nan, nan}},       {{-inf, 1}, 1, {0, 1}},
        {{nan, 1}, nan, {nan, nan}},         {{inf, -inf}, inf, {nan, 0}},
        {{1e300, 1e300}, 1e300, {0.5, 0.5}}, {{-1000, -1000}, -1000 + M_LN2, {0.5, 0.5}},
        {{inf, 1000}, inf, {nan, 0}},        {{inf, 1e5}, inf, {nan, 0}},
        {{1e300, inf}, inf, {0, nan}},       {{DBL_MAX, inf}, inf, {0, nan}},
        {{-DBL_MAX, inf}, inf, {0, nan}},
    };

    (void)state;
    for (size_t k = 0; k < PL_COUNT(known); k++) {
        struct step step;
        plume_tensor *x, *y, *roots[1];

        begin(&step);
        x = REAL(1, 2);
        memcpy(step.data[0], known[k].x, sizeof(known[k].x));
        y = plume_logsumexp(&step.pl, x, 1, 2);
        roots[0] = y;
        pl_tape_end(&step.tape);
        assert_int_equal(pl_tape_prepare(&step.tape, roots, 1, 1, NULL), 0);
        assert_int_equal(pl_tape_forward(&step.tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(&step.tape, &(struct pl_backward){.loss = y, .seed = 1}, NULL), 0);
        for (size_t i = 0; i < 3; i++) {
            double got = i == 2 ? *(const double *)pl_tensor_data(y) : step.grad[0][i];
            double want = i == 2 ? known[k].y : known[k].grad[i];

            if (!(got == want || fabs(got - want) <= 1e-12 * fabs(want) ||
                  (isnan(got) && isnan(want))))
                fail_msg("case %zu: %zu is %g, not %g", k, i, got, want);
        }
        pl_tape_finish(&step.tape);
    }
}

/* Of equal elements, and of none but zeros: their gradient is 0, not NaN. */
static void test_roots_of_zero(void **state)
{
    struct step step;
    plume_tensor *x, *y;

    (void)state;
    begin(&step);
    x = REAL(3, 2);
    for (size_t i = 0; i < 6; i++)
        step.data[0][i] = i < 2 ? 0 : i < 4 ? 7 : (double)i;
    y = plume_add(&step.pl, plume_std(&step.pl, x, 1, 2, 1),
                  plume_norm(&step.pl, plume_slice(&step.pl, x, 0, 0, 1), 1, 2));
    run(&step, y);
    assert_true(((const double *)pl_tensor_data(y))[0] == 0);
    assert_true(((const double *)pl_tensor_data(y))[1] == 0);
    for (size_t i = 0; i < 4; i++)
        assert_true(step.grad[0][i] == 0);
    assert_true(step.grad[0][4] < 0 || step.grad[0][4] > 0);
    pl_tape_finish(&step.tape);
}

/* The mean of numbers that are large beside their differences is rounded, and that of equal ones
 * need not be equal to them. */
static void test_the_variance_of_close_numbers(void **state)
{
    const double steps[] = {0, 1, 3};

    (void)state;
    for (size_t first = 0; first < 3; first++) {
        struct step step;
        plume_tensor *x, *y;

        begin(&step);
        x = REAL(3);
        for (size_t i = 0; i < 3; i++)
            step.data[0][i] = 0x1p52 + steps[(first + i) % 3];
        y = plume_var(&step.pl, x, 0, 1, 1);
        run(&step, y);
        assert_true(fabs(*(const double *)pl_tensor_data(y) - 14 / 6.0) < 1e-15);
        pl_tape_finish(&step.tape);
    }
    for (size_t n = 2; n <= MOST; n++) {
        struct step step;
        plume_tensor *x, *y;

        begin(&step);
        x = REAL(n);
        for (size_t i = 0; i < n; i++)
            step.data[0][i] = 0.1;
        y = plume_std(&step.pl, x, 0, 1, 1);
        run(&step, y);
        assert_true(*(const double *)pl_tensor_data(y) == 0);
        for (size_t i = 0; i < n; i++)
            assert_true(step.grad[0][i] == 0);
        pl_tape_finish(&step.tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_smoothing_of_a_masked_class),
        cmocka_unit_test(test_kl_div_of_what_is_no_share),
        cmocka_unit_test(test_losses_of_two_that_do_not_fit),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_batchnorm_far_from_zero),
        cmocka_unit_test(test_batchnorm_over_ranks_in_f64),
        cmocka_unit_test(test_logsumexp_of_infinities),
        cmocka_unit_test(test_roots_of_zero),
        cmocka_unit_test(test_the_variance_of_close_numbers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
