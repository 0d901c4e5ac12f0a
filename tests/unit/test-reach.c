/* SPDX-License-Identifier: MIT */
#include "runtime/plrund/daemon/reach.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void
note_of(struct pl_reach *reach, const char *address, uint16_t port, int code, bool aside)
{
    struct sockaddr_storage a = {.ss_family = strchr(address, ':') ? AF_INET6 : AF_INET};
    void *at = a.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&a)->sin6_addr
                                       : (void *)&((struct sockaddr_in *)&a)->sin_addr;

    assert_int_equal(inet_pton(a.ss_family, address, at), 1);
    pl_reach_note(reach, &a, port, code, aside);
}

static void note(struct pl_reach *reach, const char *address, uint16_t port, int code)
{
    note_of(reach, address, port, code, false);
}

static void assert_text(const struct pl_reach *reach, const char *want)
{
    char text[160];

    pl_reach_text(reach, text, sizeof(text));
    assert_string_equal(text, want);
}

static void test_text_of_one_answer(void **state)
{
    static const struct {
        const char *address;
        int code;
        const char *want;
    } cases[] = {
        {"10.0.0.1", -ETIMEDOUT, "10.0.0.1:20012 does not answer"},
        {"10.0.0.1", -ECONNREFUSED, "10.0.0.1:20012 takes no connection"},
        {"10.0.0.1", -EHOSTUNREACH, "10.0.0.1:20012 cannot be reached: No route to host"},
        {"fd00::1", -ENETUNREACH, "[fd00::1]:20012 cannot be reached: Network is unreachable"},
        {"10.0.0.1", -EPERM, "10.0.0.1:20012 cannot be reached: Operation not permitted"},
        {"10.0.0.1", -EACCES, ""}, /* the hub has refused the greeting */
        {"10.0.0.1", -EPROTO, ""},
        {"10.0.0.1", 0, ""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pl_reach reach = {.code = 0};

        note(&reach, cases[i].address, 20012, cases[i].code);
        assert_text(&reach, cases[i].want);
    }
}

/* The launch node, which is tried as well, refuses; the hub's node is silent. */
static void test_text_of_the_most_telling_answer(void **state)
{
    struct pl_reach reach = {.code = 0};

    assert_text(&reach, "");
    note(&reach, "10.0.0.9", 1, -ECONNREFUSED);
    note(&reach, "10.0.0.9", 2, -ECONNREFUSED);
    assert_text(&reach, "10.0.0.9:1 and 1 more take no connection");
    note(&reach, "10.0.0.1", 7, -ETIMEDOUT);
    note(&reach, "10.0.0.9", 3, -ECONNREFUSED);
    note(&reach, "10.0.0.8", 3, -EHOSTUNREACH);
    assert_text(&reach, "10.0.0.1:7 does not answer");
    note(&reach, "10.0.0.1", 8, -ETIMEDOUT);
    note(&reach, "10.0.0.1", 9, -ETIMEDOUT);
    assert_text(&reach, "10.0.0.1:7 and 2 more do not answer");
}

/* srun's host is tried as well, and may be silent to nodes: the first node's answer counts. */
static void test_text_of_the_first_node_before_sruns_host(void **state)
{
    struct pl_reach reach = {.code = 0};

    note_of(&reach, "10.0.0.9", 7, -ETIMEDOUT, true);
    note_of(&reach, "10.0.0.9", 8, -ETIMEDOUT, true);
    assert_text(&reach, "10.0.0.9:7 and 1 more do not answer");
    note_of(&reach, "10.0.0.1", 7, -ECONNREFUSED, false);
    note_of(&reach, "10.0.0.9", 9, -ECONNREFUSED, true);
    note_of(&reach, "10.0.0.9", 9, -ETIMEDOUT, true);
    assert_text(&reach, "10.0.0.1:7 takes no connection");
    note_of(&reach, "10.0.0.1", 8, pl_reach_of_connect(-EACCES), false);
    assert_text(&reach, "10.0.0.1:8 cannot be reached: Operation not permitted");
    note_of(&reach, "10.0.0.1", 9, pl_reach_of_connect(-EINVAL), false);
    assert_text(&reach, "10.0.0.1:9 cannot be reached: Network is unreachable");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_of_one_answer),
        cmocka_unit_test(test_text_of_the_most_telling_answer),
        cmocka_unit_test(test_text_of_the_first_node_before_sruns_host),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
