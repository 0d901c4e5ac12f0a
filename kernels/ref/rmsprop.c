/* SPDX-License-Identifier: MIT */
#include "kernels/ref/update.h"

void PL_REF(rmsprop)(const struct pl_rmsprop_args *a)
{
    real alpha = (real)a->alpha, weight = (real)(1 - a->alpha), eps = (real)a->eps;
    real step = (real)-a->lr, momentum = (real)a->momentum, decay = (real)a->weight_decay;
    real *param = a->update.param, *v = a->v, *mean = a->mean, *velocity = a->velocity;

    for (size_t k = 0; k < a->update.n; k++) {
        real g = update_grad(&a->update, k) + decay * param[k], square, d;

        square = v[k] = v[k] * alpha + weight * g * g;
        if (mean) {
            mean[k] = update_lerp(mean[k], g, weight);
            square = square - mean[k] * mean[k];
        }
        d = (real)sqrt(square) + eps;
        if (velocity) {
            velocity[k] = velocity[k] * momentum + g / d;
            update_param(&a->update, k, param[k] + step * velocity[k]);
        } else {
            update_param(&a->update, k, param[k] + step * g / d);
        }
    }
}
