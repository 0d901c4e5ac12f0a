/* SPDX-License-Identifier: MIT */
/* The hub's places for connections that have not greeted yet: a node or a client on its way, or a
 * stranger who never will. Who is cut off when there are too many: the oldest connection of the
 * crowd that has the most, where a crowd is what comes from one address. So a stranger displaces
 * strangers, mostly its own, and an honest greeting, which takes milliseconds, finds a place.
 *
 * Pure bookkeeping: no descriptors, no clock. */
#ifndef PL_RUNTIME_PLRUND_HUB_STRANGERS_H
#define PL_RUNTIME_PLRUND_HUB_STRANGERS_H

#include <stdbool.h>
#include <sys/socket.h>

#define PL_STRANGERS_MAX 128 /* in addition to two for each node that has not joined */
#define PL_CROWDS 256 /* addresses share a crowd by chance, by a hash that nobody can guess */

struct pl_strangers {
    unsigned char seed[16];
    unsigned n, crowds[PL_CROWDS];
};

/* Chooses the hash. */
void pl_strangers_init(struct pl_strangers *s);

/* The crowd of an address: of IPv4 all 32 bits count (also v4-mapped), of IPv6 the first 64. All of
 * 127.x.x.x is one: any user of the host may connect from each of them. */
unsigned pl_strangers_crowd(const struct pl_strangers *s, const struct sockaddr_storage *address);

void pl_strangers_enter(struct pl_strangers *s, unsigned crowd);
void pl_strangers_leave(struct pl_strangers *s, unsigned crowd);

/* The crowd whose oldest connection has to go before one of this crowd may enter, or -1.
 * missing: nodes that have not joined. */
int pl_strangers_make_room(const struct pl_strangers *s, unsigned crowd, unsigned missing);

/* The crowd that has the most; -1 if there is nobody. */
int pl_strangers_largest(const struct pl_strangers *s);

/* True if half of the places are taken: the deadlines of those in a crowd are short then. */
bool pl_strangers_press(const struct pl_strangers *s, unsigned missing);

/* True if more than a few share this crowd. One who comes alone keeps the long deadline. */
bool pl_strangers_crowded(const struct pl_strangers *s, unsigned crowd);

#endif
