/* SPDX-License-Identifier: MIT */
/* Rank 0's store of values among strangers: they learn nothing, leave nothing in its memory, and
 * take nobody's place. */
#include "common/base/fs.h"
#include "runtime/engine/comm/kv_server.h"
#include "runtime/engine/comm/kv_store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cmocka.h>

#define WAIT_MS 20000
#define STRANGERS 300     /* more than there are places for them */
#define STRANGERS_MAX 256 /* of kv_server.c */
#define TALK_MS 10000     /* this, too */
#define CASES 400

static const uint8_t key[PL_SHA256_BYTES] = {1, 2, 3};

struct fixture {
    struct pl_kv_server *server;
    unsigned port;
};

static int start(void **state)
{
    static struct fixture f;
    int fd;

    *state = &f;
    return pl_comm_tcp_listen("127.0.0.1", &fd, &f.port, NULL) < 0 ||
                   pl_kv_server_start(fd, key, &f.server, NULL) < 0
               ? -1
               : 0;
}

static int end_server(void **state)
{
    struct fixture *f = *state;

    pl_kv_server_stop(f->server);
    return 0;
}

/* ---- a store of another rank ---- */

struct told {
    struct pl_comm comm;
    struct pl_kv_place place;
};

static int give_place(struct pl_comm *comm, void *buf, size_t bytes, struct pl_error *err)
{
    (void)err;
    memcpy(buf, &((struct told *)comm)->place, bytes);
    return 0;
}

static struct pl_kv_store *open_store(unsigned port)
{
    static const struct pl_comm_ops ops = {.name = "told", .broadcast = give_place};
    struct told told = {.comm = {.ops = &ops, .rank = 1, .size = 2},
                        .place = {.address = "127.0.0.1", .port = port}};
    struct pl_kv_store *store;

    memcpy(told.place.key, key, sizeof(key));
    assert_int_equal(pl_kv_store_open(&told.comm, &store, NULL), 0);
    return store;
}

static int put(struct pl_kv_store *store, const char *name, const char *value)
{
    return pl_kv_store_put(store, name, strlen(name), value, strlen(value), NULL);
}

/* The value must be this one. */
static int get(struct pl_kv_store *store, const char *name, unsigned timeout_ms, const char *value)
{
    char *got = NULL;
    size_t n;
    int r = pl_kv_store_get(store, name, strlen(name), timeout_ms, &got, &n, NULL);

    assert_true(r < 0 || (n == strlen(value) && memcmp(got, value, n) == 0));
    free(got);
    return r;
}

/* ---- one connection ---- */

static int new_socket(void)
{
    const struct timeval limit = {.tv_sec = WAIT_MS / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    return fd;
}

static struct sockaddr_in address_of(unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static void knock_by(int fd, unsigned port)
{
    struct sockaddr_in to = address_of(port);

    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
}

static int knock(unsigned port)
{
    int fd = new_socket();

    knock_by(fd, port);
    return fd;
}

/* Connects and reads the server's nonce. */
static int enter(unsigned port, uint8_t nonce[PL_KV_NONCE])
{
    int fd = knock(port);

    assert_int_equal(recv(fd, nonce, PL_KV_NONCE, MSG_WAITALL), PL_KV_NONCE);
    return fd;
}

/* The server has closed the connection, and said no more than its nonce. */
static void assert_closed(int fd)
{
    char buf[64];
    ssize_t n;
    size_t all = 0;

    while ((n = recv(fd, buf, sizeof(buf), 0)) > 0)
        all += (size_t)n;
    assert_false(n < 0 && errno == EAGAIN);
    assert_true(all <= PL_KV_NONCE);
    close(fd);
}

static bool is_open(int fd)
{
    char buf[PL_KV_NONCE + 1];
    ssize_t n;

    while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

static struct pl_kv_request
new_request(uint32_t what, const char *name, const char *value, unsigned timeout_ms)
{
    struct pl_kv_request r = {.what = what,
                              .key_len = (uint32_t)strlen(name),
                              .len = (uint32_t)strlen(value),
                              .timeout_ms = timeout_ms};

    pl_kv_digest(name, r.key_len, value, r.len, r.body);
    return r;
}

static void send_all(int fd, const void *data, size_t len)
{
    (void)!send(fd, data, len, MSG_NOSIGNAL); /* it may be closed already */
}

/* The call of a rank, on a socket that is connected. Returns the code of the reply. */
static int ask_by(int fd, struct pl_kv_request *r, const char *name, const char *value)
{
    uint8_t nonce[PL_KV_NONCE];
    struct pl_kv_reply reply = {.code = -EPROTO};

    assert_int_equal(recv(fd, nonce, PL_KV_NONCE, MSG_WAITALL), PL_KV_NONCE);
    pl_kv_prove_request(key, nonce, r);
    send_all(fd, r, sizeof(*r));
    send_all(fd, name, r->key_len);
    send_all(fd, value, r->len);
    assert_int_equal(recv(fd, &reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
    assert_true(pl_kv_reply_proven(key, r->nonce, &reply));
    close(fd);
    return reply.code;
}

static int
ask(unsigned port, uint32_t what, const char *name, const char *value, unsigned timeout_ms)
{
    struct pl_kv_request r = new_request(what, name, value, timeout_ms);

    return ask_by(knock(port), &r, name, value);
}

/* ---- strangers ---- */

static void test_strangers_get_nothing(void **state)
{
    const struct fixture *f = *state;
    static const uint8_t other[PL_SHA256_BYTES] = {1, 2, 4};
    struct pl_kv_request request = new_request(PL_KV_GET, "abc", "", 0);
    uint8_t nonce[PL_KV_NONCE], later[PL_KV_NONCE];
    char junk[4096];
    int fd;

    assert_int_equal(ask(f->port, PL_KV_PUT, "abc", "secret", 0), 0);
    memset(junk, 0xff, sizeof(junk));
    fd = knock(f->port);
    send_all(fd, junk, sizeof(junk));
    assert_closed(fd);
    fd = enter(f->port, nonce); /* without the key */
    send_all(fd, &request, sizeof(request));
    send_all(fd, "abc", 3);
    assert_closed(fd);
    fd = enter(f->port, nonce); /* with another one */
    pl_kv_prove_request(other, nonce, &request);
    send_all(fd, &request, sizeof(request));
    send_all(fd, "abc", 3);
    assert_closed(fd);
    fd = enter(f->port, later); /* with the key, for another connection's nonce */
    pl_kv_prove_request(key, nonce, &request);
    send_all(fd, &request, sizeof(request));
    send_all(fd, "abc", 3);
    assert_closed(fd);
    fd = enter(f->port, nonce); /* another key than was proven */
    pl_kv_prove_request(key, nonce, &request);
    send_all(fd, &request, sizeof(request));
    send_all(fd, "abd", 3);
    assert_closed(fd);
}

static void test_a_stranger_sends_no_value(void **state)
{
    const struct fixture *f = *state;
    struct pl_kv_request request = {.what = PL_KV_PUT, .key_len = 1, .len = PL_KV_VALUE_MAX};
    static char piece[64 * 1024];
    size_t sent = 0;
    uint8_t nonce[PL_KV_NONCE];
    int fd = enter(f->port, nonce);
    ssize_t n;

    send_all(fd, &request, sizeof(request));
    while (sent < request.len && (n = send(fd, piece, sizeof(piece), MSG_NOSIGNAL)) > 0)
        sent += (size_t)n;
    assert_true(sent < request.len);
    close(fd);
}

static void test_strangers_leave_room(void **state)
{
    const struct fixture *f = *state;
    int fds[STRANGERS], open = 0;

    for (int i = 0; i < STRANGERS; i++) {
        fds[i] = knock(f->port);
        if (i % 2)
            send_all(fds[i], "x", 1);
    }
    assert_int_equal(ask(f->port, PL_KV_PUT, "room", "yes", 0), 0);
    for (int i = 0; i < STRANGERS; i++) {
        open += is_open(fds[i]);
        close(fds[i]);
    }
    assert_true(open <= STRANGERS_MAX);
}

/* While there is no descriptor for one more connection, those of strangers make way. */
static void test_strangers_take_no_descriptor(void **state)
{
    const struct fixture *f = *state;
    struct pl_kv_request request = new_request(PL_KV_GET, "none", "", 0);
    struct rlimit before, few;
    uint64_t began = pl_now_ns();
    int fds[16], last;

    for (size_t i = 0; i < PL_COUNT(fds); i++)
        fds[i] = new_socket();
    last = new_socket();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)last + 4;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (size_t i = 0; i < PL_COUNT(fds); i++)
        knock_by(fds[i], f->port);
    knock_by(last, f->port);
    assert_int_equal(ask_by(last, &request, "none", ""), -ENOENT);
    assert_true(pl_now_ns() - began < TALK_MS * 800000ull); /* not because their time was over */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (size_t i = 0; i < PL_COUNT(fds); i++)
        close(fds[i]);
}

/* A call of a rank with one thing wrong. Returns false if its connection may stay open. */
static bool be_hostile(int fd, unsigned *seed, const uint8_t nonce[PL_KV_NONCE])
{
    static struct pl_kv_request heard; /* of an earlier case: to be sent again */
    struct pl_kv_request r = new_request(1 + (uint32_t)rand_r(seed) % 3, "victim", "value", 0);
    char all[sizeof(r) + 11];
    size_t len = sizeof(all), at;

    for (size_t i = 0; i < PL_KV_NONCE; i++)
        r.nonce[i] = (uint8_t)rand_r(seed);
    pl_kv_prove_request(key, nonce, &r);
    memcpy(all, &r, sizeof(r));
    memcpy(all + sizeof(r), "victimvalue", 11);
    at = (size_t)rand_r(seed) % sizeof(all);
    switch (rand_r(seed) % 5) {
    case 0: /* a bit is changed, in the head, the key or the value */
        all[at] ^= (char)(1 << rand_r(seed) % 8);
        break;
    case 1: /* it is cut off */
        len = at;
        break;
    case 2: /* said before, to somebody else */
        memcpy(all, &heard, sizeof(heard));
        break;
    case 3: /* noise, of which a lot is asked for */
        for (size_t i = 0; i < sizeof(all); i++)
            all[i] = (char)rand_r(seed);
        break;
    default: /* no proof */
        memset(all + offsetof(struct pl_kv_request, proof), 0, PL_SHA256_BYTES);
    }
    heard = r;
    if (rand_r(seed) % 4 == 0 && len > 1) { /* in two pieces */
        send_all(fd, all, len / 2);
        send_all(fd, all + len / 2, len - len / 2);
    } else {
        send_all(fd, all, len);
    }
    if (len < sizeof(all) && rand_r(seed) % 2)
        return shutdown(fd, SHUT_WR) == 0 || errno == ENOTCONN;
    return len == sizeof(all);
}

static void test_hostile_calls_do_nothing(void **state)
{
    const struct fixture *f = *state;
    unsigned seed = 1;
    uint8_t nonce[PL_KV_NONCE];

    for (int i = 0; i < CASES; i++) {
        int fd = enter(f->port, nonce);

        if (be_hostile(fd, &seed, nonce))
            assert_closed(fd);
        else
            close(fd);
    }
    assert_int_equal(ask(f->port, PL_KV_GET, "victim", "", 0), -ENOENT); /* nor has one "failed" */
    assert_int_equal(ask(f->port, PL_KV_PUT, "victim", "good", 0), 0);
}

struct flood {
    unsigned port;
    atomic_bool end;
};

static void *flood(void *arg)
{
    struct flood *f = arg;
    struct sockaddr_in to = address_of(f->port);
    int fds[STRANGERS] = {0};

    for (size_t i = 0; !f->end; i = (i + 1) % PL_COUNT(fds)) {
        if (fds[i] > 0)
            close(fds[i]);
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fds[i], (struct sockaddr *)&to, sizeof(to)) == 0)
            send_all(fds[i], "junk", i % 5);
    }
    for (size_t i = 0; i < PL_COUNT(fds); i++)
        if (fds[i] > 0)
            close(fds[i]);
    return NULL;
}

/* Values come through a flood of connections. A get that waits is nobody's to drop. */
static void test_ranks_are_served_in_a_flood(void **state)
{
    const struct fixture *f = *state;
    struct flood strangers = {.port = f->port};
    struct pl_kv_request late = new_request(PL_KV_GET, "late", "", WAIT_MS);
    struct pl_kv_reply reply = {0};
    uint8_t nonce[PL_KV_NONCE];
    struct pl_kv_store *store = open_store(f->port);
    char name[16], value[3];
    pthread_t thread;
    int waits = enter(f->port, nonce);

    pl_kv_prove_request(key, nonce, &late);
    send_all(waits, &late, sizeof(late));
    send_all(waits, "late", 4);
    assert_int_equal(ask(f->port, PL_KV_GET, "late", "", 1), -ETIMEDOUT); /* that one waits now */
    assert_int_equal(pthread_create(&thread, NULL, flood, &strangers), 0);
    for (int i = 0; i < 30; i++) {
        snprintf(name, sizeof(name), "key %d", i);
        assert_int_equal(put(store, name, name), 0);
        assert_int_equal(get(store, name, WAIT_MS, name), 0);
        assert_int_equal(get(store, "nobody", 2, ""), -ETIMEDOUT);
    }
    assert_int_equal(put(store, "late", "yes"), 0);
    strangers.end = true;
    pthread_join(thread, NULL);
    assert_int_equal(recv(waits, &reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
    assert_int_equal(reply.code, 0);
    assert_int_equal(recv(waits, value, sizeof(value), MSG_WAITALL), 3);
    assert_memory_equal(value, "yes", 3);
    close(waits);
    pl_kv_store_close(store);
}

/* ---- connections that break ---- */

#define BREAKS 4

/* A server whose first connections break, each later in the call than the one before. */
struct breaker {
    int fd;
    struct pl_kv_server *server;
};

static bool break_at(int listen_fd, int stage)
{
    struct pollfd p = {.fd = listen_fd, .events = POLLIN};
    struct pl_kv_request request = {0};
    char name[3];
    /* cppcheck-suppress nullPointer ; accept(2) allows it */
    int fd = poll(&p, 1, WAIT_MS) == 1 ? accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC) : -1;
    bool good = fd >= 0;

    if (good && stage > 0)
        good = send(fd, request.nonce, PL_KV_NONCE, MSG_NOSIGNAL) == PL_KV_NONCE;
    if (good && stage > 1)
        good = recv(fd, &request, sizeof(request), MSG_WAITALL) == sizeof(request);
    if (good && stage > 2)
        good = recv(fd, name, sizeof(name), MSG_WAITALL) == sizeof(name);
    if (fd >= 0)
        close(fd);
    return good;
}

static void *break_and_serve(void *arg)
{
    struct breaker *b = arg;

    for (int i = 0; i < BREAKS; i++)
        if (!break_at(b->fd, i))
            return NULL;
    return pl_kv_server_start(b->fd, key, &b->server, NULL) == 0 ? arg : NULL;
}

static void test_a_call_goes_on_after_broken_connections(void **state)
{
    struct breaker b = {0};
    struct pl_kv_store *store;
    pthread_t thread;
    unsigned port;
    void *good;

    (void)state;
    assert_int_equal(pl_comm_tcp_listen("127.0.0.1", &b.fd, &port, NULL), 0);
    store = open_store(port);
    assert_int_equal(pthread_create(&thread, NULL, break_and_serve, &b), 0);
    assert_int_equal(put(store, "key", "value"), 0);
    pthread_join(thread, &good);
    assert_non_null(good);
    assert_int_equal(get(store, "key", WAIT_MS, "value"), 0);
    assert_int_equal(put(store, "key", "value"), -EEXIST);
    pl_kv_server_stop(b.server);
    assert_int_equal(put(store, "late", "value"), -ECONNRESET);
    pl_kv_store_close(store);
}

/* ---- calls ---- */

static void test_a_put_that_is_made_again_is_one(void **state)
{
    const struct fixture *f = *state;
    struct pl_kv_request r = new_request(PL_KV_PUT, "once", "value", 0);

    r.nonce[3] = 1;
    assert_int_equal(ask_by(knock(f->port), &r, "once", "value"), 0);
    assert_int_equal(ask_by(knock(f->port), &r, "once", "value"), 0);
    r.nonce[3] = 2;
    assert_int_equal(ask_by(knock(f->port), &r, "once", "value"), -EEXIST);
}

static void test_who_fails_is_told_to_those_who_wait(void **state)
{
    const struct fixture *f = *state;
    struct pl_kv_request late = new_request(PL_KV_GET, "late", "", WAIT_MS);
    struct pl_kv_reply reply = {0};
    uint8_t nonce[PL_KV_NONCE];
    char text[9] = "";
    int waits = enter(f->port, nonce);

    pl_kv_prove_request(key, nonce, &late);
    send_all(waits, &late, sizeof(late));
    send_all(waits, "late", 4);
    assert_int_equal(ask(f->port, PL_KV_GET, "late", "", 1), -ETIMEDOUT);
    assert_int_equal(ask(f->port, PL_KV_FAIL, "", "no device", 0), 0);
    assert_int_equal(recv(waits, &reply, sizeof(reply), MSG_WAITALL), sizeof(reply));
    assert_int_equal(reply.code, -ECANCELED);
    assert_int_equal(recv(waits, text, sizeof(text), MSG_WAITALL), sizeof(text));
    assert_memory_equal(text, "no device", sizeof(text));
    close(waits);
}

static void test_a_silent_connection_ends_with_the_server(void **state)
{
    struct fixture f;
    void *at;
    int silent;

    (void)state;
    assert_int_equal(start(&at), 0);
    f = *(struct fixture *)at;
    silent = knock(f.port);
    pl_kv_server_stop(f.server);
    assert_closed(silent);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_strangers_get_nothing, start, end_server),
        cmocka_unit_test_setup_teardown(test_a_stranger_sends_no_value, start, end_server),
        cmocka_unit_test_setup_teardown(test_strangers_leave_room, start, end_server),
        cmocka_unit_test_setup_teardown(test_strangers_take_no_descriptor, start, end_server),
        cmocka_unit_test_setup_teardown(test_hostile_calls_do_nothing, start, end_server),
        cmocka_unit_test_setup_teardown(test_ranks_are_served_in_a_flood, start, end_server),
        cmocka_unit_test_setup_teardown(test_a_put_that_is_made_again_is_one, start, end_server),
        cmocka_unit_test_setup_teardown(test_who_fails_is_told_to_those_who_wait, start,
                                        end_server),
        cmocka_unit_test(test_a_call_goes_on_after_broken_connections),
        cmocka_unit_test(test_a_silent_connection_ends_with_the_server),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
