/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "runtime/plrund/hub/strangers.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct sockaddr_storage address(const char *text)
{
    struct sockaddr_storage a = {0};

    if (strchr(text, ':')) {
        a.ss_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, text, &((struct sockaddr_in6 *)&a)->sin6_addr), 1);
    } else {
        a.ss_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, text, &((struct sockaddr_in *)&a)->sin_addr), 1);
    }
    return a;
}

static unsigned crowd(const struct pl_strangers *s, const char *text)
{
    struct sockaddr_storage a = address(text);

    return pl_strangers_crowd(s, &a);
}

/* An equal hash of different addresses is rare, so a few seeds tell. */
static void test_crowd_same_or_not(void **state)
{
    static const struct {
        const char *a, *b;
        int same;
    } rows[] = {
        {"10.0.0.1", "10.0.0.1", 1},
        {"10.0.0.1", "::ffff:10.0.0.1", 1},
        {"10.0.0.1", "10.0.0.2", 0},
        {"10.0.0.1", "11.0.0.1", 0},
        {"127.0.0.1", "127.255.3.9", 1},
        {"127.0.0.1", "::ffff:127.7.0.1", 1},
        {"127.0.0.1", "10.0.0.1", 0},
        {"127.0.0.1", "::1", 0},
        {"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", 1},
        {"2001:db8:1:2::1", "2001:db8:1:3::1", 0},
    };
    struct pl_strangers s;

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        int n = 0;

        for (int k = 0; k < 8; k++) {
            pl_strangers_init(&s);
            n += crowd(&s, rows[i].a) == crowd(&s, rows[i].b);
        }
        if (rows[i].same)
            assert_int_equal(n, 8);
        else
            assert_true(n < 4);
    }
}

static void enter(struct pl_strangers *s, unsigned crowd, unsigned n)
{
    while (n--)
        pl_strangers_enter(s, crowd);
}

static void test_make_room(void **state)
{
    struct pl_strangers s;

    pl_strangers_init(&s);
    assert_int_equal(pl_strangers_largest(&s), -1);
    assert_int_equal(pl_strangers_make_room(&s, 7, 0), -1);
    enter(&s, 7, PL_STRANGERS_MAX / 2 - 1);
    assert_false(pl_strangers_press(&s, 0));
    assert_int_equal(pl_strangers_make_room(&s, 7, 0), -1);
    enter(&s, 7, 1);
    assert_true(pl_strangers_press(&s, 0));
    assert_false(pl_strangers_press(&s, 1));
    assert_int_equal(pl_strangers_make_room(&s, 7, 0), 7);  /* a crowd makes room for its own */
    assert_int_equal(pl_strangers_make_room(&s, 8, 0), -1); /* others find a place */
    assert_int_equal(pl_strangers_make_room(&s, 7, 1), -1); /* nodes are on their way */
    enter(&s, 8, PL_STRANGERS_MAX / 2 - 10);
    assert_false(pl_strangers_crowded(&s, 9));
    enter(&s, 9, 10);
    assert_true(pl_strangers_crowded(&s, 9));
    assert_int_equal(pl_strangers_make_room(&s, 9, 0), 7); /* all is full: the largest goes */
    assert_int_equal(pl_strangers_make_room(&s, 10, 0), 7);
    for (int i = 0; i < 20; i++)
        pl_strangers_leave(&s, 7);
    assert_int_equal(pl_strangers_make_room(&s, 9, 0), -1);
    assert_int_equal(pl_strangers_largest(&s), 8);
}

/* An attacker with many addresses and one honest connection at a time: against a list in the order
 * of arrival, the honest one is never cut off before 60 more have come. */
static void test_make_room_honest_stays(void **state)
{
    enum { N = 4000 };
    static int of[N], gone[N];
    struct pl_strangers s;
    int first = 0;

    srand(1);
    for (int addresses = 1; addresses <= 200; addresses += 33) {
        pl_strangers_init(&s);
        memset(gone, 0, sizeof(gone));
        first = 0;
        for (int i = 0; i < N; i++) {
            int honest = i % 61 == 60;
            int full;

            of[i] = honest ? 255 : rand() % addresses;
            full = pl_strangers_make_room(&s, (unsigned)of[i], 0);
            for (int k = first; full >= 0 && k < i; k++) {
                if (gone[k] || of[k] != full)
                    continue;
                assert_true(of[k] != 255 || i - k > 60);
                gone[k] = 1;
                pl_strangers_leave(&s, (unsigned)full);
                break;
            }
            while (first < i && gone[first])
                first++;
            pl_strangers_enter(&s, (unsigned)of[i]);
            assert_true(s.n <= PL_STRANGERS_MAX);
            for (int k = first; honest && k < i; k++) /* the one before has greeted by now */
                if (!gone[k] && of[k] == 255) {
                    gone[k] = 1;
                    pl_strangers_leave(&s, 255);
                }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crowd_same_or_not),
        cmocka_unit_test(test_make_room),
        cmocka_unit_test(test_make_room_honest_stays),
    };

    if (sodium_init() < 0)
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
