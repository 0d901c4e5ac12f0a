/* SPDX-License-Identifier: MIT */
/* Parameters of which each rank of a group has a part (tensor parallel). `tensor` of such a
 * parameter is the part, and has the place in the arenas, the gradient and the optimizer's state;
 * `whole` is what the module sees. Files have whole parameters. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_PARAM_PARTS_H
#define PL_RUNTIME_ENGINE_PARAMS_PARAM_PARTS_H

#include "runtime/engine/params/shard.h"

static inline bool pl_param_is_split(const struct pl_param *p)
{
    return p->at.groups > 0;
}

/* Splits parameters among the ranks of `peers`, which is borrowed. at: by number - 1. ret_local: by
 * number - 1: the parts, of those that are split. Call before the layout. -ENOMEM. */
int pl_param_parts_make(struct pl_params *params,
                        struct pl_comm *peers,
                        const struct pl_split_at *at,
                        plume_tensor **ret_local,
                        struct pl_error *err);

/* Takes what this rank has of an array of the whole's shape, in the host's memory, to `own`, in
 * device memory: its part; of a parameter that is not split, everything. span: only these elements
 * of that, its shard (shard.h); NULL: all. -ENOMEM. */
int pl_param_part_put(const struct pl_params *params,
                      const struct pl_param *p,
                      void *own,
                      const struct pl_shard_span *span,
                      const void *whole,
                      struct pl_error *err);

/* The reverse, from all ranks. shards: of the ranks that have a shard each of what `own` is of;
 * NULL: there are no shards. ret_whole: NULL on ranks that do not need it. Collective over shards
 * and params->peers. -ENOMEM, -EIO, -ECONNRESET. */
int pl_param_part_gather(const struct pl_params *params,
                         struct pl_comm *shards,
                         const struct pl_param *p,
                         const void *own,
                         void *ret_whole,
                         struct pl_error *err);

#endif
