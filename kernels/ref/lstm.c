/* SPDX-License-Identifier: MIT */
#include "kernels/ref/activation.h"

void PL_REF(lstm_forward)(const struct pl_lstm_args *a)
{
    for (size_t r = 0; r < a->batch; r++)
        for (size_t k = 0; k < a->hidden; k++) {
            size_t at = r * a->hidden + k;
            double gate[4], c;

            for (size_t part = 0; part < 4; part++) {
                size_t column = part * a->hidden + k, place = r * 4 * a->hidden + column;
                double z = ((const real *)a->x)[r * a->x_row + column];

                z += a->hx ? ((const real *)a->hx)[place] : 0;
                gate[part] = ref_activate(part == 2 ? PL_ACT_TANH : PL_ACT_SIGMOID, z);
                ((real *)a->gates)[place] = (real)gate[part];
            }
            c = gate[1] * (a->c_before ? ((const real *)a->c_before)[at] : 0) + gate[0] * gate[2];
            ((real *)a->c)[at] = (real)c;
            ((real *)a->h)[at] = ((real *)a->y)[r * a->y_row + k] = (real)(gate[3] * tanh(c));
        }
}

void PL_REF(lstm_backward)(const struct pl_lstm_args *a)
{
    for (size_t r = 0; r < a->batch; r++)
        for (size_t k = 0; k < a->hidden; k++) {
            size_t at = r * a->hidden + k;
            real *gates = (real *)a->gates + r * 4 * a->hidden + k;
            real *dc_before = (real *)a->dc_before + at;
            double i = gates[0], f = gates[a->hidden], g = gates[2 * a->hidden];
            double o = gates[3 * a->hidden], t = tanh(((const real *)a->c)[at]), dh, dc, dz[4];

            dh = ((const real *)a->dy)[r * a->y_row + k];
            dh += a->dh ? ((const real *)a->dh)[at] : 0;
            dc = dh * o * (1 - t * t) + (a->dc ? ((const real *)a->dc)[at] : 0);
            dz[0] = dc * g * i * (1 - i);
            dz[1] = dc * (a->c_before ? ((const real *)a->c_before)[at] : 0) * f * (1 - f);
            dz[2] = dc * i * (1 - g * g);
            dz[3] = dh * t * o * (1 - o);
            *dc_before = (real)(dc * f + (a->dc_before_add ? *dc_before : 0));
            for (size_t part = 0; part < 4; part++) {
                real *dx = a->dx ? (real *)a->dx + r * a->x_row + part * a->hidden + k : NULL;

                gates[part * a->hidden] = (real)dz[part];
                if (dx)
                    *dx = (real)(dz[part] + (a->dx_add ? *dx : 0));
            }
        }
}
