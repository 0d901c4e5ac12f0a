/* SPDX-License-Identifier: MIT */
/* bench-bandwidth RANKS MODE BYTES ITERATIONS: measures the engine's all-reduce as nccl-tests do
 * and prints the mean seconds of one, in place, in f32. MODE: slab (the memory of gradients),
 * private (any memory) or tcp (one rank per node). */
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/comm/comm.h"
#include "runtime/engine/report/rank_report.h"
#include "runtime/pltrain/spawn_local.h"

#include <stdio.h>
#include <string.h>

#define WARM 3

static int
measure(struct pl_comm *comm, bool slab, size_t bytes, int64_t rounds, struct pl_error *err)
{
    _cleanup_free_ void *own = NULL;
    size_t count = bytes / sizeof(float);
    uint64_t begin = 0;
    void *buf;
    int r = pl_comm_alloc(comm, bytes, &buf, err);

    if (r == 0 && !slab && posix_memalign(&own, 4096, bytes) != 0)
        r = pl_error_set(err, -ENOMEM, "out of memory");
    if (r < 0)
        return r;
    if (own)
        buf = own;
    memset(buf, 0, bytes);
    for (int64_t i = -WARM; i < rounds && r == 0; i++) {
        if (i == 0 && (r = pl_comm_barrier(comm, err)) == 0)
            begin = pl_now_ns();
        if (r == 0)
            r = pl_comm_allreduce(comm, buf, count, PL_REAL_F32, 1, err);
    }
    if (r == 0)
        r = pl_comm_barrier(comm, err);
    if (r == 0 && comm->rank == 0)
        printf("%.9f\n", (double)(pl_now_ns() - begin) * 1e-9 / (double)rounds);
    fflush(stdout);
    return r;
}

static int be_rank(char **argv, struct pl_error *err)
{
    _cleanup_(pl_comm_destroyp) struct pl_comm *comm = NULL;
    _cleanup_(pl_rank_report_close) struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    int64_t bytes, rounds;
    struct pl_world world;
    int r = pl_world_open(&world, PL_COMM_AUTO, err);

    if (r == 0)
        r = pl_parse_int(argv[3], 4, INT64_MAX, &bytes, err);
    if (r == 0)
        r = pl_parse_int(argv[4], 1, INT64_MAX, &rounds, err);
    if (r == 0)
        r = pl_rank_report_open(&report, world.rank, world.local_rank, err);
    if (r == 0)
        r = pl_comm_create(&world, &report.link, &comm, err);
    if (r == 0)
        r = measure(comm, strcmp(argv[2], "slab") == 0, (size_t)bytes, rounds, err);
    return r;
}

int main(int argc, char **argv)
{
    struct pl_local_options local = {0};
    struct pl_error err = {0};
    int64_t ranks;
    int status = 0, r;

    if (argc != 5 || pl_parse_int(argv[1], 1, 64, &ranks, &err) < 0) {
        fprintf(stderr, "usage: bench-bandwidth RANKS slab|private|tcp BYTES ITERATIONS\n");
        return PL_EXIT_USAGE;
    }
    local.processes = (unsigned)ranks;
    local.per_node = strcmp(argv[2], "tcp") == 0 ? 1 : 0;
    r = pl_local_run(&local, &status, &err);
    if (r == 1)
        r = be_rank(argv, &err);
    if (r < 0)
        fprintf(stderr, "bench-bandwidth: %s\n", pl_error_text(&err));
    return r < 0 ? PL_EXIT_FAILED : status;
}
