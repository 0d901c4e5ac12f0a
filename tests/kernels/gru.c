/* SPDX-License-Identifier: MIT */
#include "tests/kernels/check.h"

#include <math.h>

/* Gates are below 1, with errors of 4e-7 from the exponential; a gradient is a product of up to six
 * numbers of about 1. Below e^-87 the vector exponential is constant: hence the absolute part. */
#define TOLERANCE(want) (4e-6 * (1 + fabs(want)))

struct state {
    float *gates, *kept, *h, *y, *dx, *dh_before;
};

static struct state
run(const struct pl_kernels *k, struct pl_gru_args *a, const struct state *from, const float *kept)
{
    size_t n = a->batch * a->hidden;
    struct state s = {check_copy(from->gates, 3 * n),
                      check_copy(from->kept, n),
                      check_copy(from->h, n),
                      check_copy(from->y, a->batch * a->y_row),
                      check_copy(from->dx, a->batch * a->x_row),
                      check_copy(from->dh_before, n)};
    void *dx = a->dx;

    a->gates = s.gates;
    a->kept = s.kept;
    a->h = s.h;
    a->y = s.y;
    a->dx = dx ? s.dx : NULL;
    a->dh_before = s.dh_before;
    if (kept) { /* backward of the same numbers */
        a->kept = (void *)kept;
        k->gru_backward(a);
    } else {
        k->gru_forward(a);
    }
    a->dx = dx;
    return s;
}

static void compare(const char *what, const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check_close(what, i, got[i], want[i], TOLERANCE(want[i]));
}

/* Bits tell the arrays that there are, and those that are added to. */
static void one(const struct pl_kernels *ref,
                const struct pl_kernels *got,
                size_t batch,
                size_t hidden,
                unsigned bits,
                enum fill fill)
{
    struct pl_gru_args a = {.batch = batch, .hidden = hidden};
    size_t n = batch * hidden;
    struct state from, want, have, back;

    a.x_row = 3 * hidden + check_random(2) * check_random(9);
    a.y_row = hidden + check_random(2) * check_random(9);
    check_case("gru batch %zu hidden %zu x_row %zu y_row %zu bits %u fill %d", batch, hidden,
               a.x_row, a.y_row, bits, (int)fill);
    from = (struct state){check_floats(3 * n, FILL_RANDOM),
                          check_floats(n, FILL_RANDOM),
                          check_floats(n, FILL_RANDOM),
                          check_floats(batch * a.y_row, FILL_RANDOM),
                          check_floats(batch * a.x_row, FILL_RANDOM),
                          check_floats(n, FILL_RANDOM)};
    a.x = check_floats(batch * a.x_row, fill);
    a.hx = bits & 1 ? check_floats(3 * n, FILL_RANDOM) : NULL;
    a.h_before = bits & 2 ? check_floats(n, FILL_RANDOM) : NULL;
    a.b = bits & 4 ? check_floats(3 * hidden, FILL_RANDOM) : NULL;
    a.dy = check_floats(batch * a.y_row, FILL_RANDOM);
    a.dh = bits & 8 ? check_floats(n, FILL_RANDOM) : NULL;
    a.dx = bits & 16 ? from.dx : NULL;
    a.dx_add = bits & 32;
    a.dh_before_add = bits & 64;
    want = run(ref, &a, &from, NULL);
    have = run(got, &a, &from, NULL);
    compare("gates", have.gates, want.gates, 3 * n);
    compare("kept", have.kept, want.kept, n);
    compare("h", have.h, want.h, n);
    compare("y", have.y, want.y, batch * a.y_row); /* between the rows it stays */
    from.gates = want.gates;
    back = run(ref, &a, &from, want.kept);
    have = run(got, &a, &from, want.kept);
    compare("the products' gradients", have.gates, back.gates, 3 * n);
    compare("dx", have.dx, back.dx, batch * a.x_row);
    compare("dh_before", have.dh_before, back.dh_before, n);
    check_end_case();
}

/* dh_before is dh. */
static void in_place(const struct pl_kernels *got, size_t batch, size_t hidden)
{
    size_t n = batch * hidden;
    float *gates = check_floats(3 * n, FILL_RANDOM), *dh = check_floats(n, FILL_RANDOM);
    float *again = check_copy(gates, 3 * n), *apart = check_floats(n, FILL_RANDOM);
    struct pl_gru_args a = {.batch = batch,
                            .hidden = hidden,
                            .x_row = 3 * hidden,
                            .y_row = hidden,
                            .dy = check_floats(n, FILL_RANDOM),
                            .kept = check_floats(n, FILL_RANDOM),
                            .gates = gates,
                            .dh = dh,
                            .dh_before = apart};

    check_case("gru in place, batch %zu hidden %zu", batch, hidden);
    got->gru_backward(&a);
    a.gates = again;
    a.dh_before = dh;
    got->gru_backward(&a);
    for (size_t i = 0; i < n; i++)
        check_close("dh", i, dh[i], apart[i], 0);
    check_end_case();
}

void check_op(const struct pl_kernels *ref, const struct pl_kernels *got)
{
    for (size_t i = 0; i < check_many(300, 100); i++)
        one(ref, got, 1 + check_random(9), 1 + check_random(40), (unsigned)check_random(128),
            (enum fill)check_random(FILL_DENORM + 1));
    for (size_t i = 0; i < check_many(8, 3); i++)
        one(ref, got, 1 + check_random(40), 200 + check_random(400), (unsigned)check_random(128),
            FILL_RANDOM);
    in_place(got, 3, 17);
    in_place(got, 2, 300);
}
