/* SPDX-License-Identifier: MIT */
/* Sums over rows in a fixed number of lanes: the compiler keeps them in vector registers, and the
 * order of additions, so the bits, do not depend on the vectors' width. */
#ifndef PL_KERNELS_CPU_LANES_H
#define PL_KERNELS_CPU_LANES_H

#include <stddef.h>

#define PL_SUM_LANES 32

/* Sums `term` (of the index i) over i in [0, n). */
#define PL_LANE_SUM(n, term)                                                                       \
    ({                                                                                             \
        float lane_[PL_SUM_LANES] = {0};                                                           \
        size_t i = 0, n_ = (n);                                                                    \
        for (size_t base_ = 0; base_ + PL_SUM_LANES <= n_; base_ += PL_SUM_LANES)                  \
            for (size_t k_ = 0; k_ < PL_SUM_LANES; k_++) {                                         \
                i = base_ + k_;                                                                    \
                lane_[k_] += (term);                                                               \
            }                                                                                      \
        for (i = n_ - n_ % PL_SUM_LANES; i < n_; i++)                                              \
            lane_[i % PL_SUM_LANES] += (term);                                                     \
        for (size_t half_ = PL_SUM_LANES / 2; half_ > 0; half_ /= 2)                               \
            for (size_t k_ = 0; k_ < half_; k_++)                                                  \
                lane_[k_] += lane_[k_ + half_];                                                    \
        lane_[0];                                                                                  \
    })

#endif
