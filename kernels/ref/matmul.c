/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

void PL_REF(matmul)(const struct pl_matmul_args *s)
{
    for (size_t t = 0; t < s->batch; t++) {
        const real *a = (const real *)s->a + t * s->a_batch;
        const real *b = (const real *)s->b + t * s->b_batch;
        real *c = (real *)s->c + t * s->c_batch;

        for (size_t i = 0; i < s->m; i++) {
            for (size_t j = 0; j < s->n; j++) {
                double sum = 0;

                for (size_t k = 0; k < s->k; k++)
                    sum += (double)a[s->a_transposed ? k * s->a_row + i : i * s->a_row + k] *
                           b[s->b_transposed ? j * s->b_row + k : k * s->b_row + j];
                sum *= s->scale;
                c[i * s->c_row + j] = (real)(s->add ? c[i * s->c_row + j] + sum : sum);
            }
        }
    }
}
