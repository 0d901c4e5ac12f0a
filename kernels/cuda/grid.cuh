/* SPDX-License-Identifier: MIT */
/* The number of a kernel's blocks, for launch.cuh and the emulator. */
#ifndef PL_KERNELS_CUDA_GRID_CUH
#define PL_KERNELS_CUDA_GRID_CUH

#include <stddef.h>

namespace pl_cuda
{

#define PL_GRID_X                                                                                  \
    2147483647 /* the most blocks (CUDA's programming guide, "Compute Capabilities") */
#define PL_GRID_Y 65535
#define PL_GRID_TOO_LARGE                                                                          \
    "its arrays are larger than its kernel can divide among a GPU's blocks (2147483647 x 65535)"

/* A kernel's blocks: dim3 would cut them to 32 bits. */
struct grid_of {
    size_t x, y;

    grid_of(size_t x_, size_t y_ = 1) : x(x_), y(y_) {}

    bool fits() const
    {
        return x <= PL_GRID_X && y <= PL_GRID_Y;
    }
};

} // namespace pl_cuda

#endif
