/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(sgd)(const struct pl_sgd_args *a)
{
    const real *grad = a->grad;
    real *param = a->param, *velocity = a->velocity;
    real lr = (real)a->lr, momentum = (real)a->momentum, decay = (real)a->weight_decay;

    for (size_t k = 0; k < a->n; k++) {
        real g = grad[k] + decay * param[k];

        if (velocity)
            g = velocity[k] = momentum * velocity[k] + g;
        param[k] = param[k] - lr * g;
    }
}
