/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(mse_forward)(const struct pl_mse_args *a)
{
    const real *x = a->a, *z = a->b;
    double sum = 0;

    for (size_t i = 0; i < a->n; i++)
        sum += ((double)x[i] - z[i]) * ((double)x[i] - z[i]);
    *(real *)a->loss = (real)(sum / (double)a->n);
}

void PL_REF(mse_backward)(const struct pl_mse_args *a)
{
    const real *x = a->a, *z = a->b;
    real *da = a->da, *db = a->db;
    double scale = 2 * (double)*(const real *)a->dloss / (double)a->n;

    for (size_t i = 0; i < a->n; i++) {
        double g = scale * ((double)x[i] - z[i]);

        if (da)
            da[i] = (real)((a->da_add ? da[i] : 0) + g);
        if (db)
            db[i] = (real)((a->db_add ? db[i] : 0) - g);
    }
}
