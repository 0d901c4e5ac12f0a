/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/rank_report.h"
#include "common/base/env.h"
#include "common/base/log.h"

#include <poll.h>

#define CONNECT_TIMEOUT_MS 10000
#define ROOM_TIMEOUT_MS 2000

int pl_rank_report_open(struct pl_rank_report *report,
                        unsigned rank,
                        unsigned local_rank,
                        struct pl_error *err)
{
    const char *path = pl_env(PL_ENV_PLUME_SOCKET);
    int r;

    *report = (struct pl_rank_report){.link = PL_RANK_LINK_INIT};
    if (!path || !*path)
        return 0;
    r = pl_rank_link_open(&report->link, path, CONNECT_TIMEOUT_MS, err);
    if (r == 0)
        r = pl_rank_link_hello(&report->link, PL_RANK_ROLE_PROGRAM, rank, local_rank, getpid(),
                               false, NULL, 0, err);
    if (r < 0)
        pl_rank_report_close(report);
    return r;
}

void pl_rank_report_close(struct pl_rank_report *report)
{
    pl_rank_link_close(&report->link);
}

void pl_rank_report_step(struct pl_rank_report *report, uint64_t own_ns)
{
    report->own_ns += own_ns;
    report->own_steps++;
}

/* The mean since the last report, in us; -1 = of no step. */
static int64_t take_own(struct pl_rank_report *report)
{
    uint64_t steps = report->own_steps, sum = report->own_ns;

    report->own_ns = report->own_steps = 0;
    return steps ? (int64_t)(sum / steps / 1000) : -1;
}

void pl_rank_report_metrics(struct pl_rank_report *report,
                            int64_t step,
                            const char *const *names,
                            const double *values,
                            size_t n)
{
    if (report->link.fd >= 0)
        pl_rank_link_metrics(&report->link, step, take_own(report), names, values, n);
}

static bool room(struct pl_rank_report *report)
{
    struct pollfd p = {.fd = report->link.fd, .events = POLLOUT};

    if (report->link.fd < 0)
        return false;
    if (poll(&p, 1, ROOM_TIMEOUT_MS) == 1 && !(p.revents & (POLLERR | POLLHUP)))
        return true;
    pl_log_warn("report", "the node daemon does not read: a report is lost");
    return false;
}

void pl_rank_report_final(struct pl_rank_report *report,
                          int64_t step,
                          const char *const *names,
                          const double *values,
                          size_t n)
{
    if (room(report))
        pl_rank_link_metrics(&report->link, step, -1, names, values, n);
}

void pl_rank_report_phase(struct pl_rank_report *report, const char *phase)
{
    struct pl_error err = {0};

    if (room(report) && pl_rank_link_phase(&report->link, phase, &err) < 0)
        pl_log_warn("report", "%s", pl_error_text(&err));
}

void pl_rank_report_fact(struct pl_rank_report *report, const char *key, const char *value)
{
    struct pl_error err = {0};

    if (room(report) && pl_rank_link_fact(&report->link, key, value, &err) < 0)
        pl_log_warn("report", "%s", pl_error_text(&err));
}
