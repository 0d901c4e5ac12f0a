/* SPDX-License-Identifier: MIT */
/* Indices of elements in arrays of several dimensions, without divisions for small numbers. */
#ifndef PL_KERNELS_CUDA_DIVIDER_CUH
#define PL_KERNELS_CUDA_DIVIDER_CUH

#include "kernels/cuda/launch.cuh"

namespace pl_cuda
{

/* Divides by a number that the host knows: a multiplication and a shift for dividends below 2^31
 * (Granlund and Montgomery 1994, "Division by invariant integers using multiplication", section 4),
 * else a division. Divides by 1 instead of 0, for empty arrays. */
class divider
{
    size_t by;
    unsigned multiplier, shift; /* shift 32: always a division */

  public:
    explicit divider(size_t by_ = 1) : by(by_ ? by_ : 1), multiplier(0), shift(0)
    {
        while (shift < 32 && (size_t)1 << shift < by)
            shift++;
        if (shift < 32)
            multiplier = (unsigned)(((((uint64_t)1 << shift) - by) << 32) / by + 1);
    }

    /* n / by; *ret_rest = n % by, which may be n itself. */
    __device__ __forceinline__ size_t operator()(size_t n, size_t *ret_rest) const
    {
        size_t quotient;

        if (n >> 31 || shift > 31) {
            quotient = n / by;
        } else {
            unsigned high = (unsigned)((uint64_t)(unsigned)n * multiplier >> 32);

            quotient = (high + (unsigned)n) >> shift;
        }
        *ret_rest = n - quotient * by;
        return quotient;
    }
};

} // namespace pl_cuda

#endif
