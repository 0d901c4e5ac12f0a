/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/update.h"

static void block(const struct pl_adagrad_args *a,
                  size_t n,
                  const float *restrict grad,
                  float *restrict param,
                  float *restrict sum)
{
    float step = (float)-a->lr, eps = (float)a->eps, decay = (float)a->weight_decay;

    for (size_t k = 0; k < n; k++) {
        float g = grad[k] + decay * param[k];

        sum[k] = sum[k] + g * g;
        param[k] = param[k] + step * g / (sqrtf(sum[k]) + eps);
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct pl_adagrad_args *a = ctx;
    float buf[UPDATE_BLOCK];

    for (; begin < end; begin += UPDATE_BLOCK) {
        size_t n = PL_MIN((size_t)UPDATE_BLOCK, end - begin);

        block(a, n, update_grads(&a->update, begin, n, buf), (float *)a->update.param + begin,
              (float *)a->sum + begin);
        update_copy(&a->update, begin, n);
    }
}

void PL_CPU(adagrad)(const struct pl_adagrad_args *a)
{
    pl_pool_parallel(a->update.n, UPDATE_GRAIN, body, (void *)(uintptr_t)a);
}
