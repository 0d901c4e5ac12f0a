/* SPDX-License-Identifier: MIT */
/* Says in words why the hub cannot be reached. Only these errors of the network show a firewall
 * that drops or rejects packets. */
#ifndef PL_RUNTIME_PLRUND_DAEMON_REACH_H
#define PL_RUNTIME_PLRUND_DAEMON_REACH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* Of one round. The most telling answer: silence before an error before a refusal, since there may
 * be other addresses that are not the hub's. Zeroed before its first use. */
struct pl_reach {
    int code;       /* 0 = none */
    bool aside;     /* of srun's host */
    unsigned n;     /* addresses and ports with it */
    char where[80]; /* the first: "10.0.0.1:20012" */
};

/* code: -ETIMEDOUT (no answer), -ECONNREFUSED, -EHOSTUNREACH, -EPERM, ...; others tell nothing of
 * the network.
 * aside: of srun's host, where the hub rarely is. It counts if no other address has an answer. */
void pl_reach_note(struct pl_reach *reach,
                   const struct sockaddr_storage *address,
                   uint16_t port,
                   int code,
                   bool aside);

/* The code of a connect(2) that has failed at once: a rule of this node prohibits it, or its route
 * is a black hole. -EACCES and -EINVAL of a connection are a peer's. */
int pl_reach_of_connect(int code);

/* "10.0.0.1:20012 and 8 more do not answer"; "" if there is nothing to tell. */
void pl_reach_text(const struct pl_reach *reach, char *ret, size_t size);

#endif
