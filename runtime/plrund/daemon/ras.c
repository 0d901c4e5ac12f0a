/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/ras.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "common/base/term.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#define ENVIRON_MAX 262144
#define ANSWER_MAX 32768
/* One second for processes that do not answer RAS itself. */
#define QUESTION "timeout 1\nverbose status\n"

union address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* The value of NCCL_RAS_ADDR in a process's environment; NULL. */
static char *ras_address(pid_t pid)
{
    static const char name[] = "NCCL_RAS_ADDR=";
    char path[32];
    _cleanup_free_ char *env = NULL;
    size_t len = 0;

    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    if (pl_file_read(path, ENVIRON_MAX, &env, &len, NULL) < 0)
        return NULL;
    for (size_t i = 0; i < len; i += strlen(env + i) + 1)
        if (strncmp(env + i, name, strlen(name)) == 0)
            return strdup(env + i + strlen(name));
    return NULL;
}

/* "localhost:PORT" or "A.B.C.D:PORT": no name is resolved. Which one localhost is to NCCL depends
 * on the node. Returns the number of addresses. */
static size_t read_address(const char *text, union address ret[2])
{
    const char *colon = strrchr(text, ':');
    _cleanup_free_ char *host = colon ? strndup(text, (size_t)(colon - text)) : NULL;
    bool local = host && strcmp(host, "localhost") == 0;
    int64_t port;

    if (!host || pl_parse_int(colon + 1, 1, 65535, &port, NULL) < 0)
        return 0;
    ret[0].in = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    ret[1].in6 = (struct sockaddr_in6){.sin6_family = AF_INET6,
                                       .sin6_port = htons((uint16_t)port),
                                       .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (inet_pton(AF_INET, local ? "127.0.0.1" : host, &ret[0].in.sin_addr) != 1)
        return 0;
    return local ? 2 : 1;
}

/* Waits for an event until the limit. */
static bool ready(int fd, short events, uint64_t limit_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    uint64_t now = pl_now_ns();

    return now < limit_ns && poll(&p, 1, (int)((limit_ns - now) / 1000000u) + 1) > 0;
}

/* A connection on which the question was sent; -1. */
static int ask(const union address *addr, uint64_t limit_ns)
{
    _cleanup_close_ int fd =
        socket(addr->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = addr->any.sa_family == AF_INET ? sizeof(addr->in) : sizeof(addr->in6);
    socklen_t error_len = sizeof(int);
    union address own = *addr; /* an address of another host cannot be ours */
    int error = 0;

    own.in.sin_port = 0; /* sin6_port is at its place */
    if (fd < 0 || bind(fd, &own.any, len) < 0 ||
        (connect(fd, &addr->any, len) < 0 &&
         (errno != EINPROGRESS || !ready(fd, POLLOUT, limit_ns) ||
          getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) < 0 || error != 0)))
        return -1;
    if (send(fd, QUESTION, strlen(QUESTION), MSG_NOSIGNAL) != (ssize_t)strlen(QUESTION))
        return -1;
    return PL_TAKE_FD(fd);
}

/* Anybody on the node may have answered, and who reads the file has it on a terminal. */
static int escape_lines(struct pl_buf *out, const struct pl_buf *answer)
{
    const char *p = pl_buf_str(answer), *end = p + answer->len;
    int r = 0;

    while (p < end && r == 0) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        size_t len = (size_t)((stop ? stop : end) - p);

        r = pl_term_escape(out, p, len);
        if (r == 0)
            r = pl_buf_addc(out, '\n');
        p += len + 1;
    }
    return r;
}

void pl_ras_report(pid_t pid, int fd)
{
    uint64_t limit_ns = pl_now_ns() + PL_RAS_LIMIT_MS * 1000000ull;
    _cleanup_free_ char *address = ras_address(pid), *head = NULL;
    _cleanup_close_ int sock = -EBADF;
    _cleanup_(pl_buf_finish) struct pl_buf answer = {0}, text = {0};
    union address addresses[2];
    size_t n_addresses = address ? read_address(address, addresses) : 0;
    ssize_t n = 1;

    for (size_t i = 0; i < n_addresses && sock < 0; i++)
        sock = ask(&addresses[i], limit_ns);
    if (sock < 0)
        return;
    while (n > 0 && answer.len < ANSWER_MAX && ready(sock, POLLIN, limit_ns)) {
        char data[4096];

        n = recv(sock, data, PL_MIN(sizeof(data), ANSWER_MAX - answer.len), 0);
        if (n > 0 && pl_buf_add(&answer, data, (size_t)n) < 0)
            return;
    }
    head = pl_strf("== NCCL RAS at %s%s\n", address,
                   answer.len == 0 ? ": no answer"
                   : n > 0         ? ": not the whole answer"
                                   : "");
    if (!head || escape_lines(&text, &answer) < 0 || pl_write_all(fd, head, strlen(head)) < 0)
        return;
    pl_write_all(fd, pl_buf_str(&text), text.len);
}
