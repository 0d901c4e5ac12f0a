/* SPDX-License-Identifier: MIT */
#include "kernels/ref/real.h"

#include <math.h>

void PL_REF(space_to_depth)(const struct pl_squares_args *a)
{
    const real *x = a->src;
    real *y = a->dst;

    for (size_t n = 0; n < a->batch; n++)
        for (size_t i = 0; i < a->rows; i++)
            for (size_t j = 0; j < a->columns; j++)
                for (size_t u = 0; u < 2; u++)
                    for (size_t v = 0; v < 2; v++)
                        for (size_t c = 0; c < a->wide; c++) {
                            size_t row = 2 * i + u - a->before_h, col = 2 * j + v - a->before_w;
                            bool there = row < a->height && col < a->width && c < a->channels;

                            *y = there
                                     ? x[((n * a->height + row) * a->width + col) * a->channels + c]
                                     : 0;
                            if (a->bad && !isfinite(*y)) {
                                ++*a->bad;
                                *y = 0;
                            }
                            y++;
                        }
}

void PL_REF(depth_to_space)(const struct pl_squares_args *a)
{
    const real *y = a->src;
    real *x = a->dst;

    for (size_t n = 0; n < a->batch; n++)
        for (size_t row = 0; row < a->height; row++)
            for (size_t col = 0; col < a->width; col++)
                for (size_t c = 0; c < a->channels; c++, x++) {
                    size_t i = (row + a->before_h) / 2, j = (col + a->before_w) / 2;
                    size_t u = (row + a->before_h) % 2, v = (col + a->before_w) % 2;
                    size_t square = (n * a->rows + i) * a->columns + j;
                    real value = i < a->rows && j < a->columns
                                     ? y[((square * 2 + u) * 2 + v) * a->wide + c]
                                     : 0;

                    *x = a->add ? *x + value : value;
                }
}
