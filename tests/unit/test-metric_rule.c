/* SPDX-License-Identifier: MIT */
#include "common/base/metric_rule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char text[100000];

/* "x=" and n times `before`, a, n times `after`. */
static const char *nested(size_t n, const char *before, const char *after)
{
    char *p = text + snprintf(text, sizeof(text), "x=");

    for (size_t i = 0; i < n; i++)
        p = stpcpy(p, before);
    *p++ = 'a';
    *p = '\0';
    for (size_t i = 0; i < n; i++)
        p = stpcpy(p, after);
    return text;
}

static void refused(const char *spec, int code, const char *why)
{
    struct pl_error err = {0};

    assert_int_equal(pl_metric_rule_check(spec, &err), code);
    if (!strstr(err.text, why))
        fail_msg("'%s' does not say '%s'", err.text, why);
}

static void accepted(const char *spec)
{
    struct pl_error err = {0};

    if (pl_metric_rule_check(spec, &err) < 0)
        fail_msg("%s", err.text);
}

static void test_form(void **state)
{
    struct pl_metric_rule rule;

    assert_int_equal(pl_metric_rule_init(&rule, "val.loss=a=([0-9.]+)", NULL), 0);
    assert_string_equal(rule.name, "val.loss");
    assert_int_equal(regexec(&rule.regex, "a=1.5", 0, NULL, 0), 0);
    pl_metric_rule_finish(&rule);
    pl_metric_rule_finish(&rule);
    refused("", -EINVAL, "'' is not of the form NAME=REGEX");
    refused("loss", -EINVAL, "not of the form");
    refused("=x", -EINVAL, "not of the form");
    refused("9a=x", -EINVAL, "not of the form");
    refused("loss=", -EINVAL, "empty expression");
    refused("loss=(", -EINVAL, "bad regular expression '(': Unmatched (");
    refused("loss=[", -EINVAL, "bad regular expression '['");
    refused("loss=a\\", -EINVAL, "bad regular expression");
}

static void test_length(void **state)
{
    memset(text, 'a', PL_METRIC_RULE_MAX);
    text[1] = '=';
    text[PL_METRIC_RULE_MAX] = '\0';
    accepted(text);
    memcpy(text + PL_METRIC_RULE_MAX, "a", 2);
    refused(text, -E2BIG, "longer than 1024 bytes");
    refused(nested(25000, "(", ")"), -E2BIG, "longer than 1024 bytes");
}

static void test_depth(void **state)
{
    accepted(nested(64, "(", ")"));
    refused(nested(65, "(", ")"), -E2BIG, "nests deeper than 64");
    refused(nested(65, "(", ""), -E2BIG, "nests deeper than 64");
    accepted(nested(300, "\\(", ""));
    accepted(nested(300, "[(]", ""));
    refused(nested(65, "[^]](", ")"), -E2BIG, "nests deeper than 64");
    refused(nested(65, "[[:alpha:]](", ")"), -E2BIG, "nests deeper than 64");
}

/* Each takes regcomp() seconds, or all memory, where it is not refused. */
static void test_size(void **state)
{
    accepted("x=loss[: ]{1,3}([-+]?[0-9]+(\\.[0-9]+)?([eE][-+]?[0-9]{1,3})?)");
    accepted("x=.{0,1000}");
    accepted("x=(a{30}){30}");
    accepted("x=([0-9]*,?){3}([a-z]?|b)*");
    accepted("x=a\\{9999}");
    refused("x=a{1025}", -E2BIG, "too large");
    refused("x=a{1024,}", -E2BIG, "too large");
    refused("x=a{,9999}", -E2BIG, "too large");
    refused("x=a{99999999999999999999999}", -E2BIG, "too large");
    refused("x=((a{100}){100}){100}", -E2BIG, "too large");
    refused("x=(a{100}b|[^][:alpha:]]{9}){100}", -E2BIG, "too large");
    refused("x=(a*|b)*{1000}", -E2BIG, "too large");
    refused("x=(a*)*{,8}{9}", -E2BIG, "too large");
    refused("x=(()??{,8}?){1,}", -E2BIG, "too large");
    refused("x=(((((a?)?)?)?)?){8,}", -E2BIG, "too large");
    refused("x=(|a){,8}{4,}", -E2BIG, "too large");
    refused("x=(a|b{0,9}|c){,8}{4,}", -E2BIG, "too large");
    refused("x=(\\b^$){8}{9}", -E2BIG, "too large");
    refused(nested(40, "(", "+)"), -E2BIG, "too large");
    refused(nested(40, "", "+"), -E2BIG, "too large");
    refused(nested(40, "", "[]{]*{5}{6}"), -E2BIG, "too large");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_form),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
