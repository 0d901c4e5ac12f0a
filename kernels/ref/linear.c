/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(linear_forward)(const struct pl_linear_args *a)
{
    const real *x = a->x, *w = a->w, *b = a->b;
    real *y = a->y;

    for (size_t r = 0; r < a->rows; r++) {
        for (size_t o = 0; o < a->out; o++) {
            double sum = b ? b[o] : 0;

            for (size_t i = 0; i < a->in; i++)
                sum += (double)x[r * a->in + i] * w[o * a->in + i];
            y[r * a->out + o] = (real)(a->relu && sum <= 0 ? 0 : sum);
        }
    }
}

void PL_REF(linear_backward)(const struct pl_linear_args *a)
{
    const real *x = a->x, *w = a->w, *y = a->y, *dy = a->dy;
    real *dz = a->dz, *dx = a->dx, *dw = a->dw, *db = a->db;

    for (size_t k = 0; k < a->rows * a->out; k++)
        dz[k] = a->relu && y[k] <= 0 ? 0 : dy[k];
    for (size_t r = 0; dx && r < a->rows; r++) {
        for (size_t i = 0; i < a->in; i++) {
            double sum = a->dx_add ? dx[r * a->in + i] : 0;

            for (size_t o = 0; o < a->out; o++)
                sum += (double)dz[r * a->out + o] * w[o * a->in + i];
            dx[r * a->in + i] = (real)sum;
        }
    }
    for (size_t o = 0; dw && o < a->out; o++) {
        for (size_t i = 0; i < a->in; i++) {
            double sum = a->dw_add ? dw[o * a->in + i] : 0;

            for (size_t r = 0; r < a->rows; r++)
                sum += (double)dz[r * a->out + o] * x[r * a->in + i];
            dw[o * a->in + i] = (real)sum;
        }
    }
    for (size_t o = 0; db && o < a->out; o++) {
        double sum = a->db_add ? db[o] : 0;

        for (size_t r = 0; r < a->rows; r++)
            sum += dz[r * a->out + o];
        db[o] = (real)sum;
    }
}
