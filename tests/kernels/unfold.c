/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

static size_t windows_of(const struct pl_unfold_args *a)
{
    return pl_window_count(a->height, a->kernel_h, a->stride_h, a->pad_h, a->dilation_h) *
           pl_window_count(a->width, a->kernel_w, a->stride_w, a->pad_w, a->dilation_w);
}

static void one(const struct pl_kernels *ref, const struct pl_kernels *got, struct pl_unfold_args a)
{
    size_t x = a.batch * a.channels * a.height * a.width;
    size_t cols = a.batch * a.channels * a.kernel_h * a.kernel_w * windows_of(&a);
    size_t n = x > cols ? x : cols; /* tests/kernels/arrays.c */

    if (cols == 0)
        return;
    for (int fold = 0; fold < 2; fold++) {
        float *out = check_floats(n, FILL_RANDOM), *out2 = check_copy(out, n);

        check_case(
            "%s batch %zu channels %zu groups %zu, %zu x %zu by %zu x %zu, stride %zu %zu pad "
            "%zu %zu dilation %zu %zu add %d",
            fold ? "fold" : "unfold", a.batch, a.channels, a.groups, a.height, a.width, a.kernel_h,
            a.kernel_w, a.stride_h, a.stride_w, a.pad_h, a.pad_w, a.dilation_h, a.dilation_w,
            a.add);
        a.src = check_floats(n, fold ? FILL_RANDOM : FILL_SPECIAL);
        a.dst = out;
        (fold ? ref->fold : ref->unfold)(&a);
        a.dst = out2;
        (fold ? got->fold : got->unfold)(&a);
        check_same("dst", out2, out, fold ? x : cols); /* the same order of additions */
        check_end_case();
    }
}

/* By hand: 1 2 3 with a padding of one, windows of two taps that are two apart. */
static void known(const struct pl_kernels *got)
{
    static const float want_cols[] = {0, 2, 1, 3, 2, 0}, want_x[] = {2, 5, 3};
    float *x = check_floats(6, FILL_ZERO), *cols = check_floats(6, FILL_RANDOM);
    struct pl_unfold_args a = {.batch = 1,
                               .channels = 1,
                               .height = 1,
                               .width = 3,
                               .groups = 1,
                               .kernel_h = 1,
                               .kernel_w = 2,
                               .stride_h = 1,
                               .stride_w = 1,
                               .pad_w = 1,
                               .dilation_h = 1,
                               .dilation_w = 2,
                               .src = x,
                               .dst = cols};

    check_case("unfold by hand");
    for (int i = 0; i < 3; i++)
        x[i] = (float)(i + 1);
    got->unfold(&a);
    check_same("cols", cols, want_cols, 6);
    for (int i = 0; i < 6; i++)
        cols[i] = (float)i; /* x 0 1 2 are taps 2, 1 and 4, 3 */
    a.src = cols;
    a.dst = x;
    got->fold(&a);
    check_same("x", x, want_x, 3);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    known(ref);
    known(got);
    for (size_t i = 0; i < check_many(300, 60); i++) {
        size_t groups = 1 + check_random(3), each = 1 + check_random(3);

        one(ref, got,
            (struct pl_unfold_args){.batch = 1 + check_random(3),
                                    .channels = groups * each,
                                    .groups = groups,
                                    .height = 1 + check_random(9),
                                    .width = 1 + check_random(9),
                                    .kernel_h = 1 + check_random(4),
                                    .kernel_w = 1 + check_random(4),
                                    .stride_h = 1 + check_random(3),
                                    .stride_w = 1 + check_random(3),
                                    .pad_h = check_random(3),
                                    .pad_w = check_random(3),
                                    .dilation_h = 1 + check_random(3),
                                    .dilation_w = 1 + check_random(3),
                                    .add = check_random(2)});
    }
}
