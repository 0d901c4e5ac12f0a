/* SPDX-License-Identifier: MIT */
#include "runtime/engine/gpu.h"
#include "runtime/engine/plugin.h"

#include <dlfcn.h>

#define FILE_NAME "plume-cuda.so"

static const struct pl_device_ops *devices;
static const struct pl_nccl_table *nccl; /* NULL: it has none */

/* Whether its parts are of this release: all or none, since all come from one build. */
static int take(void *handle, struct pl_error *err)
{
    const struct pl_device_ops *(*get)(void);
    const struct pl_device_ops *found;
    const struct pl_nccl_table *table = dlsym(handle, PL_NCCL_TABLE_SYMBOL);

    *(void **)&get = dlsym(handle, PL_DEVICE_CUDA_SYMBOL);
    found = get ? get() : NULL;
    if (!found || found->version != PL_DEVICE_VERSION ||
        (table && table->version != PL_NCCL_TABLE_VERSION))
        return pl_error_set(err, -ENOTSUP,
                            "cannot use GPUs: " FILE_NAME " is of another release; install the one "
                            "that was built with this program");
    devices = found;
    nccl = table;
    return 0;
}

static int load(struct pl_error *err)
{
    struct pl_error why = {0};
    void *handle = NULL;
    int r;

    if (devices)
        return 0;
    r = pl_plugin_load(FILE_NAME, RTLD_NOW | RTLD_LOCAL, &handle, &why);
    if (r < 0)
        return pl_error_set(err, r,
                            "cannot use GPUs: %s; install CUDA's libraries and build with "
                            "-Dcuda=enabled",
                            pl_error_text(&why));
    r = take(handle, err);
    if (r < 0)
        dlclose(handle);
    return r;
}

int pl_gpu_devices(const struct pl_device_ops **ret, struct pl_error *err)
{
    int r = load(err);

    if (r == 0)
        *ret = devices;
    return r;
}

int pl_gpu_nccl(const struct pl_nccl_table **ret, struct pl_error *err)
{
    int r = load(err);

    if (r == 0 && !nccl)
        r = pl_error_set(err, -ENOTSUP,
                         "cannot use NCCL: " FILE_NAME " was built without it; install NCCL and "
                         "build again");
    if (r == 0)
        *ret = nccl;
    return r;
}
