/* SPDX-License-Identifier: MIT */
#include "common/base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_set_code_sign(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_error_set(&err, EINVAL, "bad '%s'", "x"), -EINVAL);
    assert_int_equal(err.code, -EINVAL);
    assert_string_equal(err.text, "bad 'x'");
    assert_int_equal(pl_error_set(&err, -ENOENT, "gone"), -ENOENT);
    assert_string_equal(pl_error_text(&err), "gone");
}

static void test_set_without_object(void **state)
{
    errno = 77;
    assert_int_equal(pl_error_set(NULL, EINVAL, "x"), -EINVAL);
    assert_int_equal(pl_error_errno(NULL, EINVAL, "x"), -EINVAL);
    assert_int_equal(pl_error_wrap(NULL, EINVAL, "x"), -EINVAL);
    assert_int_equal(errno, 77);
}

static void test_errno_words(void **state)
{
    struct pl_error err = {0};

    errno = 5;
    assert_int_equal(pl_error_errno(&err, EACCES, "cannot open '%s'", "f"), -EACCES);
    assert_string_equal(err.text, "cannot open 'f': Permission denied");
    assert_int_equal(errno, 5);
}

static void test_nomem(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_error_nomem(&err), -ENOMEM);
    assert_int_equal(err.code, -ENOMEM);
    assert_string_equal(err.text, "out of memory");
    assert_int_equal(pl_error_nomem(NULL), -ENOMEM);
}

static void test_wrap_order(void **state)
{
    struct pl_error err = {0};

    pl_error_set(&err, -EINVAL, "inner");
    assert_int_equal(pl_error_wrap(&err, -EINVAL, "middle %d", 2), -EINVAL);
    assert_int_equal(pl_error_wrap(&err, -EINVAL, "outer"), -EINVAL);
    assert_string_equal(err.text, "outer: middle 2: inner");
}

static void test_wrap_without_text(void **state)
{
    struct pl_error err = {0};

    pl_error_wrap(&err, -ENOENT, "reading");
    assert_string_equal(err.text, "reading: No such file or directory");
}

static void test_wrap_too_long(void **state)
{
    struct pl_error err = {0};
    char word[PL_ERROR_TEXT_MAX * 2];

    memset(word, 'a', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    pl_error_set(&err, -EINVAL, "%s", word);
    assert_int_equal(strlen(err.text), PL_ERROR_TEXT_MAX - 1);
    pl_error_wrap(&err, -EINVAL, "%s", word);
    assert_int_equal(strlen(err.text), PL_ERROR_TEXT_MAX - 1);
    pl_error_errno(&err, -EINVAL, "%s", word);
    assert_int_equal(strlen(err.text), PL_ERROR_TEXT_MAX - 1);
    pl_error_set(&err, -EINVAL, "short");
    pl_error_wrap(&err, -EINVAL, "why");
    assert_string_equal(err.text, "why: short");
}

static void test_text_never_null(void **state)
{
    struct pl_error err = {0};

    assert_string_equal(pl_error_text(NULL), "unknown error");
    assert_string_equal(pl_error_text(&err), "no error");
    err.code = -ENOENT;
    assert_string_equal(pl_error_text(&err), "No such file or directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_code_sign),     cmocka_unit_test(test_set_without_object),
        cmocka_unit_test(test_errno_words),       cmocka_unit_test(test_wrap_order),
        cmocka_unit_test(test_wrap_without_text), cmocka_unit_test(test_wrap_too_long),
        cmocka_unit_test(test_text_never_null),   cmocka_unit_test(test_nomem),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
