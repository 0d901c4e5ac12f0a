/* SPDX-License-Identifier: MIT */
/* A program of ranks that meet at MASTER_ADDR:MASTER_PORT as PyTorch's do: rank 0 binds it with
 * SO_REUSEADDR and listens, the others connect and give their rank. Rank 0 tries first what a
 * stranger may: to bind the port without that option, and to be given it by the kernel.
 *
 * Exit code 0, or 1 with the reason on stderr. No step takes longer than LIMIT_S. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 30
#define STRANGERS 3000

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

static int number(const char *name)
{
    const char *v = getenv(name);

    return v ? (int)strtol(v, NULL, 10) : -1;
}

/* A socket bound to a port of all addresses; -1. */
static int bound(int port, int reuse)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse));
    if (bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0)
        return fd;
    close(fd);
    return -1;
}

static int is_held(int port)
{
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    int fd = bound(port, 0);

    if (fd >= 0) {
        close(fd);
        errno = 0;
        return fail("a stranger could bind MASTER_PORT");
    }
    for (int i = 0; i < STRANGERS; i++) {
        fd = bound(0, 0);
        if (fd < 0 || getsockname(fd, (struct sockaddr *)&a, &len) < 0)
            return fail("cannot bind any port");
        close(fd);
        if (ntohs(a.sin_port) == port)
            return fail("the kernel gave MASTER_PORT away");
    }
    return 0;
}

static int serve(int port, int world)
{
    int fd = bound(port, 1), sum = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};

    if (fd < 0 || listen(fd, 128) < 0)
        return fail("rank 0 cannot listen at MASTER_PORT");
    for (int i = 1; i < world; i++) {
        int peer, rank;

        if (poll(&p, 1, LIMIT_S * 1000) != 1 || (peer = accept(fd, NULL, NULL)) < 0 ||
            recv(peer, &rank, sizeof(rank), MSG_WAITALL) != sizeof(rank))
            return fail("no word from a rank");
        sum += rank;
        send(peer, &rank, sizeof(rank), MSG_NOSIGNAL);
        close(peer);
    }
    close(fd);
    errno = 0;
    return sum == world * (world - 1) / 2 ? 0 : fail("some rank came twice");
}

static int visit(const char *port, int rank)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *a;
    time_t limit = time(NULL) + LIMIT_S;
    int answer = -1;

    if (getaddrinfo(getenv("MASTER_ADDR"), port, &hints, &a) != 0)
        return fail("cannot resolve MASTER_ADDR");
    while (time(NULL) < limit) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            if (send(fd, &rank, sizeof(rank), MSG_NOSIGNAL) != sizeof(rank) ||
                recv(fd, &answer, sizeof(answer), MSG_WAITALL) != sizeof(answer))
                return fail("rank 0 does not answer");
            close(fd);
            errno = 0;
            return answer == rank ? 0 : fail("somebody else answers");
        }
        close(fd);
        poll(NULL, 0, 10);
    }
    return fail("nobody listens at MASTER_PORT");
}

int main(void)
{
    int rank = number("RANK"), world = number("WORLD_SIZE"), port = number("MASTER_PORT");

    if (rank < 0 || world < 1 || port < 1)
        return fail("RANK, WORLD_SIZE or MASTER_PORT is missing");
    if (rank)
        return visit(getenv("MASTER_PORT"), rank);
    return is_held(port) || serve(port, world);
}
