/* SPDX-License-Identifier: MIT */
#include "kernels/ref/update.h"

void PL_REF(adagrad)(const struct pl_adagrad_args *a)
{
    real step = (real)-a->lr, eps = (real)a->eps, decay = (real)a->weight_decay;
    real *param = a->update.param, *sum = a->sum;

    for (size_t k = 0; k < a->update.n; k++) {
        real g = update_grad(&a->update, k) + decay * param[k];

        sum[k] = sum[k] + g * g;
        update_param(&a->update, k, param[k] + step * g / ((real)sqrt(sum[k]) + eps));
    }
}
