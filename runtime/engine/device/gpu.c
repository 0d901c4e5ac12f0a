/* SPDX-License-Identifier: MIT */
#include "runtime/engine/device/gpu.h"
#include "common/base/env.h"
#include "runtime/engine/util/plugin.h"

#include <dlfcn.h>
#include <stdlib.h>

#define FILE_NAME "plume-cuda.so"

static const struct pl_device_ops *devices;
static const struct pl_nccl_table *nccl; /* NULL: built without NCCL */

/* True if its parts are of this release; all come from one build. */
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
    char text[512];
    int r = load(err);

    if (r == 0 && !nccl)
        r = pl_error_set(err, -ENOTSUP,
                         FILE_NAME " was built without NCCL; install it and build again");
    if (r == 0 && nccl->there(text, sizeof(text)) < 0)
        r = pl_error_set(err, -ENOTSUP, "%s", text);
    if (r == 0)
        *ret = nccl;
    return r;
}

int pl_gpu_look(const struct pl_device_ops **ret, unsigned *ret_n, struct pl_error *err)
{
    int r;

    if (!pl_env(PL_ENV_SLURM_JOB_ID) && setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0) < 0)
        return pl_error_nomem(err);
    r = load(err);
    if (r < 0)
        return r;
    *ret = devices;
    return devices->count(ret_n, err);
}

int pl_gpu_open(const struct pl_gpu_choice *choice, struct pl_device **ret, struct pl_error *err)
{
    bool slurm = pl_env(PL_ENV_SLURM_JOB_ID) != NULL;
    unsigned there = 0, index = choice->local_rank;
    const struct pl_device_ops *ops;
    int r = pl_gpu_look(&ops, &there, err);

    if (r < 0)
        return r;
    if (there == 1 && (slurm || !choice->asked))
        index = 0;
    else if (choice->local_rank < choice->n)
        index = choice->list[choice->local_rank];
    if (index >= there)
        return pl_error_set(err, -ENODEV,
                            "GPU %u is asked for (by the rank with local rank %u), but %u are "
                            "visible here: start fewer ranks per node, or ask for more GPUs "
                            "(Slurm: --gpus-per-node)",
                            index, choice->local_rank, there);
    return ops->open(index, &choice->options, ret, err);
}

int pl_gpu_open_all(const unsigned *list,
                    unsigned n,
                    const struct pl_device_options *options,
                    struct pl_device **ret,
                    struct pl_error *err)
{
    const struct pl_device_ops *ops = NULL;
    unsigned there = 0;
    int r = pl_gpu_look(&ops, &there, err);

    for (unsigned i = 0; i < n; i++)
        ret[i] = NULL;
    for (unsigned i = 0; i < n && r == 0; i++) {
        unsigned index = list ? list[i] : i;

        if (i > 0 && there == 1 && !list)
            ret[i] = ret[0];
        else if (index >= there)
            r = pl_error_set(err, -ENODEV,
                             "GPU %u is asked for (by part %u of the batches), but %u are visible "
                             "here: name fewer, or ask for more GPUs (Slurm: --gpus-per-node)",
                             index, i, there);
        else
            r = ops->open(index, options, &ret[i], err);
    }
    if (r < 0)
        pl_gpu_close_all(ret, n);
    return r;
}

void pl_gpu_close_all(struct pl_device **list, unsigned n)
{
    /* The first device owns the memory that the others share: close it last. */
    for (unsigned i = n; i-- > 0;)
        if (list[i] && (i == 0 || list[i] != list[0]))
            list[i]->ops->close(list[i]);
    for (unsigned i = 0; i < n; i++)
        list[i] = NULL;
}
