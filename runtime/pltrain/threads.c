/* SPDX-License-Identifier: MIT */
#include "runtime/pltrain/threads.h"
#include "common/base/env.h"
#include "kernels/pool/pool.h"

#include <sched.h>
#include <string.h>

struct place {
    uint64_t node;
    cpu_set_t cpus;
};

int pl_threads_share(struct pl_comm *comm, struct pl_error *err)
{
    unsigned n = comm->size, same = 0, threads = pl_threads_available();
    _cleanup_free_ struct place *all = calloc(n, sizeof(*all));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    struct place *mine;
    int r;

    if (!all || !offset)
        return pl_error_set(err, -ENOMEM, "out of memory");
    mine = &all[comm->rank];
    mine->node = comm->world.node;
    sched_getaffinity(0, sizeof(mine->cpus),
                      &mine->cpus); /* on failure empty, the same on all ranks */
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i * sizeof(*all);
    r = pl_comm_allgather(comm, all, offset, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < n; i++)
        same += memcmp(&all[i], mine, sizeof(*mine)) == 0;
    if (!pl_env(PL_ENV_OMP_NUM_THREADS))
        threads = PL_MAX(threads / PL_MAX(same, 1u), 1u);
    pl_pool_resize(threads);
    return 0;
}
