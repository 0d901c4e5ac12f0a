/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/reach.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static int weight(int code)
{
    switch (code) {
    case -ETIMEDOUT:
        return 3;
    case -EHOSTUNREACH:
    case -ENETUNREACH:
    case -EHOSTDOWN:
    case -ENETDOWN:
    case -EPERM:
        return 2;
    case -ECONNREFUSED:
        return 1;
    default:
        return 0;
    }
}

int pl_reach_of_connect(int code)
{
    return code == -EACCES ? -EPERM : code == -EINVAL ? -ENETUNREACH : code;
}

void pl_reach_note(struct pl_reach *reach,
                   const struct sockaddr_storage *address,
                   uint16_t port,
                   int code,
                   bool aside)
{
    size_t len =
        address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    char host[NI_MAXHOST] = "?";

    if (weight(code) == 0)
        return;
    if (reach->code && aside == reach->aside && code == reach->code) {
        reach->n++;
        return;
    }
    if (reach->code && (aside != reach->aside ? aside : weight(code) < weight(reach->code)))
        return;
    reach->code = code;
    reach->aside = aside;
    reach->n = 1;
    getnameinfo((const struct sockaddr *)address, (socklen_t)len, host, sizeof(host), NULL, 0,
                NI_NUMERICHOST);
    snprintf(reach->where, sizeof(reach->where),
             address->ss_family == AF_INET6 ? "[%.60s]:%u" : "%.60s:%u", host, (unsigned)port);
}

void pl_reach_text(const struct pl_reach *reach, char *ret, size_t size)
{
    bool one = reach->n <= 1;
    char where[128];

    snprintf(where, sizeof(where), "%s", reach->where);
    if (!one)
        snprintf(where, sizeof(where), "%s and %u more", reach->where, reach->n - 1);
    if (reach->code == -ETIMEDOUT)
        snprintf(ret, size, "%s %s not answer", where, one ? "does" : "do");
    else if (reach->code == -ECONNREFUSED)
        snprintf(ret, size, "%s %s no connection", where, one ? "takes" : "take");
    else if (reach->code)
        snprintf(ret, size, "%s cannot be reached: %s", where, strerror(-reach->code));
    else
        snprintf(ret, size, "%s", "");
}
