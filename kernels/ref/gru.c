/* SPDX-License-Identifier: MIT */
#include "kernels/ref/activation.h"

void PL_REF(gru_forward)(const struct pl_gru_args *a)
{
    for (size_t r = 0; r < a->batch; r++)
        for (size_t k = 0; k < a->hidden; k++) {
            size_t at = r * a->hidden + k;
            double from_x[3], from_h[3], gate[3], before;

            for (size_t part = 0; part < 3; part++) {
                size_t column = part * a->hidden + k, place = r * 3 * a->hidden + column;

                from_x[part] = ((const real *)a->x)[r * a->x_row + column];
                from_h[part] = a->hx ? ((const real *)a->hx)[place] : 0;
                from_h[part] += a->b ? ((const real *)a->b)[column] : 0;
            }
            gate[0] = ref_activate(PL_ACT_SIGMOID, from_x[0] + from_h[0]);
            gate[1] = ref_activate(PL_ACT_SIGMOID, from_x[1] + from_h[1]);
            gate[2] = tanh(from_x[2] + gate[0] * from_h[2]);
            for (size_t part = 0; part < 3; part++)
                ((real *)a->gates)[r * 3 * a->hidden + part * a->hidden + k] = (real)gate[part];
            ((real *)a->kept)[at] = (real)from_h[2];
            before = a->h_before ? ((const real *)a->h_before)[at] : 0;
            ((real *)a->h)[at] = ((real *)a->y)[r * a->y_row + k] =
                (real)((1 - gate[1]) * gate[2] + gate[1] * before);
        }
}

void PL_REF(gru_backward)(const struct pl_gru_args *a)
{
    for (size_t i = 0; i < a->batch; i++)
        for (size_t k = 0; k < a->hidden; k++) {
            size_t at = i * a->hidden + k;
            real *gates = (real *)a->gates + i * 3 * a->hidden + k;
            real *dh_before = (real *)a->dh_before + at;
            double r = gates[0], z = gates[a->hidden], n = gates[2 * a->hidden], d, dx[3];

            d = ((const real *)a->dy)[i * a->y_row + k];
            d += a->dh ? ((const real *)a->dh)[at] : 0;
            dx[2] = d * (1 - z) * (1 - n * n);
            dx[1] = d * ((a->h_before ? ((const real *)a->h_before)[at] : 0) - n) * z * (1 - z);
            dx[0] = dx[2] * ((const real *)a->kept)[at] * r * (1 - r);
            *dh_before = (real)(d * z + (a->dh_before_add ? *dh_before : 0));
            for (size_t part = 0; part < 3; part++) {
                real *to = a->dx ? (real *)a->dx + i * a->x_row + part * a->hidden + k : NULL;

                gates[part * a->hidden] = (real)(part == 2 ? dx[2] * r : dx[part]);
                if (to)
                    *to = (real)(dx[part] + (a->dx_add ? *to : 0));
            }
        }
}
