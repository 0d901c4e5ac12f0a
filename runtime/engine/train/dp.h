/* SPDX-License-Identifier: MIT */
/* Copies between the devices of a process whose batches are in parts (parts.h).
 *
 * Before the forward pass each device gets the parameters and buffers that have changed, and its
 * slice of the batch. Its outputs go to the first device, where leaves of the root tape stand for
 * them. The leaves' gradients go back, and the gradient arenas come to the first device one after
 * another to be added. All functions skip parts on the root's device. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_DP_H
#define PL_RUNTIME_ENGINE_TRAIN_DP_H

#include "runtime/engine/train/parts.h"

/* Elements of another device's gradient arena that are copied and added at a time. */
#define PL_DP_STAGING ((size_t)4 << 20)

/* Replaces the parts' outputs by leaves on the root's device. True if a leaf copies another tensor
 * than before. */
bool pl_dp_make_leaves(struct pl_parts *parts, struct plume_outputs *outputs);

/* The part's own tensor of this output; NULL if it gave none. */
plume_tensor *pl_dp_output(const struct pl_parts *parts,
                           const struct plume_outputs *outputs,
                           size_t output,
                           unsigned part);

/* Call after planning and before the parts run: copies parameters, buffers and slices to them, and
 * allocates the leaves. -ENOMEM. */
int pl_dp_scatter(struct pl_parts *parts, struct pl_error *err);

/* After the parts' forward pass: copies their outputs into the leaves. */
void pl_dp_gather(struct pl_parts *parts);

/* After the root's backward pass: copies the leaves' gradients back. */
void pl_dp_scatter_grads(struct pl_parts *parts);

/* Adds another device's gradient arena to the parameters' own. -ENOMEM. */
int pl_dp_add_grads(struct pl_parts *parts,
                    const struct pl_part *part,
                    struct pl_params *params,
                    struct pl_error *err);

/* Frees the memory that this file has allocated for a part. */
void pl_dp_release(struct pl_parts *parts, struct pl_part *part);

#endif
