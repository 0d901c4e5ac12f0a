/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "common/base/log.h"
#include "common/base/macros.h"
#include "runtime/engine/cuda/cudnn/cudnn_private.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "runtime/engine/cuda/util/refused.h"

#include <cudnn.h>
#include <stdio.h>
#include <string.h>

bool pl_cudnn_is_captured(struct pl_cudnn *dnn)
{
    if (!pl_cuda_status_is_held(dnn->status))
        return false;
    (void)pl_cuda_fail(dnn->status, "cuDNN", "what it needs is not there yet");
    return true;
}

uint64_t pl_cudnn_moves(const struct pl_cudnn *dnn)
{
    return dnn->moves;
}

/* Allocates larger memory; the old one is freed after its queued work. tell: without it an op is
 * done in another way, by cuDNN or by our own kernels, which must not be slow in silence. */
static bool
grow(struct pl_cudnn *dnn, size_t bytes, const char *what, bool tell, void **at, size_t *size)
{
    struct pl_error err = {0};
    void *more = NULL;

    if (bytes <= *size)
        return true;
    if (pl_cudnn_is_captured(dnn))
        return false;
    if (pl_cuda_alloc_get(dnn->alloc, bytes, dnn->stream, what, &more, &err) < 0) {
        if (tell && !dnn->told_short)
            pl_log_warn("cuda", "an op is done in a slower way: %s", pl_error_text(&err));
        dnn->told_short |= tell;
        return false;
    }
    pl_cuda_alloc_put(dnn->alloc, *at);
    *at = more;
    *size = bytes;
    dnn->moves++;
    return true;
}

void *pl_cudnn_scratch(struct pl_cudnn *dnn, size_t bytes)
{
    return grow(dnn, bytes, "scratch of cuDNN's", true, &dnn->scratch, &dnn->scratch_bytes)
               ? dnn->scratch
               : NULL;
}

static cudnnStatus_t execute(struct pl_cudnn *dnn,
                             const struct pl_cudnn_plan *plan,
                             const struct pl_cudnn_array *arrays,
                             size_t n)
{
    struct pl_cudnn_parts parts = {.n = 0};
    void *pack = pl_cudnn_make(&parts, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    void *pointers[PL_DNN_ARRAYS];
    int64_t ids[PL_DNN_ARRAYS];
    cudnnStatus_t status = CUDNN_STATUS_INTERNAL_ERROR;

    for (size_t i = 0; i < n; i++) {
        pointers[i] = arrays[i].at;
        ids[i] = arrays[i].id;
    }
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                 (int64_t)n, pointers);
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, (int64_t)n,
                 ids);
    pl_cudnn_set(&parts, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                 &dnn->workspace);
    pl_cudnn_finalize(&parts, pack);
    if (!parts.failed)
        status = cudnnBackendExecute(dnn->handle, plan->desc, pack);
    pl_cudnn_drop(&parts);
    return status;
}

bool pl_cudnn_run(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n)
{
    cudnnStatus_t status;

    if (!grow(dnn, plan->workspace_bytes, "cuDNN's workspace", true, &dnn->workspace,
              &dnn->workspace_bytes))
        return false;
    status = execute(dnn, plan, arrays, n);
    if (status != CUDNN_STATUS_SUCCESS)
        pl_cuda_fail(dnn->status, "cudnnBackendExecute", cudnnGetErrorString(status));
    return true;
}

bool pl_cudnn_try(struct pl_cudnn *dnn,
                  const struct pl_cudnn_plan *plan,
                  const struct pl_cudnn_array *arrays,
                  size_t n)
{
    return grow(dnn, plan->workspace_bytes, "cuDNN's workspace", false, &dnn->workspace,
                &dnn->workspace_bytes) &&
           execute(dnn, plan, arrays, n) == CUDNN_STATUS_SUCCESS;
}

void *pl_cudnn_handle(struct pl_cudnn *dnn)
{
    return dnn->handle;
}

struct pl_cuda_status *pl_cudnn_status(struct pl_cudnn *dnn)
{
    return dnn->status;
}

size_t pl_cudnn_version(void)
{
    return pl_lazy_cudnn(NULL) < 0 ? 0 : cudnnGetVersion();
}

struct pl_device_options pl_cudnn_options(const struct pl_cudnn *dnn)
{
    return dnn->options;
}

static struct pl_cudnn *make(void)
{
    struct pl_cudnn *dnn = calloc(1, sizeof(*dnn));

    if (!dnn)
        return NULL;
    pl_plan_cache_init(&dnn->plans[PL_DNN_CONV], sizeof(struct pl_conv_key),
                       sizeof(struct pl_cudnn_plan));
    pl_plan_cache_init(&dnn->plans[PL_DNN_ATTENTION], sizeof(struct pl_att_key),
                       sizeof(struct pl_cudnn_plan));
    return dnn;
}

int pl_cudnn_create(struct CUstream_st *stream,
                    struct pl_cuda_alloc *alloc,
                    const struct pl_device_options *options,
                    const struct pl_timing *timing,
                    struct pl_cuda_status *status,
                    struct pl_cudnn **ret,
                    struct pl_error *err)
{
    struct pl_cudnn *dnn;
    cudnnStatus_t code;
    int r = pl_lazy_cudnn(err);

    if (r < 0)
        return r;
    dnn = make();
    if (!dnn)
        return pl_error_nomem(err);
    dnn->stream = stream;
    dnn->alloc = alloc;
    dnn->status = status;
    dnn->options = *options;
    if (timing) {
        dnn->now_ns = timing->now_ns;
        r = pl_tuned_open("convolutions", timing->what, sizeof(struct pl_conv_key),
                          PL_DNN_CHOICE_BYTES, &dnn->tuned, err);
        if (r < 0) {
            free(dnn);
            return r;
        }
    }
    code = cudnnCreate((cudnnHandle_t *)&dnn->handle);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnSetStream(dnn->handle, stream);
    if (code != CUDNN_STATUS_SUCCESS) {
        pl_cudnn_destroy(dnn);
        return pl_error_set(err, -EIO, "cannot use cuDNN: %s", cudnnGetErrorString(code));
    }
    *ret = dnn;
    return 0;
}

int pl_cudnn_create_described(const char *json, struct pl_cudnn **ret, struct pl_error *err)
{
    struct pl_cudnn *dnn;
    void *desc;
    int r = pl_lazy_cudnn(err);

    if (r < 0)
        return r;
    dnn = make();
    if (!dnn)
        return pl_error_nomem(err);
    desc = pl_cudnn_make(&dnn->described, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    pl_cudnn_set(&dnn->described, desc, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                 (int64_t)strlen(json) + 1, json);
    pl_cudnn_finalize(&dnn->described, desc);
    if (dnn->described.failed) {
        pl_error_set(err, -EIO, "%s", dnn->described.why);
        pl_cudnn_destroy(dnn);
        return -EIO;
    }
    *ret = dnn;
    return 0;
}

void pl_cudnn_destroy(struct pl_cudnn *dnn)
{
    if (!dnn)
        return;
    for (size_t i = 0; i < PL_DNN_KINDS; i++)
        pl_plan_cache_finish(&dnn->plans[i], pl_cudnn_drop_plan);
    pl_cudnn_drop(&dnn->described);
    if (dnn->alloc) {
        pl_cuda_alloc_put(dnn->alloc, dnn->workspace);
        pl_cuda_alloc_put(dnn->alloc, dnn->scratch);
    }
    if (dnn->handle)
        cudnnDestroy(dnn->handle);
    pl_tuned_close(dnn->tuned);
    free(dnn);
}
