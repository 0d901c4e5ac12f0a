/* SPDX-License-Identifier: MIT */
#include "common/base/term.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void check(const char *s, size_t len, const char *expected)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    assert_int_equal(pl_term_escape(&out, s, len), 0);
    assert_string_equal(pl_buf_str(&out), expected);
    if (strlen(s) == len)
        assert_int_equal(pl_term_width(pl_buf_str(&out)), pl_term_width(s));
}

static void test_escape_controls(void **state)
{
    check("", 0, "");
    check("plain text\\n", 12, "plain text\\n");
    check("a\nb\tc\rd", 7, "a\\nb\\tc\\rd");
    check("\033[31mred\033]0;x\007", 14, "\\e[31mred\\e]0;x\\x07");
    check("a\0b", 3, "a\\x00b");
    check("\x7f\x01", 2, "\\x7f\\x01");
    check("\xc2\x9b"
          "31m",
          5, "\\x9b31m"); /* CSI as one C1 character */
    check("\x9b", 1, "\\x9b");
}

static void test_escape_hidden(void **state)
{
    check("a\xe2\x80\xae"
          "b",
          5, "a\\u{202e}b"); /* right-to-left override */
    check("\xe2\x81\xa6", 3, "\\u{2066}");
    check("\xd8\x9c", 2, "\\u{061c}");
    check("\xe2\x80\x8b", 3, "\\u{200b}"); /* zero width space */
    check("\xef\xbb\xbf", 3, "\\u{feff}");
    check("\xe2\x80\xa8", 3, "\\u{2028}"); /* line separator */
    check("\xc2\xad", 2, "\\xad");         /* soft hyphen */
    check("\xf3\xa0\x80\xa0", 4, "\\u{e0020}");
    check("\xcc\x81", 2, "\\u{0301}"); /* a mark with nothing before it */
    check("e\xcc\x81", 3, "e\xcc\x81");
}

static void test_escape_bad_utf8(void **state)
{
    check("\xff\xfe", 2, "\\xff\\xfe");
    check("\xc0\x80", 2, "\\xc0\\x80");
    check("\xe4\xbd", 2, "\\xe4\\xbd");
    check("\xed\xa0\x80", 3, "\\xed\\xa0\\x80");
    check("\xc3\xa9\xe4\xbd\xa0", 5, "\xc3\xa9\xe4\xbd\xa0");
}

static void check_json(const char *s, const char *expected)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    assert_int_equal(pl_term_escape_json(&out, s, strlen(s)), 0);
    assert_string_equal(pl_buf_str(&out), expected);
}

/* A name that means harm in a document that is shown on a terminal. */
static void test_escape_json(void **state)
{
    check_json("", "");
    check_json("{\"a\\n\": [1,\t\"\xc3\xa9\xe4\xbd\xa0\"]}\n",
               "{\"a\\n\": [1,\t\"\xc3\xa9\xe4\xbd\xa0\"]}\n");
    check_json("\"\xc2\x9b"
               "2J\"",
               "\"\\u009b2J\""); /* CSI as one C1 character */
    check_json("\"\x7f\xc2\x85\"", "\"\\u007f\\u0085\"");
    check_json("\"\xe2\x80\xaetxt\xe2\x81\xa6\"", "\"\\u202etxt\\u2066\"");
    check_json("\xf3\xa0\x80\xa0\xf0\x9f\x98\x80", "\\udb40\\udc20\xf0\x9f\x98\x80");
    check_json("\xff\xfe\xe2\x80", "\xff\xfe\xe2\x80"); /* no JSON: as it is */
}

static void test_width(void **state)
{
    assert_int_equal(pl_term_width(""), 0);
    assert_int_equal(pl_term_width("abc"), 3);
    assert_int_equal(pl_term_width("\xe4\xbd\xa0\xe5\xa5\xbd"), 4);
    assert_int_equal(pl_term_width("e\xcc\x81"), 1);
    assert_int_equal(pl_term_width("\n"), 2);
}

static void cell(const char *s, size_t width, bool right, bool truncate, const char *expected)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    assert_int_equal(pl_term_cell(&out, s, width, right, truncate), 0);
    assert_string_equal(pl_buf_str(&out), expected);
}

static void test_cell(void **state)
{
    cell("abc", 5, false, true, "abc  ");
    cell("abc", 5, true, true, "  abc");
    cell("abc", 3, true, true, "abc");
    cell("abcd", 3, false, true, "ab+");
    cell("abcd", 3, false, false, "abcd");
    cell("abcd", 1, false, true, "+");
    cell("abcd", 0, false, true, "");
    cell("\xe4\xbd\xa0\xe5\xa5\xbd", 3, false, true, "\xe4\xbd\xa0+");
    cell("\xe4\xbd\xa0\xe5\xa5\xbd", 2, false, true, "+ ");
    cell("a\033b", 3, false, true, "a+ ");
    cell("a\033b", 4, true, true, "a\\eb");
}

/* Nothing that comes out may hold a control or a broken character; and the columns are right. */
static void test_escape_random(void **state)
{
    unsigned seed = 1;

    for (int round = 0; round < 20000; round++) {
        _cleanup_(pl_buf_finish) struct pl_buf out = {0}, again = {0}, box = {0};
        char s[12];
        size_t len = (size_t)rand_r(&seed) % sizeof(s);

        for (size_t i = 0; i < len; i++)
            s[i] = (char)rand_r(&seed);
        assert_int_equal(pl_term_escape(&out, s, len), 0);
        for (size_t i = 0; i < out.len; i++)
            assert_true((unsigned char)out.data[i] >= 0x20 && out.data[i] != 0x7f);
        pl_term_escape(&again, pl_buf_str(&out), out.len);
        assert_string_equal(pl_buf_str(&out), pl_buf_str(&again));
        assert_int_equal(pl_term_cell(&box, pl_buf_str(&out), 7, false, true), 0);
        assert_int_equal(pl_term_width(pl_buf_str(&box)), 7);
    }
}

static void test_color(void **state)
{
    enum pl_term_color color;

    assert_int_equal(pl_term_color_parse("always", &color), 0);
    assert_true(pl_term_use_color(color, stdout));
    assert_int_equal(pl_term_color_parse("never", &color), 0);
    assert_false(pl_term_use_color(color, stdout));
    assert_int_equal(pl_term_color_parse("sometimes", &color), -EINVAL);
    setenv("NO_COLOR", "1", 1);
    assert_false(pl_term_use_color(PL_TERM_COLOR_AUTO, stdout));
    assert_string_equal(pl_term_style(PL_TERM_RED, false), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_escape_controls), cmocka_unit_test(test_escape_hidden),
        cmocka_unit_test(test_escape_json),     cmocka_unit_test(test_escape_bad_utf8),
        cmocka_unit_test(test_width),           cmocka_unit_test(test_cell),
        cmocka_unit_test(test_escape_random),   cmocka_unit_test(test_color),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
