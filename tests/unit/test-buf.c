/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_str_empty(void **state)
{
    struct pl_buf buf = {0};

    assert_string_equal(pl_buf_str(&buf), "");
    pl_buf_consume(&buf, 5); /* nothing there: nothing happens */
    assert_int_equal(buf.len, 0);
    pl_buf_finish(&buf);
    pl_buf_finish(&buf);
}

static void test_add_kinds(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    assert_int_equal(pl_buf_add(&buf, "abc", 2), 0);
    assert_int_equal(pl_buf_add(&buf, NULL, 0), 0);
    assert_int_equal(pl_buf_adds(&buf, "cd"), 0);
    assert_int_equal(pl_buf_addc(&buf, '\0'), 0);
    assert_int_equal(pl_buf_addf(&buf, "%d-%s", 42, "x"), 0);
    assert_int_equal(buf.len, 9);
    assert_memory_equal(buf.data, "abcd\00042-x", 10);
}

static void test_add_growth(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    for (unsigned i = 0; i < 100000; i++) {
        assert_int_equal(pl_buf_addc(&buf, (char)('a' + i % 26)), 0);
        assert_int_equal(buf.data[buf.len], '\0');
        assert_true(buf.cap > buf.len);
    }
    for (unsigned i = 0; i < 100000; i++)
        assert_int_equal(buf.data[i], 'a' + i % 26);
}

static void test_reserve_overflow(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    assert_int_equal(pl_buf_adds(&buf, "keep"), 0);
    assert_int_equal(pl_buf_reserve(&buf, SIZE_MAX), -ENOMEM);
    assert_int_equal(pl_buf_reserve(&buf, SIZE_MAX / 2), -ENOMEM);
    assert_int_equal(pl_buf_add(&buf, "x", SIZE_MAX - 2), -ENOMEM);
    assert_string_equal(pl_buf_str(&buf), "keep");
}

static void test_consume_front(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    assert_int_equal(pl_buf_adds(&buf, "one two"), 0);
    pl_buf_consume(&buf, 0);
    assert_string_equal(pl_buf_str(&buf), "one two");
    pl_buf_consume(&buf, 4);
    assert_string_equal(pl_buf_str(&buf), "two");
    pl_buf_consume(&buf, 400);
    assert_string_equal(pl_buf_str(&buf), "");
    assert_int_equal(pl_buf_adds(&buf, "again"), 0);
    assert_string_equal(pl_buf_str(&buf), "again");
}

static void test_take_hands_over(void **state)
{
    struct pl_buf buf = {0};
    char *s = pl_buf_take(&buf);

    assert_string_equal(s, ""); /* never NULL */
    free(s);
    assert_int_equal(pl_buf_adds(&buf, "mine"), 0);
    s = pl_buf_take(&buf);
    assert_null(buf.data);
    assert_int_equal(buf.len, 0);
    assert_string_equal(s, "mine");
    free(s);
}

static void test_add_text_repairs(void **state)
{
    char *copy;
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    assert_int_equal(pl_buf_add_text(&buf, "ok \xc3\xa9", 5), 0);
    assert_int_equal(pl_buf_add_text(&buf, "\xff|\0|\xe2\x82", 6), 0);
    assert_string_equal(pl_buf_str(&buf), "ok \xc3\xa9\xef\xbf\xbd|\xef\xbf\xbd|"
                                          "\xef\xbf\xbd\xef\xbf\xbd");
    assert_int_equal(pl_buf_add_text(&buf, NULL, 0), 0);
    copy = pl_buf_dup_text("a\xff");
    assert_string_equal(copy, "a\xef\xbf\xbd");
    free(copy);
    copy = pl_buf_dup_text("");
    assert_string_equal(copy, "");
    free(copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_str_empty),        cmocka_unit_test(test_add_kinds),
        cmocka_unit_test(test_add_growth),       cmocka_unit_test(test_reserve_overflow),
        cmocka_unit_test(test_consume_front),    cmocka_unit_test(test_take_hands_over),
        cmocka_unit_test(test_add_text_repairs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
