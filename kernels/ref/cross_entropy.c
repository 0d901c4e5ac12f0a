/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

/* The sum of exp(z - max), z [classes]. */
static double sum_of(const real *z, size_t classes, double *ret_max)
{
    double max = z[0], sum = 0;

    for (size_t c = 1; c < classes; c++)
        max = z[c] > max ? z[c] : max;
    for (size_t c = 0; c < classes; c++)
        sum += exp(z[c] - max);
    *ret_max = max;
    return sum;
}

void PL_REF(cross_entropy_forward)(const struct pl_cross_entropy_args *a)
{
    const real *logits = a->logits;
    real *probs = a->probs, *max_sum = a->max_sum, *loss = a->loss;
    double mean_of = (double)(a->of ? a->of : a->rows), total = 0, max, of_row;

    for (size_t r = 0; r < a->rows; r++) {
        const real *z = logits + r * a->classes;
        int32_t label = a->labels[r];
        double sum = sum_of(z, a->classes, &max);

        for (size_t c = 0; probs && c < a->classes; c++)
            probs[r * a->classes + c] = (real)(exp(z[c] - max) / sum);
        if (max_sum) {
            max_sum[2 * r] = (real)max;
            max_sum[2 * r + 1] = (real)sum;
        }
        of_row = label < 0 || (size_t)label >= a->classes ? NAN : log(sum) - (z[label] - max);
        total += of_row;
        if (a->of)
            a->row_loss[a->first + r] = of_row;
        for (size_t c = 0; a->ahead && c < a->classes; c++) {
            double hot = label >= 0 && (size_t)label == c ? 1 : 0;

            ((real *)a->dlogits)[r * a->classes + c] =
                (real)((exp(z[c] - max) / sum - hot) / mean_of);
        }
    }
    if (a->of && a->first + a->rows < a->of)
        return;
    for (size_t r = 0; r < a->first; r++)
        total += a->row_loss[r];
    loss[0] = (real)(total / mean_of);
}

void PL_REF(cross_entropy_backward)(const struct pl_cross_entropy_args *a)
{
    const real *logits = a->logits, *probs = a->probs, *dloss = a->dloss;
    const real *max_sum = a->max_sum;
    real *dlogits = a->dlogits;
    double scale = (double)dloss[0] / (double)a->rows, max, sum;

    for (size_t k = 0; a->ahead && k < a->rows * a->classes; k++)
        dlogits[k] *= dloss[0];
    for (size_t r = 0; !a->ahead && r < a->rows; r++) {
        if (probs)
            max = sum = 0;
        else if (!max_sum)
            sum = sum_of(logits + r * a->classes, a->classes, &max);
        else {
            max = max_sum[2 * r];
            sum = max_sum[2 * r + 1];
        }
        for (size_t c = 0; c < a->classes; c++) {
            size_t k = r * a->classes + c;
            double hot = a->labels[r] >= 0 && (size_t)a->labels[r] == c ? 1 : 0;
            double p = probs ? probs[k] : exp(logits[k] - max) / sum;

            dlogits[k] = (real)((a->dx_add ? dlogits[k] : 0) + scale * (p - hot));
        }
    }
}
