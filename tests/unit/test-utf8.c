/* SPDX-License-Identifier: MIT */
#include "common/base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* RFC 3629 section 3, written down independently of the decoder. */
static size_t encode(uint32_t c, char *d)
{
    if (c < 0x80) {
        d[0] = (char)c;
        return 1;
    }
    if (c < 0x800) {
        d[0] = (char)(0xc0 + c / 64);
        d[1] = (char)(0x80 + c % 64);
        return 2;
    }
    if (c < 0x10000) {
        d[0] = (char)(0xe0 + c / 4096);
        d[1] = (char)(0x80 + c / 64 % 64);
        d[2] = (char)(0x80 + c % 64);
        return 3;
    }
    d[0] = (char)(0xf0 + c / 262144);
    d[1] = (char)(0x80 + c / 4096 % 64);
    d[2] = (char)(0x80 + c / 64 % 64);
    d[3] = (char)(0x80 + c % 64);
    return 4;
}

static void test_decode_every_character(void **state)
{
    char s[4];
    uint32_t c, got;

    for (c = 0; c < 0x110000; c++) {
        size_t n = encode(c, s);
        bool surrogate = c >= 0xd800 && c < 0xe000;

        got = 0xffffffff;
        if (pl_utf8_decode(s, n, &got) != (surrogate ? -EILSEQ : (int)n) ||
            (!surrogate && got != c))
            fail_msg("U+%04X", c);
        for (size_t cut = 0; cut < n; cut++) /* never reads past the end */
            if (pl_utf8_decode(s, cut, &got) != -EILSEQ)
                fail_msg("U+%04X cut to %zu", c, cut);
    }
}

/* Every two-byte start: only the shortest forms count. */
static void test_decode_wrong_bytes(void **state)
{
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x80\x80",
        "\xe0\x9f\xbf",
        "\xf0\x80\x80\x80",
        "\xf0\x8f\xbf\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xf8\x88\x80",
        "\xfe",
        "\xff",
        "\xc3(",
        "\xe2\x82(",
        "\xe2(\xac",
        "\xf0\x9f(\x80",
        "\xf0\x9f\x98(",
    };
    uint32_t c;

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        assert_int_equal(pl_utf8_decode(bad[i], strlen(bad[i]), &c), -EILSEQ);
        assert_false(pl_utf8_valid(bad[i], strlen(bad[i])));
    }
    assert_int_equal(pl_utf8_decode("", 0, &c), -EILSEQ);
}

static void test_valid_whole_text(void **state)
{
    assert_true(pl_utf8_valid("", 0));
    assert_true(pl_utf8_valid("a\0b", 3));
    assert_true(pl_utf8_valid("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", 11));
    assert_false(pl_utf8_valid("gr\xc3\xbc\xc3", 5));
    assert_false(pl_utf8_valid("ok\xff", 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_every_character),
        cmocka_unit_test(test_decode_wrong_bytes),
        cmocka_unit_test(test_valid_whole_text),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
