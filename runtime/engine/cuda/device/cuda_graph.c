/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/device/cuda_graph.h"
#include "runtime/engine/cuda/cudnn/cudnn.h"
#include "runtime/engine/cuda/device/cuda_device.h"

#include <cuda_runtime_api.h>

struct pl_device_graph {
    cudaGraphExec_t exec;
    uint64_t moves; /* of the device, at the capture */
};

static struct pl_cuda_device *of(struct pl_device *dev)
{
    return (struct pl_cuda_device *)dev;
}

/* The number of times that memory with an address in kernels' arguments has moved. cublasLt's never
 * moves. */
static uint64_t moves(const struct pl_cuda_device *d)
{
    return d->stream.moves + (d->libs.dnn ? pl_cudnn_moves(d->libs.dnn) : 0);
}

int pl_cuda_capture_begin(struct pl_device *dev, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);
    cudaError_t code;

    pl_cuda_check_ops(d);
    if (pl_cuda_report(&d->status, dev->name, err) < 0)
        return -EIO;
    code = cudaStreamBeginCapture(d->stream.stream, cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess)
        return pl_cuda_error(err, dev->name, "cudaStreamBeginCapture", code);
    pl_cuda_status_hold(&d->status);
    d->stream.fixed = true;
    return 0;
}

/* Returns the error of a capture that has ended, 0 if none. */
static int take_failure(struct pl_cuda_device *d, cudaError_t code, struct pl_error *err)
{
    const char *call = NULL, *why = NULL;
    const char *refused = d->stream.why;
    int noted = d->stream.error;
    bool failed = pl_cuda_status_release(&d->status, &call, &why);

    d->stream.fixed = false;
    d->stream.error = cudaSuccess;
    d->stream.why = NULL;
    (void)cudaGetLastError();
    if (failed)
        return pl_error_set(err, -EIO, "%s: %s", call, why);
    if (refused)
        return pl_error_set(err, -EIO, "an op: %s", refused);
    if (noted)
        return pl_cuda_error(err, d->base.name, "a kernel's launch", noted);
    return code == cudaSuccess ? 0 : pl_cuda_error(err, d->base.name, "cudaStreamEndCapture", code);
}

int pl_cuda_capture_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err)
{
    struct pl_cuda_device *d = of(dev);
    struct pl_device_graph *made = calloc(1, sizeof(*made));
    cudaGraph_t graph = NULL;
    cudaError_t code = cudaStreamEndCapture(d->stream.stream, &graph);
    int r = take_failure(d, code, err);

    if (r == 0 && !made)
        r = pl_error_nomem(err);
    if (r == 0) {
        made->moves = moves(d);
        code = cudaGraphInstantiateWithFlags(&made->exec, graph, 0);
        if (code != cudaSuccess)
            r = pl_cuda_error(err, dev->name, "cudaGraphInstantiateWithFlags", code);
    }
    if (graph) /* also after a capture that we failed ourselves */
        (void)cudaGraphDestroy(graph);
    if (r < 0)
        free(made);
    else
        *ret = made;
    return r;
}

int pl_cuda_replay(struct pl_device *dev, struct pl_device_graph *graph)
{
    struct pl_cuda_device *d = of(dev);

    if (graph->moves != moves(d))
        return -ESTALE;
    pl_cuda_check(&d->status, "cudaGraphLaunch", cudaGraphLaunch(graph->exec, d->stream.stream));
    return 0;
}

void pl_cuda_graph_free(struct pl_device *dev, struct pl_device_graph *graph)
{
    struct pl_cuda_device *d = of(dev);

    if (!graph)
        return;
    /* Not all versions of CUDA promise that a running graph may be destroyed. */
    pl_cuda_check(&d->status, "cudaStreamSynchronize", cudaStreamSynchronize(d->stream.stream));
    pl_cuda_check(&d->status, "cudaGraphExecDestroy", cudaGraphExecDestroy(graph->exec));
    free(graph);
}
