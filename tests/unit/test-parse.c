/* SPDX-License-Identifier: MIT */
#include "common/base/parse.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Each error names the value. */
static void check_text(const struct pl_error *err, const char *value)
{
    assert_non_null(strstr(err->text, value));
}

static void test_int_good(void **state)
{
    struct pl_error err = {0};
    int64_t v = 1;

    assert_int_equal(pl_parse_int("0", 0, 0, &v, &err), 0);
    assert_int_equal(v, 0);
    assert_int_equal(pl_parse_int("-7", -7, 5, &v, &err), 0);
    assert_int_equal(v, -7);
    assert_int_equal(pl_parse_int("0007", 0, 9, &v, NULL), 0);
    assert_int_equal(v, 7);
    assert_int_equal(pl_parse_int("9223372036854775807", INT64_MIN, INT64_MAX, &v, &err), 0);
    assert_true(v == INT64_MAX);
    assert_int_equal(pl_parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &v, &err), 0);
    assert_true(v == INT64_MIN);
}

static void test_int_no_number(void **state)
{
    static const char *const bad[] = {"",    "-",   "+1",  " 1",  "1 ",  "1x",       "0x1",
                                      "1.0", "1e3", "--1", "- 1", "1\n", "\xd9\xa1", "NaN"};
    int64_t v = 99;

    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};

        assert_int_equal(pl_parse_int(bad[i], INT64_MIN, INT64_MAX, &v, &err), -EINVAL);
        check_text(&err, bad[i]);
    }
    assert_int_equal(v, 99);
}

static void test_int_out_of_range(void **state)
{
    struct pl_error err = {0};
    int64_t v = 99;

    assert_int_equal(pl_parse_int("0", 1, INT64_MAX, &v, &err), -ERANGE);
    assert_string_equal(err.text, "0 is too small: it must be at least 1");
    assert_int_equal(pl_parse_int("6", 1, 5, &v, &err), -ERANGE);
    assert_string_equal(err.text, "6 is out of range: it must be between 1 and 5");
    assert_int_equal(pl_parse_int("9223372036854775808", 1, INT64_MAX, &v, &err), -ERANGE);
    assert_null(strstr(err.text, "small"));
    assert_int_equal(pl_parse_int("99999999999999999999999", 1, INT64_MAX, &v, &err), -ERANGE);
    assert_null(strstr(err.text, "small"));
    assert_int_equal(pl_parse_int("-9223372036854775809", INT64_MIN, INT64_MAX, &v, &err), -ERANGE);
    assert_int_equal(pl_parse_int("-99999999999999999999", 0, 5, &v, &err), -ERANGE);
    assert_int_equal(v, 99);
}

static void test_double_good(void **state)
{
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1", 1},       {"-1.5", -1.5}, {"+2", 2},   {".5", .5},
                {"1e-3", 1e-3}, {"1E3", 1e3},   {"5.", 5.0}, {"-.25e2", -25}};
    double v;

    for (size_t i = 0; i < PL_COUNT(good); i++) {
        assert_int_equal(pl_parse_double(good[i].text, &v, NULL), 0);
        assert_true(v == good[i].value);
    }
}

static void test_double_bad(void **state)
{
    static const char *const bad[] = {"",  " 1", "1 ", "1,5", "0x1p3", "nan", "inf", "-",
                                      ".", "e5", "1e", "1e+", "--1",   "1_0", "INF", "1.2.3"};
    struct pl_error err;
    double v = 7;

    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_parse_double(bad[i], &v, &err), -EINVAL);
    assert_true(pl_parse_double("-inf", &v, &err) < 0);
    assert_true(pl_parse_double("+nan", &v, &err) < 0);
    assert_int_equal(pl_parse_double("1e999", &v, &err), -ERANGE);
    check_text(&err, "1e999");
    assert_true(v == 7);
}

/* The table of sbatch(1), --time. */
static void test_slurm_time_forms(void **state)
{
    static const struct {
        const char *text;
        uint64_t s;
    } good[] = {
        {"90", 5400},
        {"1:30", 90},
        {"2:03:04", 7384},
        {"1-2", 93600},
        {"1-2:3", 93780},
        {"1-2:3:4", 93784},
        {"0", 0},
        {"365-0", 31536000},
        {"UNLIMITED", UINT64_MAX},
        {"infinite", UINT64_MAX},
    };
    uint64_t v;

    for (size_t i = 0; i < PL_COUNT(good); i++) {
        assert_int_equal(pl_parse_slurm_time(good[i].text, &v, NULL), 0);
        assert_true(v == good[i].s);
    }
}

static void test_slurm_time_bad(void **state)
{
    static const char *const bad[] = {"",
                                      "-1",
                                      "1-",
                                      "1-2-3",
                                      "1:2:3:4",
                                      "1-1:1:1:1",
                                      "1:",
                                      ":1",
                                      "1::2",
                                      " 1",
                                      "1 ",
                                      "1h",
                                      "1.5",
                                      "-",
                                      "1-:2",
                                      "5000000000",
                                      "99999999999999999999"};
    struct pl_error err;
    uint64_t v = 7;

    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_parse_slurm_time(bad[i], &v, &err), -EINVAL);
    assert_true(v == 7);
}

static void test_mem_units(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"1", 1 << 20},
                {"1K", 1024},
                {"2m", 2 << 20},
                {"3G", 3ull << 30},
                {"4t", 4ull << 40},
                {"16777215T", 16777215ull << 40}};
    static const char *const bad[] = {"", "K", "1KB", "1 K", "-1", "1P", "1.5G", "1K ", "0x1"};
    struct pl_error err;
    uint64_t v;

    for (size_t i = 0; i < PL_COUNT(good); i++) {
        assert_int_equal(pl_parse_mem(good[i].text, &v, NULL), 0);
        assert_true(v == good[i].bytes);
    }
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_parse_mem(bad[i], &v, &err), -EINVAL);
    assert_int_equal(pl_parse_mem("16777216T", &v, &err), -ERANGE);
    assert_int_equal(pl_parse_mem("18446744073709551616", &v, &err), -ERANGE);
    check_text(&err, "18446744073709551616");
}

static void test_port_range_limits(void **state)
{
    static const char *const out[] = {"0",       "65536", "0-5",
                                      "5-65536", "9-8",   "1-99999999999999999999"};
    static const char *const bad[] = {"", "-", "1-", "-1", "1-2-3", "1 -2", "a", "1,2", "1-2 "};
    struct pl_error err;
    uint16_t lo = 1, hi = 2;

    assert_int_equal(pl_parse_port_range("1-65535", &lo, &hi, NULL), 0);
    assert_int_equal(lo, 1);
    assert_int_equal(hi, 65535);
    assert_int_equal(pl_parse_port_range("80", &lo, &hi, NULL), 0);
    assert_int_equal(lo, 80);
    assert_int_equal(hi, 80);
    for (size_t i = 0; i < PL_COUNT(out); i++) {
        assert_int_equal(pl_parse_port_range(out[i], &lo, &hi, &err), -ERANGE);
        check_text(&err, out[i]);
    }
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(pl_parse_port_range(bad[i], &lo, &hi, &err), -EINVAL);
    assert_int_equal(lo, 80);
}

static void test_tasks_per_node_lists(void **state)
{
    static const char *const bad[] = {"x",   "4(x",  "4(x2", "4(y2)", "4(x2)5",
                                      "4,x", "4,,4", "4 ",   "4,"};
    struct pl_error err;
    unsigned n = 0;

    for (unsigned node = 0; node < 3; node++) {
        assert_int_equal(pl_parse_tasks_per_node("8(x3),4", node, &n, NULL), 0);
        assert_int_equal(n, 8);
    }
    assert_int_equal(pl_parse_tasks_per_node("8(x3),4", 3, &n, NULL), 0);
    assert_int_equal(n, 4);
    assert_int_equal(pl_parse_tasks_per_node("8(x3),4", 4, &n, &err), -ERANGE);
    assert_int_equal(pl_parse_tasks_per_node("1,2,3", 2, &n, NULL), 0);
    assert_int_equal(n, 3);
    assert_int_equal(pl_parse_tasks_per_node("2(x4294967295),9", 4294967294u, &n, NULL), 0);
    assert_int_equal(n, 2);
    assert_int_equal(pl_parse_tasks_per_node("", 0, &n, &err), -ERANGE);
    n = 77;
    for (size_t i = 0; i < PL_COUNT(bad); i++) /* also where the node's own part is fine */
        assert_int_equal(pl_parse_tasks_per_node(bad[i], 0, &n, &err), -EINVAL);
    assert_int_equal(n, 77);
}

static void test_name_valid_letters(void **state)
{
    static const char *const good[] = {"a", "_", "lr", "A.b-c_9", "x..", "_-"};
    static const char *const bad[] = {"",    "9a",  ".a",       "-a",        "a b", "a=b",
                                      "a/b", "a\n", "\xc3\xbc", "a\xc3\xbc", "a$"};

    for (size_t i = 0; i < PL_COUNT(good); i++)
        assert_true(pl_name_valid(good[i], strlen(good[i])));
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_false(pl_name_valid(bad[i], strlen(bad[i])));
    assert_false(pl_name_valid("a\0b", 3));
    assert_true(pl_name_valid("lr=1", 2));
}

static void test_scontrol_field_whole_keys(void **state)
{
    static const char text[] =
        "JobId=7 XJobState=A JobState=RUNNING\n   NodeList=n[1-2] Empty= Last=x";
    static const char *const rows[][2] = {
        {"JobId", "7"}, {"JobState", "RUNNING"}, {"NodeList", "n[1-2]"}, {"Empty", ""},
        {"Last", "x"},  {"State", NULL},         {"Job", NULL}};

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        _cleanup_free_ char *v = pl_parse_scontrol_field(text, rows[i][0]);

        if (rows[i][1])
            assert_string_equal(v, rows[i][1]);
        else
            assert_null(v);
    }
}

static void test_nccl_level(void **state)
{
    struct pl_error err = {0};
    const char *level = NULL;

    assert_int_equal(pl_parse_nccl_level("info", &level, &err), 0);
    assert_string_equal(level, "INFO");
    assert_int_equal(pl_parse_nccl_level("Version", &level, &err), 0);
    assert_string_equal(level, "VERSION");
    assert_int_equal(pl_parse_nccl_level("bogus", &level, &err), -EINVAL);
    assert_string_equal(err.text, "'bogus' is not a level of NCCL_DEBUG: use VERSION, WARN, INFO, "
                                  "ABORT or TRACE");
    assert_int_equal(pl_parse_nccl_level("", &level, NULL), -EINVAL);
    assert_string_equal(level, "VERSION");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nccl_level),         cmocka_unit_test(test_scontrol_field_whole_keys),
        cmocka_unit_test(test_int_good),           cmocka_unit_test(test_int_no_number),
        cmocka_unit_test(test_int_out_of_range),   cmocka_unit_test(test_double_good),
        cmocka_unit_test(test_double_bad),         cmocka_unit_test(test_slurm_time_forms),
        cmocka_unit_test(test_slurm_time_bad),     cmocka_unit_test(test_mem_units),
        cmocka_unit_test(test_port_range_limits),  cmocka_unit_test(test_tasks_per_node_lists),
        cmocka_unit_test(test_name_valid_letters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
