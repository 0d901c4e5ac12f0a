/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/update.h"

struct rmsprop {
    const struct pl_rmsprop_args *args;
    float alpha, weight, far, step, eps, momentum, decay;
};

/* d[k] = the divisor; changes the means. `late`: lerp from its far end, as at::lerp does for
 * weights from 1/2 on; a constant after inlining. */
static inline __attribute__((always_inline)) void divisors(const struct rmsprop *s,
                                                           bool late,
                                                           size_t n,
                                                           const float *restrict g,
                                                           float *restrict v,
                                                           float *restrict mean,
                                                           float *restrict d)
{
    float alpha = s->alpha, weight = s->weight, far = s->far, eps = s->eps;

    for (size_t k = 0; k < n; k++)
        v[k] = v[k] * alpha + weight * g[k] * g[k];
    if (!mean) {
        for (size_t k = 0; k < n; k++)
            d[k] = sqrtf(v[k]) + eps;
        return;
    }
    for (size_t k = 0; k < n; k++) {
        mean[k] = late ? g[k] - (g[k] - mean[k]) * far : mean[k] + weight * (g[k] - mean[k]);
        d[k] = sqrtf(v[k] - mean[k] * mean[k]) + eps;
    }
}

static void apply(const struct rmsprop *s,
                  size_t n,
                  const float *restrict g,
                  const float *restrict d,
                  float *restrict param,
                  float *restrict velocity)
{
    float step = s->step, momentum = s->momentum;

    if (!velocity) {
        for (size_t k = 0; k < n; k++)
            param[k] = param[k] + step * g[k] / d[k];
        return;
    }
    for (size_t k = 0; k < n; k++) {
        velocity[k] = velocity[k] * momentum + g[k] / d[k];
        param[k] = param[k] + step * velocity[k];
    }
}

static void
decayed(float decay, size_t n, const float *grad, const float *restrict param, float *restrict g)
{
    for (size_t k = 0; k < n; k++)
        g[k] = grad[k] + decay * param[k];
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct rmsprop *s = ctx;
    const struct pl_rmsprop_args *a = s->args;
    float buf[UPDATE_BLOCK], g[UPDATE_BLOCK], d[UPDATE_BLOCK];

    for (; begin < end; begin += UPDATE_BLOCK) {
        size_t n = PL_MIN((size_t)UPDATE_BLOCK, end - begin);
        float *param = (float *)a->update.param + begin, *v = (float *)a->v + begin;
        float *mean = a->mean ? (float *)a->mean + begin : NULL;

        decayed(s->decay, n, update_grads(&a->update, begin, n, buf), param, g);
        if (s->weight >= 0.5f)
            divisors(s, true, n, g, v, mean, d);
        else
            divisors(s, false, n, g, v, mean, d);
        apply(s, n, g, d, param, a->velocity ? (float *)a->velocity + begin : NULL);
        update_copy(&a->update, begin, n);
    }
}

void PL_CPU(rmsprop)(const struct pl_rmsprop_args *a)
{
    struct rmsprop s = {
        .args = a,
        .alpha = (float)a->alpha,
        .weight = (float)(1 - a->alpha),
        .far = 1 - (float)(1 - a->alpha),
        .step = (float)-a->lr,
        .eps = (float)a->eps,
        .momentum = (float)a->momentum,
        .decay = (float)a->weight_decay,
    };

    pl_pool_parallel(a->update.n, UPDATE_GRAIN, body, &s);
}
