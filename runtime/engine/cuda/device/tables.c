/* SPDX-License-Identifier: MIT */
#include "kernels/cuda/cuda.h"
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/device/cuda_device.h"

#include <pthread.h>

#define REALS (PL_REAL_F16 + 1)

static struct pl_kernels tables[REALS];
static bool there[REALS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_tables(void)
{
    for (unsigned real = 0; real < REALS; real++) {
        const struct pl_kernels *own = pl_kernels_cuda((enum pl_real)real);

        if (!own)
            continue;
        tables[real] = *own;
        pl_cublaslt_install(&tables[real]);
        pl_cudnn_install(&tables[real]);
        there[real] = true;
    }
}

const struct pl_kernels *pl_cuda_kernels(enum pl_real real)
{
    pthread_once(&once, make_tables);
    return (unsigned)real < REALS && there[real] ? &tables[real] : NULL;
}
