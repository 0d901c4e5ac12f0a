/* SPDX-License-Identifier: MIT */
/* Graphs of a device (device.h) as CUDA graphs: its one stream is captured. Source: CUDA C++
 * Programming Guide, "CUDA Graphs", and cudaStreamBeginCapture() in the runtime's manual.
 *
 * Captures are per thread (cudaStreamCaptureModeThreadLocal): other threads, such as NCCL's, go on;
 * CUDA refuses calls of this thread that cannot be in the graph. Known ones are refused here before
 * CUDA sees them (struct pl_cuda_status). The stream does not synchronise with the default stream,
 * so that one needs no care. */
#ifndef PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_GRAPH_H
#define PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_GRAPH_H

#include "runtime/engine/device/device.h"

/* The functions of struct pl_device_ops. */
int pl_cuda_capture_begin(struct pl_device *dev, struct pl_error *err);
int pl_cuda_capture_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err);
int pl_cuda_replay(struct pl_device *dev, struct pl_device_graph *graph);
void pl_cuda_graph_free(struct pl_device *dev, struct pl_device_graph *graph);

#endif
