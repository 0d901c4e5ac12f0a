/* SPDX-License-Identifier: MIT */
/* All of oneDNN that is used. dnnl_sgemm() is the same in its versions 2 and 3. The library is
 * loaded at the first large product, not linked: loading and its first code generation take some
 * 20 to 60 ms, which a rank that trains a small model would pay before its first step.
 *
 * Its pool (libgomp's) is the process's only one; our own loops run on the calling thread. */
#include "kernels/cpu/level.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>

#define WORTH ((size_t)1 << 21) /* multiply-adds; below, own loops take less than 0.1 ms */

static __typeof__(&dnnl_sgemm) sgemm;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load_library(void)
{
    static const char *const names[] = {"libdnnl.so.3", "libdnnl.so.2"};
    void (*set_threads)(int);
    void *handle = NULL;

    /* libgomp's idle threads must sleep: other ranks may want their cores. */
    setenv("OMP_WAIT_POLICY", "passive", 0);
    for (size_t i = 0; i < PL_COUNT(names) && !handle; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!handle)
        return;
    sgemm = (__typeof__(sgemm))dlsym(handle, "dnnl_sgemm");
    set_threads = (__typeof__(set_threads))dlsym(handle, "omp_set_num_threads");
    if (set_threads)
        set_threads((int)pl_threads_available());
}

bool pl_gemm_dnnl(const struct pl_gemm *g)
{
    if (g->m * g->n * g->k < WORTH)
        return false;
    pthread_once(&once, load_library);
    if (!sgemm)
        return false;
    return sgemm(g->a_col == 1 ? 'N' : 'T', g->b_col == 1 ? 'N' : 'T', (dnnl_dim_t)g->m,
                 (dnnl_dim_t)g->n, (dnnl_dim_t)g->k, 1.0f, g->a,
                 (dnnl_dim_t)(g->a_col == 1 ? g->a_row : g->a_col), g->b,
                 (dnnl_dim_t)(g->b_col == 1 ? g->b_row : g->b_col), g->add ? 1.0f : 0.0f, g->c,
                 (dnnl_dim_t)g->ldc) == dnnl_success;
}
