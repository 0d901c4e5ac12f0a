/* SPDX-License-Identifier: MIT */
#include "kernels/ref/update.h"

void PL_REF(adam)(const struct pl_adam_args *a)
{
    double correct1 = 1 - pow(a->beta1, (double)a->step);
    double correct2 = sqrt(1 - pow(a->beta2, (double)a->step));
    real weight1 = (real)(1 - a->beta1), weight2 = (real)(1 - a->beta2);
    real step = (real) - (a->lr / correct1), keep = (real)(1 - a->lr * a->weight_decay);
    real *param = a->update.param, *m = a->m, *v = a->v;

    for (size_t k = 0; k < a->update.n; k++) {
        real g = update_grad(&a->update, k), p = param[k];

        if (a->decoupled)
            p = p * keep;
        else
            g = g + (real)a->weight_decay * p;
        m[k] = update_lerp(m[k], g, weight1);
        v[k] = v[k] * (real)a->beta2 + weight2 * g * g;
        p = p + step * m[k] / ((real)sqrt(v[k]) / (real)correct2 + (real)a->eps);
        update_param(&a->update, k, p);
    }
}
