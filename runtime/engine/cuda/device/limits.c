/* SPDX-License-Identifier: MIT */
/* The limits of a card. CUDA reports its clocks and the width of its memory; the work that a
 * multiprocessor does per clock follows from the architecture. Sources: CUDA C++ programming guide,
 * "Arithmetic instructions"; NVIDIA's white papers of the A100, RTX A6000, L40S, H100 and B200,
 * whose TFLOP/s "with sparsity" are twice these. Their figures are for a lower clock than the
 * highest: an H100 has 989 TFLOP/s in bf16 at 1.83 GHz, and 1070 at 1.98. */
#include "runtime/engine/cuda/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <string.h>

/* Floating-point operations per clock and multiprocessor, of tensor cores where they are. GeForce
 * cards do tf32, and 16 bits with sums in f32, at half of that (white papers of GA102 and AD102).
 */
static const struct {
    int capability;
    unsigned f64, f32, tf32, half;
} rates[] = {{80, 128, 128, 1024, 2048},
             {86, 4, 256, 512, 1024},
             {89, 4, 256, 512, 1024},
             {90, 256, 256, 2048, 4096},
             {100, 128, 256, 4096, 8192}};

static double attribute(unsigned index, enum cudaDeviceAttr which)
{
    int value = 0;

    if (cudaDeviceGetAttribute(&value, which, (int)index) == cudaSuccess)
        return value;
    (void)cudaGetLastError();
    return 0;
}

void pl_cuda_limits(struct pl_cuda_device *d, bool tf32)
{
    unsigned index = d->base.index;
    double clock = 1e3 * attribute(index, cudaDevAttrClockRate) * d->multiprocessors;
    double tensor = strstr(d->base.name, "GeForce") ? 0.5 * clock : clock;
    struct pl_device_limits *to = &d->base.limits;

    /* Twice per clock, the width in bits. */
    to->bytes = 2 * 1e3 * attribute(index, cudaDevAttrMemoryClockRate) *
                attribute(index, cudaDevAttrGlobalMemoryBusWidth) / 8;
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        if (rates[i].capability != d->capability)
            continue;
        to->flops[PL_REAL_F64] = clock * rates[i].f64;
        to->flops[PL_REAL_F32] = tf32 ? tensor * rates[i].tf32 : clock * rates[i].f32;
        to->flops[PL_REAL_BF16] = to->flops[PL_REAL_F16] = tensor * rates[i].half;
    }
}
