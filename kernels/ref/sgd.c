/* SPDX-License-Identifier: MIT */
#include "kernels/ref/update.h"

void PL_REF(sgd)(const struct pl_sgd_args *a)
{
    real lr = (real)a->lr, momentum = (real)a->momentum, decay = (real)a->weight_decay;
    real *param = a->update.param, *velocity = a->velocity;

    for (size_t k = 0; k < a->update.n; k++) {
        real g = update_grad(&a->update, k) + decay * param[k];

        if (velocity) {
            velocity[k] = momentum * velocity[k] + g;
            g = a->nesterov ? g + momentum * velocity[k] : velocity[k];
        }
        update_param(&a->update, k, param[k] - lr * g);
    }
}
