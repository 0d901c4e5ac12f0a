/* SPDX-License-Identifier: MIT */
/* The network interface for programs that look for one by the host's name (gloo, TensorPipe). Where
 * that name leads to another address than the one that other nodes use, or to none, they cannot
 * reach each other. */
#include "common/base/log.h"
#include "runtime/node/net.h"
#include "runtime/plrund/daemon/daemon.h"

#include <netdb.h>
#include <string.h>

static void on_own_name(void *ctx, struct addrinfo *list)
{
    struct pl_daemon *d = ctx;

    d->own_name = NULL;
    d->own_addresses = list;
    pl_log_debug("net", "this host's name: %s", list ? "resolved" : "leads to no address");
}

/* Without a thread the name counts as one that leads nowhere. */
void pl_daemon_net_start(struct pl_daemon *d)
{
    char host[256] = "";
    int r;

    if (d->step.nnodes == 1 || gethostname(host, sizeof(host) - 1) < 0)
        return;
    r = pl_resolve_start(d->loop, host, on_own_name, d, &d->own_name);
    if (r < 0)
        pl_log_debug("net", "cannot resolve this host's name: %s", strerror(-r));
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
    pl_resolve_cancel(PL_TAKE(d->own_name));
}
