/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/apart.h"
#include "runtime/engine/comm/comm.h"

void pl_params_sum_apart(const struct pl_params *params,
                         const struct pl_kernels *kernels,
                         size_t from,
                         size_t n,
                         void *dst)
{
    void *own = pl_params_grad(params, from);
    const void *so_far = pl_comm_of_peer(params->by_node, own, 0);
    unsigned ranks = params->by_node->size;

    for (unsigned i = 1; i < ranks; i++) {
        kernels->add(&(struct pl_add_args){.n = n,
                                           .scale = i + 1 == ranks ? params->apart_scale : 1,
                                           .a = so_far,
                                           .b = pl_comm_of_peer(params->by_node, own, i),
                                           .dst = dst});
        so_far = dst;
    }
}
