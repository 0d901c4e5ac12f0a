/* SPDX-License-Identifier: MIT */
#include "spank_plugin/conf.h"
#include "spank_plugin/values.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_metric_form(void **state)
{
    struct pl_error err = {0};

    assert_int_equal(pl_values_metric("loss=loss ([0-9.]+)", &err), 0);
    assert_int_equal(pl_values_metric("val.loss=a=b", &err), 0);
    assert_int_equal(pl_values_metric("a=x\nb=y\n", &err), 0);
    assert_int_equal(pl_values_metric("loss", &err), -EINVAL);
    assert_int_equal(pl_values_metric("=x", &err), -EINVAL);
    assert_int_equal(pl_values_metric("a b=x", &err), -EINVAL);
    assert_int_equal(pl_values_metric("a=", &err), -EINVAL);
    assert_int_equal(pl_values_metric("", &err), -EINVAL);
    assert_int_equal(pl_values_metric("\n", &err), -EINVAL);
    assert_int_equal(pl_values_metric("a=x\nb=(", &err), -EINVAL);
    assert_non_null(strstr(err.text, "'('"));
}

/* regcomp() overflows the stack of whoever compiles the nested groups. */
static void test_metric_hostile(void **state)
{
    struct pl_error err = {0};
    char text[50010] = "a=";
    char *slot = NULL;

    assert_int_equal(pl_values_copy("a=(", &slot, &err), 0); /* is not looked at */
    assert_string_equal(slot, "a=(");
    assert_int_equal(pl_values_copy("", &slot, &err), 0);
    assert_string_equal(slot, "");
    memset(text + 2, '(', 50000);
    assert_int_equal(pl_values_metric(text, &err), -E2BIG);
    assert_int_equal(pl_values_copy(text, &slot, &err), -E2BIG);
    assert_non_null(strstr(err.text, "longer than 16384 bytes"));
    assert_string_equal(slot, "");
    text[PL_VALUES_MAX + 1] = '\0';
    assert_int_equal(pl_values_copy(text, &slot, &err), -E2BIG);
    text[PL_VALUES_MAX] = '\0';
    assert_int_equal(pl_values_copy(text, &slot, &err), 0);
    assert_string_equal(slot, text);
    assert_int_equal(pl_values_metric(text, &err), -E2BIG);
    free(slot);
}

static void check_add(const char *list, const char *entries, const char *expect)
{
    char *text = list ? strdup(list) : NULL;

    assert_int_equal(pl_values_metric_add(&text, entries), 0);
    assert_string_equal(text, expect);
    assert_int_equal(pl_values_metric_add(&text, entries), 0);
    assert_string_equal(text, expect);
    free(text);
}

static void test_metric_add_last_wins(void **state)
{
    check_add(NULL, "a=1", "a=1");
    check_add("", "a=1\n", "a=1");
    check_add("a=1", "b=2", "a=1\nb=2");
    check_add("a=1\nb=2", "a=3", "b=2\na=3");
    check_add("ab=1", "a=2", "ab=1\na=2");
    check_add("a=1", "a=2\nb=3\na=4", "b=3\na=4");
    check_add("b=a=1", "a=2", "b=a=1\na=2");
}

static void test_make_printable(void **state)
{
    char text[] = "a\x1b[31m\nb\xff\xc2\x9b\xe2\x80\xae\xc3\xa9\x7f";

    pl_values_make_printable(text);
    assert_string_equal(text, "a?[31m?b???\xc3\xa9?");
}

static void test_conf(void **state)
{
    char *good[] = {"plrund=/a/b", "runtime_dir=/r", "scontrol=/s/scontrol"}, *bad[] = {"plrund=b"},
         *other[] = {"x=/y"};
    struct pl_spank_conf conf = {0};
    struct pl_error err = {0};
    char *path;

    assert_int_equal(pl_conf_parse(&conf, 1, bad, &err), -EINVAL);
    assert_int_equal(pl_conf_parse(&conf, 1, other, &err), -EINVAL);
    assert_int_equal(pl_conf_parse(&conf, 0, NULL, &err), 0);
    assert_null(conf.plrund);
    assert_int_equal(pl_conf_parse(&conf, 3, good, &err), 0);
    assert_string_equal(conf.runtime_dir, "/r");
    path = pl_conf_plrund(&conf);
    assert_string_equal(path, "/a/b");
    free(path);
    path = pl_conf_scontrol(&conf);
    assert_string_equal(path, "/s/scontrol");
    free(path);
    conf.scontrol = NULL;
    setenv("PATH", "/nonexistent", 1); /* has no say */
    path = pl_conf_scontrol(&conf);
    assert_true(path && (!*path || path[0] == '/'));
    free(path);
}

static void test_conf_namespace(void **state)
{
    static const char *const cases[][2] = {
        {"mount_namespace=/local/%j/.ns", "/local/17/.ns"},
        {"mount_namespace=/local/%n/%j/.ns", "/local/n04/17/.ns"},
        {"mount_namespace=/l/%j-%n-%j/%h/%", "/l/17-n04-17/%h/%"},
        {"mount_namespace=/run/ns", "/run/ns"},
    };
    struct pl_error err = {0};

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct pl_spank_conf conf = {0};
        _cleanup_free_ char *text = strdup(cases[i][0]), *path = NULL;
        char *argv[] = {text};

        assert_int_equal(pl_conf_parse(&conf, 1, argv, &err), 0);
        assert_int_equal(pl_conf_namespace(&conf, 17, "n04", &path), 0);
        assert_string_equal(path, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metric_form),
        cmocka_unit_test(test_metric_hostile),
        cmocka_unit_test(test_metric_add_last_wins),
        cmocka_unit_test(test_make_printable),
        cmocka_unit_test(test_conf),
        cmocka_unit_test(test_conf_namespace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
