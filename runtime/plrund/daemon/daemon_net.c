/* SPDX-License-Identifier: MIT */
/* The network interface for programs that look for one by the host's name (gloo, TensorPipe). Where
 * that name leads to another address than the one that other nodes use, or to none, they cannot
 * reach each other. */
#include "common/base/log.h"
#include "runtime/node/net.h"
#include "runtime/plrund/daemon/daemon.h"

#include <netdb.h>
#include <string.h>

static void on_own_name(uv_getaddrinfo_t *req, int status, struct addrinfo *list)
{
    struct pl_daemon *d = req->data;

    d->own_addresses = list;
    pl_log_debug("net", "this host's name: %s", status < 0 ? uv_strerror(status) : "resolved");
}

void pl_daemon_net_start(struct pl_daemon *d)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    char host[256] = "";

    d->own_name.data = d;
    if (d->step.nnodes > 1 && gethostname(host, sizeof(host) - 1) == 0)
        d->asks_name = uv_getaddrinfo(d->loop, &d->own_name, on_own_name, host, NULL, &hints) == 0;
}

static bool name_leads_to(const struct pl_daemon *d, const char *address)
{
    for (const struct addrinfo *a = d->own_addresses; a; a = a->ai_next) {
        char text[64];

        if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) ==
                0 &&
            strcmp(text, address) == 0)
            return true;
    }
    return false;
}

bool pl_daemon_net_interface(const struct pl_daemon *d, const char *address, char *ret, size_t size)
{
    return d->step.nnodes > 1 && *address && !pl_net_is_loopback(address) &&
           !name_leads_to(d, address) && pl_net_interface(address, ret, size) == 0;
}

void pl_daemon_net_close(struct pl_daemon *d)
{
    if (d->asks_name)
        uv_cancel((uv_req_t *)&d->own_name);
    d->asks_name = false;
}
