/* SPDX-License-Identifier: MIT */
/* Shards of the arenas (strategy sharded; ZeRO: Rajbhandari et al., SC 2020, arXiv 1910.02054).
 * Each rank owns a range: it alone keeps the optimizer state of these parameters and updates them.
 *
 * The arenas are cut into blocks, at the same places for any number of ranks, and a shard is a
 * range of whole blocks. So sums over blocks, added up in their order, have the same bits under
 * every strategy. With more ranks than blocks some shards are empty. */
#ifndef PL_RUNTIME_ENGINE_PARAMS_SHARD_H
#define PL_RUNTIME_ENGINE_PARAMS_SHARD_H

#include "runtime/engine/params/params.h"

/* Elements of a block: a multiple of PL_SHARD_UNIT, so that there are at most PL_SHARD_BLOCKS. */
#define PL_SHARD_UNIT 1024
#define PL_SHARD_BLOCKS 4096

/* Params must be laid out. */
size_t pl_shard_block(const struct pl_params *params);

/* The first element of a rank's shard; that of rank `size` is the end of the parameters. With the
 * stages of a pipeline, a stage is the rank, and its parameters are the shard. */
size_t pl_shard_begin(const struct pl_params *params, unsigned rank, unsigned size);

/* Splits elements [from, to) among the ranks: size + 1 offsets, counted from `from`, for
 * pl_comm_reduce_scatter(). */
void pl_shard_offsets(
    const struct pl_params *params, unsigned size, size_t from, size_t to, size_t *ret);

/* This process owns the shard of this rank from now on. Called by the layout. */
void pl_shard_take(struct pl_params *params, unsigned rank, unsigned size);

/* Gives all ranks the values [from, to) of their owners. Collective. -ENOMEM, -EIO. */
int pl_shard_share_values(
    struct pl_params *params, struct pl_comm *comm, size_t from, size_t to, struct pl_error *err);

/* This rank's elements of a parameter: count of them from `from` on. */
struct pl_shard_span {
    size_t from, count;
};

struct pl_shard_span pl_shard_span(const struct pl_params *params, const struct pl_param *param);

/* Their place in an arena of this rank's own elements; NULL if it has none. */
void *
pl_shard_part(const struct pl_params *params, const struct pl_param *param, const void *arena);

/* Gathers an array of a parameter's shape of which each rank has its shard's part, at `own` in
 * device memory. ret_whole: in the host's memory; NULL on ranks that do not need it. Collective.
 * -ENOMEM, -EIO. */
int pl_shard_gather(const struct pl_params *params,
                    struct pl_comm *comm,
                    const struct pl_param *param,
                    const void *own,
                    void *ret_whole,
                    struct pl_error *err);

#endif
