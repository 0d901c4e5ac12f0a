/* SPDX-License-Identifier: MIT */
/* Report steps and metrics to plstat from a C or C++ program; copy this file next to yours.
 *
 *     struct plume_report report = {-1};
 *     plume_report_metric(&report, step, "loss", loss);
 *
 * Outside Plume it does nothing. It never delays training: if the daemon is slow, it drops the
 * metric. Not thread-safe. The protocol is plume-protocol(7). */
#ifndef PL_EXAMPLES_REPORT_PLUME_REPORT_H
#define PL_EXAMPLES_REPORT_PLUME_REPORT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct plume_report {
    int fd; /* -1 until the first report */
};

static inline int plume_report_open(struct plume_report *report)
{
    const char *path = getenv("PLUME_SOCKET"), *rank = getenv("RANK");
    struct sockaddr_un addr;
    char hello[160];
    int n;

    if (!path || !rank || strlen(path) >= sizeof(addr.sun_path))
        return -1;
    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    memcpy(addr.sun_path, path, strlen(path) + 1);
    report->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (report->fd < 0)
        return -1;
    n = snprintf(hello, sizeof(hello),
                 "{\"type\":\"hello\",\"proto\":\"plume\",\"major\":1,\"minor\":0,"
                 "\"role\":\"program\",\"rank\":%.10s}\n",
                 rank);
    if (connect(report->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0 &&
        send(report->fd, hello, (size_t)n, MSG_NOSIGNAL) == n)
        return 0;
    close(report->fd);
    report->fd = -1;
    return -1;
}

/* Returns 0, or -1 if the metric was dropped. name: [A-Za-z_][A-Za-z0-9_.-]*, at most 100 bytes. */
static inline int
plume_report_metric(struct plume_report *report, long long step, const char *name, double value)
{
    char number[40], line[256];
    int n, sent;

    if (report->fd < 0 && plume_report_open(report) < 0)
        return -1;
    if (isnan(value))
        snprintf(number, sizeof(number), "\"nan\"");
    else if (isinf(value))
        snprintf(number, sizeof(number), value > 0 ? "\"inf\"" : "\"-inf\"");
    else
        snprintf(number, sizeof(number), "%.9g", value);
    if (strchr(number, ',')) /* the program's locale may write 0,5 */
        *strchr(number, ',') = '.';
    n = snprintf(line, sizeof(line),
                 "{\"type\":\"metrics\",\"step\":%lld,\"metrics\":{\"%.100s\":%s}}\n", step, name,
                 number);
    sent = (int)send(report->fd, line, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0 && sent < n) /* complete a line of which a part was sent */
        sent += (int)send(report->fd, line + sent, (size_t)(n - sent), MSG_NOSIGNAL);
    return sent == n ? 0 : -1;
}

#endif
