/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/level.h"

void PL_CPU(sgd)(const struct pl_sgd_args *a)
{
    const float *restrict grad = a->grad;
    float *restrict param = a->param, *restrict velocity = a->velocity;
    float lr = (float)a->lr, momentum = (float)a->momentum, decay = (float)a->weight_decay;

    if (!velocity) {
        for (size_t k = 0; k < a->n; k++)
            param[k] = param[k] - lr * (grad[k] + decay * param[k]);
        return;
    }
    for (size_t k = 0; k < a->n; k++) {
        float v = momentum * velocity[k] + (grad[k] + decay * param[k]);

        velocity[k] = v;
        param[k] = param[k] - lr * v;
    }
}
