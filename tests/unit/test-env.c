/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_env_values(void **state)
{
    setenv("PLUME_RUNS", "", 1);
    assert_string_equal(pl_env(PL_ENV_PLUME_RUNS), "");
    assert_null(pl_env_text(PL_ENV_PLUME_RUNS));
    assert_int_equal(pl_env_set(PL_ENV_PLUME_RUNS, "here"), 0);
    assert_string_equal(pl_env_text(PL_ENV_PLUME_RUNS), "here");
    unsetenv("PLUME_RUNS");
    assert_null(pl_env(PL_ENV_PLUME_RUNS));
    assert_null(pl_env(PL_ENV_NONE));
    assert_null(pl_env_var(PL_ENV_NONE));
}

static void test_env_table(void **state)
{
    for (int i = PL_ENV_NONE + 1; i < PL_ENV_COUNT; i++) {
        const struct pl_env_var *v = pl_env_var((enum pl_env_id)i);
        double seconds = v->fallback ? strtod(v->fallback, NULL) : 0;

        assert_true(v->users != 0 && *v->help);
        assert_true(v->type != PL_ENV_TYPE_SECONDS || seconds > 0);
        for (int k = PL_ENV_NONE + 1; k < i; k++)
            assert_string_not_equal(v->name, pl_env_var((enum pl_env_id)k)->name);
    }
}

static void test_env_ms_values(void **state)
{
    const unsigned fallback = PL_KILL_GRACE_S * 1000;
    const struct {
        const char *text;
        unsigned ms;
    } rows[] = {{"2", 2000},       {"0.5", 500},      {"0", 0},
                {"-1", fallback},  {"x", fallback},   {"", fallback},
                {"nan", fallback}, {"1e9", fallback}, {"86400", 86400000}};

    unsetenv("PLUME_KILL_GRACE");
    assert_int_equal(pl_env_ms(PL_ENV_PLUME_KILL_GRACE), fallback);
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        setenv("PLUME_KILL_GRACE", rows[i].text, 1);
        assert_int_equal(pl_env_ms(PL_ENV_PLUME_KILL_GRACE), rows[i].ms);
    }
}

static void test_env_unknown(void **state)
{
    char *list[] = {"HOME=/",
                    "PLUME_KILL_GRAECE=3",
                    "PLUME_HOME=/x",
                    "PLUME_PARAM_LR=1",
                    "PLUME_NOTHING_LIKE_IT=1",
                    "XPLUME_A=1",
                    "PLUME_LOGG",
                    NULL};
    char *const *entry = list;
    char name[64], line[256];
    const char *near;

    assert_true(pl_env_next_unknown(&entry, name, sizeof(name), &near));
    assert_string_equal(name, "PLUME_KILL_GRAECE");
    assert_string_equal(near, "PLUME_KILL_GRACE");
    pl_env_explain_unknown(name, near, line, sizeof(line));
    assert_string_equal(line, "unknown environment variable 'PLUME_KILL_GRAECE': did you mean "
                              "PLUME_KILL_GRACE?");
    assert_true(pl_env_next_unknown(&entry, name, sizeof(name), &near));
    assert_string_equal(name, "PLUME_NOTHING_LIKE_IT");
    assert_null(near);
    pl_env_explain_unknown(name, near, line, sizeof(line));
    assert_string_equal(line, "unknown environment variable 'PLUME_NOTHING_LIKE_IT'");
    assert_true(pl_env_next_unknown(&entry, name, sizeof(name), &near));
    assert_string_equal(near, "PLUME_LOG");
    assert_false(pl_env_next_unknown(&entry, name, sizeof(name), &near));
}

static void test_env_no_seconds(void **state)
{
    enum pl_env_id id = PL_ENV_NONE;
    char line[256];

    setenv("PLUME_KILL_GRACE", "30s", 1);
    setenv("PLUME_SILENCE", "", 1);
    setenv("PLUME_HANG_LIMIT", "0.5", 1);
    setenv("PLUME_DISK_LIMIT", "86401", 1);
    assert_true(pl_env_next_no_seconds(&id, line, sizeof(line)));
    assert_string_equal(line, "PLUME_KILL_GRACE is '30s', not a number of seconds from 0 to 86400: "
                              "5 is used");
    assert_int_equal(pl_env_ms(PL_ENV_PLUME_KILL_GRACE), 5000);
    assert_true(pl_env_next_no_seconds(&id, line, sizeof(line)));
    assert_non_null(strstr(line, "PLUME_DISK_LIMIT is '86401'"));
    assert_false(pl_env_next_no_seconds(&id, line, sizeof(line)));
    unsetenv("PLUME_KILL_GRACE");
    unsetenv("PLUME_SILENCE");
    unsetenv("PLUME_HANG_LIMIT");
    unsetenv("PLUME_DISK_LIMIT");
}

/* Names of any length: no overflow, nothing is near. */
static void test_env_unknown_long(void **state)
{
    static char text[300] = "PLUME_";
    char *list[] = {text, NULL};
    char *const *entry;
    char name[128];
    const char *near;

    for (size_t len = 6; len < sizeof(text) - 1; len++) {
        entry = list;
        assert_int_equal(pl_env_next_unknown(&entry, name, sizeof(name), &near),
                         len < sizeof(name));
        text[len] = 'Q';
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_env_values),       cmocka_unit_test(test_env_table),
        cmocka_unit_test(test_env_ms_values),    cmocka_unit_test(test_env_unknown),
        cmocka_unit_test(test_env_unknown_long), cmocka_unit_test(test_env_no_seconds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
