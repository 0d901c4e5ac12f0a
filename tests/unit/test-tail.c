/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/tail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void assert_tail(const char *text, const char *want)
{
    _cleanup_free_ char *tail = pl_tail_text(text, strlen(text));

    assert_string_equal(tail, want);
}

static void test_text_ends(void **state)
{
    assert_tail("", "");
    assert_tail("\n\r\n", "");
    assert_tail("one", "one");
    assert_tail("one\n\ntwo\r\n\n", "one\n\ntwo");
    assert_tail("caf\xc3\xa9 \xff", "caf\xc3\xa9 \xef\xbf\xbd");
}

static void test_text_limits(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_free_ char *tail = NULL, *wide = NULL;

    for (int i = 0; i < 100; i++)
        assert_int_equal(pl_buf_addf(&text, "line %d\n", i), 0);
    tail = pl_tail_text(text.data, text.len);
    assert_memory_equal(tail, "line 80\n", 8);
    assert_string_equal(tail + strlen(tail) - 7, "line 99");
    for (int i = 0; i < 2 * PL_TAIL_BYTES; i++)
        assert_int_equal(pl_buf_addc(&text, 'x'), 0);
    wide = pl_tail_text(text.data, text.len);
    assert_int_equal(strlen(wide), PL_TAIL_BYTES);
}

static void test_file(void **state)
{
    char path[] = "/tmp/plume-test-tail-XXXXXX";
    _cleanup_free_ char *tail = NULL;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(pl_write_all(fd, "first\nlast\n", 11), 0);
    close(fd);
    tail = pl_tail_file(path);
    unlink(path);
    assert_string_equal(tail, "first\nlast");
    assert_null(pl_tail_file(path));
    assert_null(pl_tail_file("/dev/null")); /* no regular file */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_ends),
        cmocka_unit_test(test_text_limits),
        cmocka_unit_test(test_file),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
