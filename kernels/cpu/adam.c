/* SPDX-License-Identifier: MIT */
#include "kernels/cpu/update.h"

struct adam {
    const struct pl_adam_args *args;
    float beta1, beta2, weight1, weight2, step, correct2, eps, keep, decay;
};

/* `late`: lerp from its far end, as at::lerp does for weights from 1/2 on. Both flags are constants
 * after inlining. */
static inline __attribute__((always_inline)) void block(const struct adam *s,
                                                        bool decoupled,
                                                        bool late,
                                                        size_t n,
                                                        const float *restrict grad,
                                                        float *restrict param,
                                                        float *restrict m,
                                                        float *restrict v)
{
    float beta1 = s->beta1, beta2 = s->beta2, weight1 = s->weight1, weight2 = s->weight2;
    float step = s->step, correct2 = s->correct2, eps = s->eps, keep = s->keep, decay = s->decay;

    for (size_t k = 0; k < n; k++) {
        float p = param[k], g = grad[k];

        if (decoupled)
            p = p * keep;
        else
            g = g + decay * p;
        m[k] = late ? g - (g - m[k]) * beta1 : m[k] + weight1 * (g - m[k]);
        v[k] = v[k] * beta2 + weight2 * g * g;
        param[k] = p + step * m[k] / (sqrtf(v[k]) / correct2 + eps);
    }
}

static void body(void *ctx, size_t begin, size_t end)
{
    const struct adam *s = ctx;
    const struct pl_adam_args *a = s->args;
    float buf[UPDATE_BLOCK];

    for (; begin < end; begin += UPDATE_BLOCK) {
        size_t n = PL_MIN((size_t)UPDATE_BLOCK, end - begin);
        const float *grad = update_grads(&a->update, begin, n, buf);
        float *param = (float *)a->update.param + begin;
        float *m = (float *)a->m + begin, *v = (float *)a->v + begin;

        if (s->weight1 >= 0.5f)
            block(s, a->decoupled, true, n, grad, param, m, v);
        else if (a->decoupled)
            block(s, true, false, n, grad, param, m, v);
        else
            block(s, false, false, n, grad, param, m, v);
        update_copy(&a->update, begin, n);
    }
}

void PL_CPU(adam)(const struct pl_adam_args *a)
{
    double correct1 = 1 - pow(a->beta1, (double)a->step);
    double correct2 = sqrt(1 - pow(a->beta2, (double)a->step));
    struct adam s = {
        .args = a,
        .weight1 = (float)(1 - a->beta1),
        .beta1 = 1 - (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .weight2 = (float)(1 - a->beta2),
        .step = (float)-(a->lr / correct1),
        .correct2 = (float)correct2,
        .eps = (float)a->eps,
        .keep = (float)(1 - a->lr * a->weight_decay),
        .decay = (float)a->weight_decay,
    };

    pl_pool_parallel(a->update.n, UPDATE_GRAIN, body, &s);
}
