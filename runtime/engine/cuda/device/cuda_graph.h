/* SPDX-License-Identifier: MIT */
/* Graphs of a device (device.h) as CUDA graphs: its one stream is captured. Source: CUDA C++
 * Programming Guide, "CUDA Graphs", and cudaStreamBeginCapture() in the runtime's manual.
 *
 * Captures are the thread's own (cudaStreamCaptureModeThreadLocal): other threads, NCCL's among
 * them, go on meanwhile; CUDA itself refuses this thread what would not be in the graph. What is
 * known to be such is refused by ourselves before CUDA sees it (struct pl_cuda_status). The stream
 * does not wait for the default stream, so that nothing has to be kept from that one. */
#ifndef PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_GRAPH_H
#define PL_RUNTIME_ENGINE_CUDA_DEVICE_CUDA_GRAPH_H

#include "runtime/engine/device/device.h"

/* As struct pl_device_ops has them. */
int pl_cuda_capture_begin(struct pl_device *dev, struct pl_error *err);
int pl_cuda_capture_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err);
int pl_cuda_replay(struct pl_device *dev, struct pl_device_graph *graph);
void pl_cuda_graph_free(struct pl_device *dev, struct pl_device_graph *graph);

#endif
