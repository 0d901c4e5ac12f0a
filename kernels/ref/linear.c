/* SPDX-License-Identifier: MIT */
#include "kernels/ref/activation.h"

void PL_REF(linear_forward)(const struct pl_linear_args *a)
{
    const real *x = a->x, *w = a->w, *b = a->b;
    real *y = a->y, *pre = a->pre;

    for (size_t r = 0; r < a->rows; r++) {
        for (size_t o = 0; o < a->out; o++) {
            double sum = b ? b[o] : 0;

            for (size_t i = 0; i < a->in; i++)
                sum += (double)x[r * a->in + i] * w[o * a->in + i];
            if (pl_activation_needs_pre(a->act))
                sum = pre[r * a->out + o] = (real)sum;
            y[r * a->out + o] = (real)ref_activate(a->act, sum);
        }
    }
}

static void sum_dx(const struct pl_linear_args *a)
{
    const real *dx = a->dx;
    real *to = a->dx_sums;

    for (size_t i = 0; i < a->in; i++) {
        double sum = a->dx_sums_add ? to[i] : 0;

        for (size_t r = 0; r < a->rows; r++)
            sum += dx[r * a->in + i];
        to[i] = (real)sum;
    }
}

static void sum_dy(const struct pl_linear_args *a, const real *dy, size_t row)
{
    real *db = a->db;

    for (size_t o = 0; db && o < a->out; o++) {
        double sum = a->db_add ? db[o] : 0;

        for (size_t r = 0; r < a->rows; r++)
            sum += dy[r * row + o];
        db[o] = (real)sum;
    }
}

void PL_REF(linear_backward)(const struct pl_linear_args *a)
{
    const real *x = a->x, *w = a->w, *dy = a->dy;
    const real *at = pl_activation_needs_pre(a->act) ? a->pre : a->y;
    real *dz = a->dz, *dx = a->dx, *dw = a->dw;

    if (a->dy_row) {
        sum_dy(a, dy, a->dy_row);
        return;
    }
    for (size_t k = 0; k < a->rows * a->out; k++)
        if (a->act <= PL_ACT_RELU) /* for any dy */
            dz[k] = a->act == PL_ACT_RELU && at[k] <= 0 ? 0 : dy[k];
        else
            dz[k] = (real)(dy[k] * ref_activate_slope(a->act, at[k]));
    for (size_t r = 0; dx && r < a->rows; r++) {
        for (size_t i = 0; i < a->in; i++) {
            double sum = a->dx_add ? dx[r * a->in + i] : 0;

            for (size_t o = 0; o < a->out; o++)
                sum += (double)dz[r * a->out + o] * w[o * a->in + i];
            dx[r * a->in + i] = (real)sum;
            if (a->x_pre)
                dx[r * a->in + i] *=
                    (real)ref_activate_slope(a->x_act, ((const real *)a->x_pre)[r * a->in + i]);
        }
    }
    if (a->dx_sums)
        sum_dx(a);
    for (size_t o = 0; dw && o < a->out; o++) {
        for (size_t i = 0; i < a->in; i++) {
            double sum = a->dw_add ? dw[o * a->in + i] : 0;

            for (size_t r = 0; r < a->rows; r++)
                sum += (double)dz[r * a->out + o] * x[r * a->in + i];
            dw[o * a->in + i] = (real)sum;
        }
    }
    sum_dy(a, dz, a->out);
}
