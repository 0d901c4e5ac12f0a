/* SPDX-License-Identifier: MIT */
#include "tests/engine/ranks.h"
#include "common/base/fs.h"
#include "runtime/engine/report/rank_report.h"
#include "runtime/pltrain/spawn_local.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>

#include <cmocka.h>

void *ranks_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(p, MAP_FAILED);
    return p;
}

static void
be_rank(const char *(*f)(struct pl_comm *, void *), void *shared, struct verdict *verdicts)
{
    struct pl_error err = {0};
    struct pl_rank_report report;
    struct pl_comm *comm = NULL;
    struct pl_world world = {0};
    const char *text = NULL;
    int r = pl_world_from_env(&world, &err);

    signal(SIGPIPE, SIG_IGN);
    if (r == 0)
        r = pl_rank_report_open(&report, world.rank, world.local_rank, &err);
    if (r == 0)
        r = pl_comm_create(&world, &report.link, &comm, &err);
    if (r == 0)
        text = f(comm, shared);
    else
        text = pl_error_text(&err);
    snprintf(verdicts[world.rank].text, sizeof(verdicts[0].text), "%s", text ? text : "");
    verdicts[world.rank].done = true;
    pl_comm_destroy(comm);
    if (r == 0)
        pl_rank_report_close(&report);
}

double ranks_run(unsigned processes,
                 unsigned per_node,
                 const char *(*f)(struct pl_comm *comm, void *shared),
                 void *shared,
                 uint64_t victims)
{
    struct pl_local_options options = {.processes = processes, .per_node = per_node};
    struct verdict *verdicts = ranks_shared(RANKS_MAX * sizeof(*verdicts));
    uint64_t begin = pl_now_ns();
    struct pl_error err = {0};
    int status = 0, r;

    r = pl_local_run(&options, &status, &err);
    if (r == 1) {
        be_rank(f, shared, verdicts);
        fflush(stdout);
        _exit(0); /* not back into cmocka */
    }
    if (r < 0)
        fail_msg("%s", pl_error_text(&err));
    for (unsigned i = 0; i < processes; i++) {
        if (victims >> i & 1)
            continue;
        if (!verdicts[i].done || verdicts[i].text[0])
            fail_msg("%u ranks, %u a node: rank %u: %s", processes, per_node, i,
                     verdicts[i].done ? verdicts[i].text : "died");
    }
    munmap(verdicts, RANKS_MAX * sizeof(*verdicts));
    return (double)(pl_now_ns() - begin) * 1e-9;
}
