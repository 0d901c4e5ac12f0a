/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/update.h"

static void momentum_block(const struct pl_sgd_args *a,
                           size_t n,
                           const float *restrict grad,
                           float *restrict param,
                           float *restrict velocity)
{
    float lr = (float)a->lr, momentum = (float)a->momentum, decay = (float)a->weight_decay;

    if (a->nesterov) {
        for (size_t k = 0; k < n; k++) {
            float g = grad[k] + decay * param[k], v = momentum * velocity[k] + g;

            velocity[k] = v;
            param[k] = param[k] - lr * (g + momentum * v);
        }
        return;
    }
    for (size_t k = 0; k < n; k++) {
        float v = momentum * velocity[k] + (grad[k] + decay * param[k]);

        velocity[k] = v;
        param[k] = param[k] - lr * v;
    }
}

static void plain_block(const struct pl_sgd_args *a,
                        size_t n,
                        const float *restrict grad,
                        float *restrict param)
{
    float lr = (float)a->lr, decay = (float)a->weight_decay;

    for (size_t k = 0; k < n; k++)
        param[k] = param[k] - lr * (grad[k] + decay * param[k]);
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_sgd_args *a = ctx;
    float buf[UPDATE_BLOCK];

    for (; begin < end; begin += UPDATE_BLOCK) {
        size_t n = PL_MIN((size_t)UPDATE_BLOCK, end - begin);
        const float *grad = update_grads(&a->update, begin, n, buf);
        float *param = (float *)a->update.param + begin;

        if (a->velocity)
            momentum_block(a, n, grad, param, (float *)a->velocity + begin);
        else
            plain_block(a, n, grad, param);
        update_copy(&a->update, begin, n);
    }
}

void PL_CPU(sgd)(const struct pl_sgd_args *a)
{
    pl_pool_parallel(a->update.n, UPDATE_GRAIN, body, (void *)(uintptr_t)a);
}
