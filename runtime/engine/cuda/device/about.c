/* SPDX-License-Identifier: MIT */
/* The GPUs that this process sees, and what computes on them. */
#include "runtime/engine/cuda/cublaslt/cublaslt.h"
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/device/cuda_device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULE "/proc/driver/nvidia/version" /* the kernel's part of the driver writes it */

int pl_cuda_count(unsigned *ret, struct pl_error *err)
{
    int n = 0, driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(&n);

    if (code == cudaSuccess && n > 0) {
        *ret = (unsigned)n;
        return 0;
    }
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    return pl_cuda_explain(code == cudaSuccess ? cudaErrorNoDevice : code, driver, runtime,
                           access(MODULE, F_OK) == 0, err);
}

/* The driver's release, such as 580.65.06; "" if the kernel module does not tell. */
static void driver_release(char *ret, size_t size)
{
    FILE *f = fopen(MODULE, "re");
    char line[256] = "", *rest = line, *word;

    *ret = '\0';
    if (!f)
        return;
    if (!fgets(line, sizeof(line), f))
        line[0] = '\0';
    fclose(f);
    while (!*ret && (word = strsep(&rest, " \n")))
        if (*word >= '0' && *word <= '9' && strchr(word, '.'))
            snprintf(ret, size, "%s", word);
}

/* number = 10000 a + 100 b + c */
static void add_version(char *text, size_t size, const char *library, size_t number)
{
    size_t at = strlen(text);

    if (number)
        snprintf(text + at, size - at, ", %s %zu.%zu.%zu", library, number / 10000,
                 number / 100 % 100, number % 100);
    else
        snprintf(text + at, size - at, ", no %s", library);
}

int pl_cuda_about(unsigned index, struct pl_device_about *ret, struct pl_error *err)
{
    struct pl_device_about about = {.name = ""};
    struct cudaDeviceProp prop;
    char device[32], release[64];
    int driver = 0, runtime = 0, r;
    cudaError_t code;
    unsigned n = 0;

    snprintf(device, sizeof(device), "cuda:%u", index);
    r = pl_cuda_count(&n, err);
    if (r < 0)
        return r;
    if (index >= n)
        return pl_error_set(err, -ENODEV, "there is no GPU %u: this process sees %u", index, n);
    code = cudaGetDeviceProperties(&prop, (int)index);
    if (code != cudaSuccess)
        return pl_cuda_error(err, device, "cudaGetDeviceProperties", code);
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    driver_release(release, sizeof(release));
    snprintf(about.name, sizeof(about.name), "%.120s", prop.name);
    snprintf(about.versions, sizeof(about.versions),
             "driver %s%sfor CUDA %d.%d, runtime %d.%d, capability %d.%d", release,
             *release ? " " : "", driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10, prop.major, prop.minor);
    add_version(about.versions, sizeof(about.versions), "cuBLAS", pl_cublaslt_version());
    add_version(about.versions, sizeof(about.versions), "cuDNN", pl_cudnn_version());
    *ret = about;
    return 0;
}
