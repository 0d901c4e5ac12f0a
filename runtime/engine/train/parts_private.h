/* SPDX-License-Identifier: MIT */
/* Parts on devices of their own: what goes there and comes back (parts_move.c). All of it does
 * nothing for parts on the root's device. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_PARTS_PRIVATE_H
#define PL_RUNTIME_ENGINE_TRAIN_PARTS_PRIVATE_H

#include "runtime/engine/train/parts.h"

/* A gradient arena's elements that come to the first device at a time. */
#define PL_PARTS_ROOM ((size_t)4 << 20)

/* Makes `outputs` what the root tape may read: stand-ins on its device for what the parts gave.
 * True where one stands for another tensor than before. */
bool pl_dp_make_leaves(struct pl_parts *parts, struct plume_outputs *outputs);

/* What the part itself has given as this output; NULL where it did not. */
plume_tensor *pl_dp_output(const struct pl_parts *parts,
                           const struct plume_outputs *outputs,
                           size_t output,
                           unsigned part);

/* Before the parts run, once they are planned: brings them parameters, buffers and their slices of
 * the batch, and gives the stand-ins memory. -ENOMEM. */
int pl_dp_scatter(struct pl_parts *parts, struct pl_error *err);

/* Behind the parts' forward: the stand-ins become what they stand for. */
void pl_parts_gather(struct pl_parts *parts);

/* Behind the root's backward: the gradients of the stand-ins go back. */
void pl_dp_scatter_grads(struct pl_parts *parts);

/* Adds an arena of gradients on another device to the parameters' own. -ENOMEM. */
int pl_parts_add_from(struct pl_parts *parts,
                      const struct pl_part *part,
                      struct pl_params *params,
                      struct pl_error *err);

/* Frees what this file has made for a part. */
void pl_dp_release(struct pl_parts *parts, struct pl_part *part);

#endif
