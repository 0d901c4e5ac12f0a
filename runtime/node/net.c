/* SPDX-License-Identifier: MIT */
#include "runtime/node/net.h"
#include "common/base/env.h"
#include "common/base/fault.h"
#include "common/base/parse.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <string.h>

/* Binds a new TCP socket. Without `share` the port is really ours: not held by somebody else, and
 * two users' hubs cannot share it. The price: one with connections that linger counts as taken. */
static int bound_to(const struct sockaddr *to, socklen_t len, bool share, int *ret)
{
    int one = 1, zero = 0;
    _cleanup_close_ int fd = socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (share) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
    }
    if (to->sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (bind(fd, to, len) < 0)
        return -errno;
    *ret = PL_TAKE_FD(fd);
    return 0;
}

/* The same on all addresses: dual stack if the host has IPv6. */
static int bound(uint16_t port, bool share, int *ret)
{
    struct sockaddr_in6 a6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    struct sockaddr_in a4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    int r = bound_to((struct sockaddr *)&a6, sizeof(a6), share, ret);

    if (r < 0 && r != -EADDRINUSE)
        r = bound_to((struct sockaddr *)&a4, sizeof(a4), share, ret);
    return r;
}

/* The same on one numeric address. */
static int bound_at(const char *address, uint16_t port, bool share, int *ret)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list = NULL;
    char service[8];
    int r;

    snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(address, service, &hints, &list) != 0)
        return -EADDRNOTAVAIL;
    r = bound_to(list->ai_addr, list->ai_addrlen, share, ret);
    freeaddrinfo(list);
    return r;
}

static int port_of(int fd, uint16_t *ret)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);

    if (getsockname(fd, (struct sockaddr *)&a, &len) < 0)
        return -errno;
    *ret = ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
    return 0;
}

int pl_port_reserve(uint16_t port, int *ret_fd, uint16_t *ret_port, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    int r = bound(port, true, &fd);

    if (r == 0)
        r = port_of(fd, ret_port);
    if (r < 0)
        return pl_error_errno(err, r, "cannot hold a TCP port");
    *ret_fd = PL_TAKE_FD(fd);
    return 0;
}

int pl_port_reserve_own(
    uint16_t low, uint16_t high, int *ret_fd, uint16_t *ret_port, struct pl_error *err)
{
    uint32_t n = (uint32_t)high - low + 1, first = randombytes_uniform(n);
    int one = 1, r;

    for (uint32_t i = 0; i < n; i++) {
        uint16_t port = (uint16_t)(low + (first + i) % n);
        _cleanup_close_ int fd = -EBADF;

        if (bound(port, false, &fd) < 0)
            continue;
        /* Nobody else has it; from now on programs of this user may share it. With SO_REUSEADDR
         * those of other users might, too (inet_csk_bind_conflict() in Linux). */
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
        r = port_of(fd, ret_port);
        if (r < 0)
            return pl_error_errno(err, r, "cannot hold a TCP port");
        *ret_fd = PL_TAKE_FD(fd);
        return 0;
    }
    if (!high)
        return pl_error_set(err, -EADDRINUSE, "cannot hold a TCP port");
    return pl_error_set(err, -EADDRINUSE, "no free port between %u and %u", low, high);
}

static int
start_listening(const char *address, uint16_t port, bool share, int *ret_fd, struct pl_error *err)
{
    _cleanup_close_ int fd = -EBADF;
    int r = address ? bound_at(address, port, share, &fd) : bound(port, share, &fd);

    if (r == 0 && listen(fd, 1024) < 0)
        r = -errno;
    if (r < 0 && address)
        return pl_error_errno(err, r, "cannot listen at %s, port %u", address, port);
    if (r < 0)
        return pl_error_errno(err, r, "cannot listen on port %u", port);
    *ret_fd = PL_TAKE_FD(fd);
    return 0;
}

int pl_net_listen(const char *address, uint16_t port, int *ret_fd, struct pl_error *err)
{
    return start_listening(address, port, true, ret_fd, err);
}

int pl_net_listen_alone(const char *address, uint16_t port, int *ret_fd, struct pl_error *err)
{
    return start_listening(address, port, false, ret_fd, err);
}

int pl_net_find_free(uint16_t low, uint16_t high, uint16_t *ret, struct pl_error *err)
{
    for (unsigned port = low; port <= high; port++) {
        _cleanup_close_ int fd = -EBADF;

        if (bound((uint16_t)port, false, &fd) == 0) {
            *ret = (uint16_t)port;
            return 0;
        }
    }
    return pl_error_set(err, -EADDRINUSE, "no free port between %u and %u", low, high);
}

int pl_net_connect(const struct sockaddr *addr, socklen_t len, int *ret_fd)
{
    _cleanup_close_ int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if ((PL_FAULT("connect", ECONNREFUSED) || connect(fd, addr, len) < 0) && errno != EINPROGRESS)
        return -errno;
    *ret_fd = PL_TAKE_FD(fd);
    return 0;
}

int pl_net_name(int fd, bool peer, char *ret, size_t size)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    const char *text = NULL;

    if ((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&a, &len) < 0)
        return -errno;
    if (a.ss_family == AF_INET) {
        text = inet_ntop(AF_INET, &((struct sockaddr_in *)&a)->sin_addr, ret, (socklen_t)size);
    } else if (a.ss_family == AF_INET6) {
        struct in6_addr *six = &((struct sockaddr_in6 *)&a)->sin6_addr;

        if (IN6_IS_ADDR_V4MAPPED(six))
            text = inet_ntop(AF_INET, &six->s6_addr[12], ret, (socklen_t)size);
        else
            text = inet_ntop(AF_INET6, six, ret, (socklen_t)size);
    }
    return text ? 0 : -EAFNOSUPPORT;
}

int pl_net_own_address(char *ret, size_t size, struct pl_error *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    char host[256];

    snprintf(ret, size, "127.0.0.1");
    if (gethostname(host, sizeof(host)) < 0)
        return pl_error_errno(err, errno, "cannot get this host's name");
    host[sizeof(host) - 1] = '\0';
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return 0;
    for (struct addrinfo *a = list; a; a = a->ai_next) {
        char text[INET6_ADDRSTRLEN];

        if (getnameinfo(a->ai_addr, a->ai_addrlen, text, sizeof(text), NULL, 0, NI_NUMERICHOST) !=
            0)
            continue;
        if (strncmp(text, "127.", 4) == 0 || strcmp(text, "::1") == 0 ||
            strncmp(text, "fe80:", 5) == 0)
            continue;
        snprintf(ret, size, "%s", text);
        break;
    }
    freeaddrinfo(list);
    return 0;
}

/* ---- interfaces ---- */

bool pl_net_is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

static bool is_usable(const char *address)
{
    return *address && !pl_net_is_loopback(address) && strncmp(address, "fe80:", 5) != 0 &&
           strcmp(address, "0.0.0.0") != 0;
}

/* The source address that the kernel would choose: connecting a datagram socket sends nothing. */
static int route_source(const char *toward, char *ret, size_t size)
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *list = NULL;
    _cleanup_close_ int fd = -EBADF;
    int r = -EINVAL;

    if (getaddrinfo(toward, "9", &hints, &list) != 0)
        return r;
    fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    r = fd < 0 || connect(fd, list->ai_addr, list->ai_addrlen) < 0
            ? -errno
            : pl_net_name(fd, false, ret, size);
    freeaddrinfo(list);
    return r;
}

static int numeric(const struct sockaddr *a, char *ret, size_t size)
{
    socklen_t len =
        a->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

    if (a->sa_family != AF_INET && a->sa_family != AF_INET6)
        return -EAFNOSUPPORT;
    return getnameinfo(a, len, ret, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0 ? 0 : -EINVAL;
}

void pl_net_reachable_address(const char *toward, char *ret, size_t size)
{
    struct ifaddrs *list = NULL;

    if (toward && route_source(toward, ret, size) == 0 && is_usable(ret))
        return;
    snprintf(ret, size, "127.0.0.1");
    if (getifaddrs(&list) < 0)
        return;
    for (const struct ifaddrs *i = list; i; i = i->ifa_next) {
        char text[64];

        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) ||
            numeric(i->ifa_addr, text, sizeof(text)) < 0 || !is_usable(text))
            continue;
        snprintf(ret, size, "%s", text);
        break;
    }
    freeifaddrs(list);
}

int pl_net_interface(const char *address, char *ret, size_t size)
{
    struct ifaddrs *list = NULL;
    int r = -ENODEV;

    if (getifaddrs(&list) < 0)
        return -errno;
    for (const struct ifaddrs *i = list; i && r < 0; i = i->ifa_next) {
        char text[64];

        if (i->ifa_addr && numeric(i->ifa_addr, text, sizeof(text)) == 0 &&
            strcmp(text, address) == 0 && strlen(i->ifa_name) < size) {
            memcpy(ret, i->ifa_name, strlen(i->ifa_name) + 1);
            r = 0;
        }
    }
    freeifaddrs(list);
    return r;
}

/* The interface's first address: of IPv4 if it has one. */
static int interface_address(const char *name, char *ret, size_t size)
{
    struct ifaddrs *list = NULL;
    int r = -ENODEV;

    if (getifaddrs(&list) < 0)
        return -errno;
    for (int family = 0; family < 2 && r < 0; family++)
        for (const struct ifaddrs *i = list; i && r < 0; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == (family ? AF_INET6 : AF_INET) &&
                strcmp(i->ifa_name, name) == 0)
                r = numeric(i->ifa_addr, ret, size);
    freeifaddrs(list);
    return r;
}

/* The ways in which an address can be listened at. */
enum bind_kind {
    BIND_NO_ADDRESS,
    BIND_ALL,
    BIND_ONE,
    BIND_NEVER, /* of a group of hosts: nobody can connect to it */
};

static enum bind_kind bind_kind(const char *text)
{
    struct in6_addr six;
    struct in_addr four;

    if (inet_pton(AF_INET, text, &four) == 1) {
        uint32_t number = ntohl(four.s_addr);

        return number == INADDR_ANY ? BIND_ALL : number >= 0xe0000000u ? BIND_NEVER : BIND_ONE;
    }
    if (inet_pton(AF_INET6, text, &six) != 1)
        return BIND_NO_ADDRESS;
    return IN6_IS_ADDR_UNSPECIFIED(&six) ? BIND_ALL
           : IN6_IS_ADDR_MULTICAST(&six) ? BIND_NEVER
                                         : BIND_ONE;
}

int pl_hub_bind_address(char *ret, size_t size, struct pl_error *err)
{
    const char *given = pl_env_text(PL_ENV_PLUME_HUB_BIND);
    enum bind_kind kind = given ? bind_kind(given) : BIND_ALL;

    *ret = '\0';
    if (kind == BIND_ALL) /* other nodes cannot be told to connect to 0.0.0.0 */
        return 0;
    if (kind == BIND_NEVER)
        return pl_error_set(err, -EADDRNOTAVAIL,
                            "PLUME_HUB_BIND: no host can be reached at '%s'; give the name of an "
                            "interface, or its address",
                            given);
    if (kind == BIND_ONE && strlen(given) < size) {
        memcpy(ret, given, strlen(given) + 1);
        return 0;
    }
    if (interface_address(given, ret, size) == 0)
        return 0;
    return pl_error_set(err, -ENODEV,
                        "PLUME_HUB_BIND: this host has no interface '%s'; give the name of one, or "
                        "a numeric address",
                        given);
}

void pl_net_tune(int fd)
{
    int one = 1;
    unsigned limit_ms = 20000;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

/* n ports between low and high, from a keyed hash of `text`: not the same one twice, as long as the
 * range has others. */
static void draw_ports(const unsigned char secret[PL_KEY_SIZE],
                       const char *text,
                       uint16_t low,
                       uint16_t high,
                       uint16_t *ret,
                       size_t n)
{
    uint32_t words[PL_WALK_PORTS], size = (uint32_t)high - low + 1;

    crypto_generichash((unsigned char *)words, n * sizeof(*words), (const unsigned char *)text,
                       strlen(text), secret, PL_KEY_SIZE);
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;

        ret[i] = (uint16_t)(low + words[i] % size);
        while (i < size && j < i) {
            if (ret[j++] == ret[i]) {
                ret[i] = (uint16_t)(ret[i] == high ? low : ret[i] + 1);
                j = 0;
            }
        }
    }
}

int pl_hub_ports_derive(const unsigned char secret[PL_KEY_SIZE],
                        const struct pl_session_id *id,
                        uint16_t ret[PL_WALK_PORTS],
                        struct pl_error *err)
{
    const char *range = pl_env(PL_ENV_PLUME_HUB_PORTS);
    uint16_t low = PL_WALK_LOW, high = PL_WALK_HIGH;
    char text[96];
    int r;

    if (range && *range) {
        r = pl_parse_port_range(range, &low, &high, err);
        if (r < 0)
            return pl_error_wrap(err, r, "PLUME_HUB_PORTS");
    }
    snprintf(text, sizeof(text), "plume walk %s %s %u", id->job, id->step, id->attempt);
    draw_ports(secret, text, low, high, ret, PL_WALK_PORTS);
    return 0;
}

void pl_hub_ports_spare(const unsigned char secret[PL_KEY_SIZE],
                        const struct pl_session_id *id,
                        uint16_t ret[PL_SPARE_PORTS])
{
    char text[96];

    snprintf(text, sizeof(text), "plume spare %s %s %u", id->job, id->step, id->attempt);
    draw_ports(secret, text, PL_WALK_LOW, PL_WALK_HIGH, ret, PL_SPARE_PORTS);
}

int pl_net_split(const char *s, char *host, size_t size, uint16_t *ret_port)
{
    const char *colon = strrchr(s, ':');
    size_t len = colon ? (size_t)(colon - s) : 0;
    int64_t port;

    if (!colon || len == 0 || pl_parse_int(colon + 1, 1, 65535, &port, NULL) < 0)
        return -EINVAL;
    if (s[0] == '[' && s[len - 1] == ']') {
        s++;
        len -= 2;
    }
    if (len == 0 || len >= size || memchr(s, '[', len) || memchr(s, ']', len))
        return -EINVAL;
    memcpy(host, s, len);
    host[len] = '\0';
    *ret_port = (uint16_t)port;
    return 0;
}
