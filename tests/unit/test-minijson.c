/* SPDX-License-Identifier: MIT */
#include "common/proto/rank/minijson.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int find(const char *text, const char *key)
{
    struct pl_mini_value v;

    return pl_mini_find(text, key, &v);
}

static void test_find_types(void **state)
{
    static const char text[] = " { \"s\" : \"x\" ,\"n\":-1.5e+3,\"t\":true,\"f\":false,\"z\":null,"
                               "\"a\":[1,{\"b\":[]}],\"o\":{\"s\":\"inner\"},\"\":0 } \n";
    static const struct {
        const char *key;
        enum pl_mini_type type;
        size_t len;
    } want[] = {
        {"s", PL_MINI_STRING, 3},  {"n", PL_MINI_NUMBER, 7}, {"t", PL_MINI_BOOL, 4},
        {"f", PL_MINI_BOOL, 5},    {"z", PL_MINI_NULL, 4},   {"a", PL_MINI_ARRAY, 12},
        {"o", PL_MINI_OBJECT, 13}, {"", PL_MINI_NUMBER, 1},
    };
    struct pl_mini_value v;

    for (size_t i = 0; i < PL_COUNT(want); i++) {
        assert_int_equal(pl_mini_find(text, want[i].key, &v), 0);
        assert_int_equal(v.type, want[i].type);
        assert_int_equal(v.len, want[i].len);
    }
    assert_int_equal(find(text, "b"), -ENOENT); /* only the outer object's keys */
    assert_int_equal(find("{}", "a"), -ENOENT);
}

static void test_find_bad_form(void **state)
{
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "{",
        "}",
        "{}x",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{a:1}",
        "{\"a\":01}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":1e}",
        "{\"a\":tru}",
        "{\"a\":\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\\u12",
        "{\"a\":\"\t\"}",
        "{\"a\":[1,]}",
        "{\"a\":[1}",
        "{\"a\":{]}",
        "{\"a\":'x'}",
        "{\"a\":NaN}",
        "{\"a\":\"\\",
        "{\"a\":-}",
        "{\"a\":1}{\"b\":2}",
    };

    for (size_t i = 0; i < PL_COUNT(bad); i++)
        if (find(bad[i], "a") != -EINVAL || find(bad[i], "none") != -EINVAL)
            fail_msg("%s", bad[i]);
}

static char *nested(unsigned depth)
{
    struct pl_buf buf = {0};

    pl_buf_adds(&buf, "{\"a\":");
    for (unsigned i = 1; i < depth; i++)
        pl_buf_addc(&buf, '[');
    pl_buf_adds(&buf, depth > 1 ? "" : "1");
    for (unsigned i = 1; i < depth; i++)
        pl_buf_addc(&buf, ']');
    pl_buf_addc(&buf, '}');
    return pl_buf_take(&buf);
}

static void test_find_depth(void **state)
{
    _cleanup_free_ char *most = nested(PL_JSON_DEPTH_MAX), *more = nested(PL_JSON_DEPTH_MAX + 1);
    _cleanup_free_ char *bomb = nested(1000000);

    assert_int_equal(find(most, "a"), 0);
    assert_int_equal(find(more, "a"), -EINVAL);
    assert_int_equal(find(bomb, "a"), -EINVAL);
}

static void test_find_escaped_key(void **state)
{
    assert_int_equal(find("{\"\\u0061\":1}", "a"), 0);
    assert_int_equal(find("{\"a\\\"b\":1}", "a\"b"), 0);
    assert_int_equal(find("{\"a\\u0000\":1}", "a"), -ENOENT);
}

static void test_next_items(void **state)
{
    struct pl_mini_value list, item;
    size_t pos = 0, n = 0;

    assert_int_equal(pl_mini_find("{\"l\":[ 1 , \"a,]\" ,[2,3], {\"x\":[]}, null ]}", "l", &list),
                     0);
    while (pl_mini_next(&list, &pos, &item) == 1)
        n++;
    assert_int_equal(n, 5);
    assert_int_equal(item.type, PL_MINI_NULL);
    pos = 0;
    assert_int_equal(pl_mini_find("{\"l\":[ ]}", "l", &list), 0);
    assert_int_equal(pl_mini_next(&list, &pos, &item), 0);
    assert_int_equal(pl_mini_find("{\"l\":{}}", "l", &list), 0);
    assert_int_equal(pl_mini_next(&list, &pos, &item), -EINVAL);
}

static void test_members_of_an_object(void **state)
{
    static const char text[] = " { \"a\" : [1,2] ,\"b,\":{\"c\":0},\"\":null} ";
    struct pl_mini_value object, key, value;
    size_t pos = 0, n = 0;

    assert_int_equal(pl_mini_parse(text, &object), 0);
    while (pl_mini_member(&object, &pos, &key, &value) == 1) {
        static const char *const keys[] = {"\"a\"", "\"b,\"", "\"\""};

        assert_int_equal(key.len, strlen(keys[n]));
        assert_memory_equal(key.start, keys[n++], key.len);
    }
    assert_int_equal(n, 3);
    assert_int_equal(value.type, PL_MINI_NULL);
    pos = 0;
    assert_int_equal(pl_mini_parse("{ }", &object), 0);
    assert_int_equal(pl_mini_member(&object, &pos, &key, &value), 0);
    assert_int_equal(pl_mini_parse("[]", &object), 0);
    assert_int_equal(pl_mini_member(&object, &pos, &key, &value), -EINVAL);
    assert_int_equal(pl_mini_parse("{} {}", &object), -EINVAL);
    assert_int_equal(pl_mini_parse("", &object), -EINVAL);
}

static void test_string_escapes(void **state)
{
    static const char *const pairs[][2] = {
        {"\\\"\\\\\\/\\b\\f\\n\\r\\t", "\"\\/\b\f\n\r\t"},
        {"\\u00e9\\u20AC", "\xc3\xa9\xe2\x82\xac"},
        {"\\ud83d\\ude00", "\xf0\x9f\x98\x80"},
        {"\\ud83d", "\xef\xbf\xbd"},
        {"\\ud83dx", "\xef\xbf\xbdx"},
        {"\\ude00\\ud83d", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\\ud83d\\ud83d\\ude00", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\\ud83d\\u0041", "\xef\xbf\xbd\x41"},
        {"", ""},
        {"\\u007f\\u0080\\u07ff\\u0800\\uffff", "\x7f\xc2\x80\xdf\xbf\xe0\xa0\x80\xef\xbf\xbf"},
    };

    for (size_t i = 0; i < PL_COUNT(pairs); i++) {
        _cleanup_free_ char *got = NULL;
        char text[256];

        snprintf(text, sizeof(text), "{\"a\":\"%s\"}", pairs[i][0]);
        assert_int_equal(pl_mini_get_string(text, "a", &got), 0);
        assert_string_equal(got, pairs[i][1]);
    }
}

static void test_string_refused(void **state)
{
    char *s = NULL;

    assert_int_equal(pl_mini_get_string("{\"a\":\"x\\u0000y\"}", "a", &s), -EINVAL);
    assert_int_equal(pl_mini_get_string("{\"a\":1}", "a", &s), -EINVAL);
    assert_int_equal(pl_mini_get_string("{\"a\":1}", "b", &s), -ENOENT);
    assert_null(s);
}

static void test_int_limits(void **state)
{
    static const char *const bad[] = {"{\"a\":1.0}",
                                      "{\"a\":1e3}",
                                      "{\"a\":\"1\"}",
                                      "{\"a\":9223372036854775808}",
                                      "{\"a\":-9223372036854775809}",
                                      "{\"a\":100000000000000000000000000}",
                                      "{\"a\":true}"};
    int64_t n = 5;

    assert_int_equal(pl_mini_get_int("{\"a\":-9223372036854775808}", "a", &n), 0);
    assert_true(n == INT64_MIN);
    assert_int_equal(pl_mini_get_int("{\"a\":9223372036854775807}", "a", &n), 0);
    assert_true(n == INT64_MAX);
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_mini_get_int(bad[i], "a", &n), -EINVAL);
    assert_true(n == INT64_MAX);
}

static void test_is_type(void **state)
{
    assert_true(pl_mini_is("{\"x\":1,\"type\":\"world\"}", "world"));
    assert_false(pl_mini_is("{\"type\":\"world2\"}", "world"));
    assert_false(pl_mini_is("{\"type\":7}", "world"));
    assert_false(pl_mini_is("world", "world"));
}

static void test_quote_round_trip(void **state)
{
    static const char *const texts[] = {"", "plain", "q\"b\\s/\b\f\n\r\t\x01\x1f\x7f",
                                        "\xc3\xa9\xf0\x9f\x98\x80", "$(id) `x` ' {a}"};

    for (size_t i = 0; i < PL_COUNT(texts); i++) {
        _cleanup_(pl_buf_finish) struct pl_buf buf = {0};
        _cleanup_free_ char *back = NULL;

        pl_buf_adds(&buf, "{\"a\":");
        assert_int_equal(pl_mini_quote(&buf, texts[i]), 0);
        pl_buf_addc(&buf, '}');
        for (size_t k = 0; k < buf.len; k++)
            assert_true((unsigned char)buf.data[k] >= 0x20 && buf.data[k] != 0x7f);
        assert_int_equal(pl_mini_get_string(buf.data, "a", &back), 0);
        assert_string_equal(back, texts[i]);
    }
}

static void test_quote_bad_utf8(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};

    assert_int_equal(pl_mini_quote(&buf, "a\xff\xed\xa0\x80z"), 0);
    assert_string_equal(buf.data, "\"a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz\"");
}

static void test_writer_values(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};
    struct pl_mini_writer w = {.buf = &buf};

    pl_buf_adds(&buf, "{\"before\":1}\n"); /* lines follow each other */
    pl_mini_open(&w, NULL, '{');
    pl_mini_put_string(&w, "text", "ends in {[");
    pl_mini_put_int(&w, "low", INT64_MIN);
    pl_mini_put_bool(&w, "yes", true);
    pl_mini_put_bool(&w, "no", false);
    pl_mini_open(&w, "list", '[');
    pl_mini_put_int(&w, NULL, -1);
    pl_mini_put_string(&w, NULL, "\"");
    pl_mini_open(&w, NULL, '{');
    pl_mini_close(&w, '}');
    pl_mini_close(&w, ']');
    pl_mini_put_double(&w, "third", 1 / 3.0);
    pl_mini_put_double(&w, "whole", 2);
    pl_mini_put_double(&w, "nan", NAN);
    pl_mini_put_double(&w, "inf", INFINITY);
    pl_mini_put_double(&w, "-inf", -INFINITY);
    assert_int_equal(pl_mini_close(&w, '}'), 0);
    assert_string_equal(buf.data,
                        "{\"before\":1}\n{\"text\":\"ends in {[\",\"low\":-9223372036854775808,"
                        "\"yes\":true,\"no\":false,\"list\":[-1,\"\\\"\",{}],"
                        "\"third\":0.333333333,\"whole\":2,\"nan\":\"nan\",\"inf\":\"inf\","
                        "\"-inf\":\"-inf\"}");
}

static void test_writer_keeps_the_first_error(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf buf = {0};
    struct pl_mini_writer w = {.buf = &buf, .error = -ENOMEM};

    pl_mini_open(&w, NULL, '{');
    pl_mini_put_string(&w, "a", "b");
    assert_int_equal(pl_mini_close(&w, '}'), -ENOMEM);
    assert_int_equal(buf.len, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_find_types),
        cmocka_unit_test(test_find_bad_form),
        cmocka_unit_test(test_find_depth),
        cmocka_unit_test(test_find_escaped_key),
        cmocka_unit_test(test_next_items),
        cmocka_unit_test(test_members_of_an_object),
        cmocka_unit_test(test_string_escapes),
        cmocka_unit_test(test_string_refused),
        cmocka_unit_test(test_int_limits),
        cmocka_unit_test(test_is_type),
        cmocka_unit_test(test_quote_round_trip),
        cmocka_unit_test(test_quote_bad_utf8),
        cmocka_unit_test(test_writer_values),
        cmocka_unit_test(test_writer_keeps_the_first_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
