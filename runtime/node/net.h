/* SPDX-License-Identifier: MIT */
/* TCP ports: holding one, walking to the hub's. All descriptors are non-blocking and
 * close-on-exec. */
#ifndef PL_RUNTIME_NODE_NET_H
#define PL_RUNTIME_NODE_NET_H

#include "common/base/error.h"
#include "common/proto/protocol.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define PL_WALK_PORTS 8
#define PL_WALK_LOW 20000 /* $PLUME_HUB_PORTS; the same on all nodes, so never the local sysctl */
#define PL_WALK_HIGH 29999
#define PL_SPARE_PORTS 4

/* Binds a port and never listens on it. While the descriptor is open the kernel gives the port to
 * nobody, yet a program that sets SO_REUSEADDR (PyTorch does) can bind it and listen, whosever it
 * is: for ports of the ranks' programs. port 0 lets the kernel choose. Measured: 0 of 80,000 kernel
 * choices hit a held port. */
int pl_port_reserve(uint16_t port, int *ret_fd, uint16_t *ret_port, struct pl_error *err);

/* The same for a port of our own programs: only pl_net_listen() of this user can take it. A port of
 * the range that nobody else holds; 0 to 0 lets the kernel choose. -EADDRINUSE. */
int pl_port_reserve_own(
    uint16_t low, uint16_t high, int *ret_fd, uint16_t *ret_port, struct pl_error *err);

/* Listens at a numeric address, NULL = on all; port 0 lets the kernel choose. pl_net_listen() takes
 * a port that one of the above holds, here or in another process of the user;
 * pl_net_listen_alone() takes only one that nobody else has. -EADDRINUSE. */
int pl_net_listen(const char *address, uint16_t port, int *ret_fd, struct pl_error *err);
int pl_net_listen_alone(const char *address, uint16_t port, int *ret_fd, struct pl_error *err);

/* The first port of the range that could be bound just now; it is not held. -EADDRINUSE. */
int pl_net_find_free(uint16_t low, uint16_t high, uint16_t *ret, struct pl_error *err);

/* Starts connecting; the result comes when the descriptor turns writable. */
int pl_net_connect(const struct sockaddr *addr, socklen_t len, int *ret_fd);

/* Numeric host of a socket's own or its peer's address ("127.0.0.1"; v4-mapped as v4). */
int pl_net_name(int fd, bool peer, char *ret, size_t size);

/* This host's address for other nodes: what its name resolves to, loopback only for want of a
 * better one. */
int pl_net_own_address(char *ret, size_t size, struct pl_error *err);

/* This host's address on the way to another one (numeric), without a packet; else its first address
 * that is not loopback; else "127.0.0.1". Asks no name server. toward may be NULL. */
void pl_net_reachable_address(const char *toward, char *ret, size_t size);

/* The name of the interface that has this numeric address. -ENODEV. */
int pl_net_interface(const char *address, char *ret, size_t size);

/* True for 127.x.x.x and ::1. */
bool pl_net_is_loopback(const char *address);

/* TCP_NODELAY and a limit of 20 s for bytes that nobody acknowledges. */
void pl_net_tune(int fd);

/* The ports at which this job's hub may listen, from a keyed hash of job, step and attempt, inside
 * $PLUME_HUB_PORTS; all different where the range is large enough. Equal on all nodes. -EINVAL for
 * a bad $PLUME_HUB_PORTS. */
int pl_hub_ports_derive(const unsigned char secret[PL_KEY_SIZE],
                        const struct pl_session_id *id,
                        uint16_t ret[PL_WALK_PORTS],
                        struct pl_error *err);

/* The ports at which a hub that has none of those tells the other nodes why the step ends. Between
 * PL_WALK_LOW and PL_WALK_HIGH, whatever $PLUME_HUB_PORTS is. */
void pl_hub_ports_spare(const unsigned char secret[PL_KEY_SIZE],
                        const struct pl_session_id *id,
                        uint16_t ret[PL_SPARE_PORTS]);

/* The numeric address at which the hub listens, from $PLUME_HUB_BIND: an address or an interface of
 * this host. "" if that is not set, 0.0.0.0 or "::": on all. -ENODEV, -EADDRNOTAVAIL. */
int pl_hub_bind_address(char *ret, size_t size, struct pl_error *err);

/* Splits "host:port" or "[v6]:port" ($PLUME_HUB). -EINVAL. */
int pl_net_split(const char *s, char *host, size_t size, uint16_t *ret_port);

#endif
