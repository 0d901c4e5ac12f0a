/* SPDX-License-Identifier: MIT */
#include "common/run/run_tasks.h"
#include "launcher/plstat/table.h"
#include "launcher/plstat/words.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void test_duration(void **state)
{
    static const struct {
        double seconds;
        const char *want;
    } cases[] = {
        {0, "0:00"},          {59.9, "0:59"},      {3599, "59:59"}, {3600, "1:00:00"},
        {86399, "23:59:59"},  {86400, "1d 00:00"}, {-1, "-"},       {NAN, "-"},
        {1e300 * 1e300, "-"}, {90061, "1d 01:01"}, {1e18, "-"},     {1e300, "-"},
    };
    char text[32];

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        pl_words_duration(cases[i].seconds, text, sizeof(text));
        assert_string_equal(text, cases[i].want);
    }
}

static void test_ranks(void **state)
{
    static const int64_t ranks[] = {0, 1, 2, 4, 6, 7, 95};
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    assert_int_equal(pl_tasks_format(ranks, PL_COUNT(ranks), &text), 0);
    assert_string_equal(pl_buf_str(&text), "0-2,4,6-7,95");
}

static void assert_nodes(const char *const *nodes, size_t n, const char *want)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    assert_int_equal(pl_words_nodes(nodes, n, &text), 0);
    assert_string_equal(pl_buf_str(&text), want);
}

static void test_nodes(void **state)
{
    assert_nodes(NULL, 0, "");
    assert_nodes((const char *[]){"n01", "n01", "n01"}, 3, "n01");
    assert_nodes((const char *[]){"n01", "n02", "n02", "n03", "n07"}, 5, "n[01-03,07]");
    assert_nodes((const char *[]){"n9", "n10", "n11"}, 3, "n9,n[10-11]");
    assert_nodes((const char *[]){"login", "a1b", "a2b"}, 3, "login,a1b,a2b");
    assert_nodes((const char *[]){"n1", "m1", "n2"}, 3, "n1,m1,n2");
    assert_nodes((const char *[]){"", ""}, 2, "");
    assert_nodes((const char *[]){"x99999999999999999999", "x99999999999999999998"}, 2,
                 "x99999999999999999999,x99999999999999999998");
}

static void assert_cause(json_t *cause, const char *want)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    assert_non_null(cause);
    assert_int_equal(pl_words_cause(cause, &text), 0);
    assert_string_equal(pl_buf_str(&text), want);
    json_decref(cause);
}

static void test_cause(void **state)
{
    assert_cause(json_pack("{s:s, s:i, s:s, s:i, s:i}", "kind", "exit", "rank", 3, "node", "n04",
                           "pid", 123, "exit", 3),
                 "rank 3 (n04, pid 123): exit 3");
    assert_cause(json_pack("{s:s, s:i, s:i, s:s}", "kind", "signal", "rank", 0, "signal", 11,
                           "signal_name", "SIGSEGV"),
                 "rank 0: killed by SIGSEGV (signal 11)");
    assert_cause(
        json_pack("{s:s, s:i, s:s, s:i}", "kind", "oom", "rank", 1, "node", "n1", "signal", 9),
        "rank 1 (n1): out of memory, killed by signal 9");
    assert_cause(json_pack("{s:s, s:b}", "kind", "cancelled", "inferred", 1),
                 "cancelled (inferred)");
    assert_cause(json_pack("{s:s, s:s}", "kind", "node", "node", "n7"), "n7: the node failed");
    assert_cause(json_pack("{s:s, s:s, s:i}", "kind", "setup", "node", "n1", "exit", 2),
                 "n1: the job's set-up failed, exit 2");
    assert_cause(json_pack("{s:s, s:i, s:s, s:i, s:s}", "kind", "signal", "rank", 2, "node", "n1",
                           "signal", 9, "signal_name", "SIGKILL"),
                 "rank 2 (n1): killed by SIGKILL (signal 9), sender unknown");
    assert_cause(json_pack("{s:s, s:s, s:i, s:s}", "kind", "signal", "node", "n1", "signal", 25,
                           "signal_name", "SIGXFSZ"),
                 "n1: killed by SIGXFSZ (signal 25), a file has reached the limit of its size "
                 "(ulimit -f)");
    assert_cause(json_pack("{s:s, s:i, s:s, s:s, s:b}", "kind", "runtime", "rank", 2, "node", "n1",
                           "process", "plrund", "inferred", 1),
                 "rank 2 (n1): plrund was killed or stopped (inferred)");
    assert_cause(json_pack("{s:s, s:i, s:s, s:i, s:s}", "kind", "runtime", "rank", 2, "node", "n1",
                           "signal", 9, "process", "plrun"),
                 "rank 2 (n1): plrun was killed");
    assert_cause(json_pack("{s:s, s:s}", "kind", "runtime", "node", "n1"),
                 "n1: the runtime was killed");
    assert_cause(json_pack("{s:s}", "kind", "timeout"), "the time limit was reached");
    assert_cause(json_pack("{s:s}", "kind", "something-new"), "something-new");
    assert_cause(json_object(), "unknown");
    assert_cause(json_pack("{s:i, s:s, s:[]}", "kind", 7, "rank", "x", "node"), "unknown");
}

/* ---- tables ---- */

static void test_table_fits(void **state)
{
    _cleanup_(pl_table_finish) struct pl_table t = {0};
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    pl_table_column(&t, "A", true, false);
    pl_table_column(&t, "NAME", false, true);
    pl_table_column(&t, "EMPTY", false, false);
    pl_table_column(&t, "END", false, false);
    for (int i = 0; i < 2; i++) {
        pl_table_cellf(&t, PL_TERM_PLAIN, "%d", i + 9);
        pl_table_cell(&t, PL_TERM_PLAIN, i ? "short" : "学習率の探索\x1b[2J");
        pl_table_cell(&t, PL_TERM_PLAIN, i ? "" : NULL);
        pl_table_cell(&t, PL_TERM_RED, i ? "x" : NULL);
    }
    assert_int_equal(pl_table_print(&t, 80, false, &out), 0);
    assert_string_equal(pl_buf_str(&out), " A NAME              END\n"
                                          " 9 学習率の探索\\e[2J\n"
                                          "10 short             x\n");
    pl_buf_consume(&out, out.len);
    assert_int_equal(pl_table_print(&t, 16, false, &out), 0);
    assert_string_equal(pl_buf_str(&out), " A NAME      END\n"
                                          " 9 学習率の+\n"
                                          "10 short     x\n");
    pl_buf_consume(&out, out.len);
    assert_int_equal(pl_table_print(&t, 4, true, &out), 0); /* what cannot fit is left out */
    assert_null(strstr(pl_buf_str(&out), "END"));
}

static void test_table_too_many_columns(void **state)
{
    _cleanup_(pl_table_finish) struct pl_table t = {0};
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    for (int i = 0; i < PL_TABLE_COLUMNS_MAX + 2; i++)
        pl_table_column(&t, "X", false, false);
    assert_true(pl_table_full(&t));
    assert_int_equal(t.n_columns, PL_TABLE_COLUMNS_MAX);
    assert_int_equal(pl_table_print(&t, 80, false, &out), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_duration),   cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_nodes),      cmocka_unit_test(test_cause),
        cmocka_unit_test(test_table_fits), cmocka_unit_test(test_table_too_many_columns),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
