/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "runtime/engine/report/metrics_csv.h"
#include "tests/lib/tmpdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char dir[64], path[96];

static int sync_error;

/* In place of libc's, in this program. */
int fsync(int fd)
{
    (void)fd;
    errno = sync_error;
    return sync_error ? -1 : 0;
}

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/metrics.csv", dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* no temporary file is left */
    return 0;
}

static void write_file(const char *text)
{
    assert_int_equal(pl_file_replace(path, text, strlen(text), 0644, NULL), 0);
}

static void holds(const char *want)
{
    _cleanup_free_ char *text = NULL;

    assert_int_equal(pl_file_read(path, 1 << 20, &text, NULL, NULL), 0);
    assert_string_equal(text, want);
}

static struct pl_metrics_csv *open_it(void)
{
    struct pl_error err = {0};
    struct pl_metrics_csv *csv = NULL;

    if (pl_metrics_csv_open(path, &csv, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return csv;
}

static int row(struct pl_metrics_csv *csv, int64_t step, const char *name, double value)
{
    return pl_metrics_csv_row(csv, step, &name, &value, 1, NULL);
}

/* No digit of a double is lost; a float has no more than nine. */
static void test_numbers_can_be_read_back(void **state)
{
    struct pl_metrics_csv *csv = open_it();

    (void)state;
    assert_int_equal(row(csv, 1, "x", 1.0 / 3), 0);
    assert_int_equal(row(csv, 2, "x", 0.1), 0);
    assert_int_equal(row(csv, 3, "x", (double)0.1f), 0);
    pl_metrics_csv_close(csv);
    holds("step,x\n1,0.3333333333333333\n2,0.1\n3,0.100000001\n");
}

static void test_row_with_new_columns(void **state)
{
    struct pl_metrics_csv *csv = open_it();

    (void)state;
    assert_int_equal(row(csv, 1, "loss", 0.5), 0);
    holds("step,loss\n1,0.5\n");
    assert_int_equal(row(csv, 2, "val_acc", NAN), 0);
    holds("step,loss,val_acc\n1,0.5,\n2,,nan\n");
    assert_int_equal(pl_metrics_csv_row(csv, 3, (const char *const[]){"val_acc", "loss"},
                                        (double[]){-INFINITY, 0.1f}, 2, NULL),
                     0);
    holds("step,loss,val_acc\n1,0.5,\n2,,nan\n3,0.100000001,-inf\n");
    pl_metrics_csv_close(csv);
}

static void test_open_goes_on(void **state)
{
    struct pl_metrics_csv *csv;

    (void)state;
    write_file("step,loss\n1,0.5\n2,0."); /* its writer was killed: 0. is no value */
    csv = open_it();
    assert_int_equal(row(csv, 2, "loss", 3), 0);
    pl_metrics_csv_close(csv);
    holds("step,loss\n1,0.5\n2,3\n");
}

/* A network file system took the row, and lost it. */
static void test_sync_tells_what_is_lost(void **state)
{
    struct pl_metrics_csv *csv = open_it();
    struct pl_error err = {0};

    (void)state;
    assert_int_equal(row(csv, 1, "loss", 0.5), 0);
    assert_int_equal(pl_metrics_csv_sync(csv, &err), 0);
    sync_error = EDQUOT;
    assert_int_equal(pl_metrics_csv_sync(csv, &err), -EDQUOT);
    assert_non_null(strstr(pl_error_text(&err), "quota"));
    sync_error = 0;
    pl_metrics_csv_close(csv);
}

static void test_open_refuses_others(void **state)
{
    struct pl_error err = {0};
    struct pl_metrics_csv *csv = NULL;

    (void)state;
    write_file("name,mail\n");
    assert_int_equal(pl_metrics_csv_open(path, &csv, &err), -EINVAL);
    assert_non_null(strstr(pl_error_text(&err), "move it away"));
    holds("name,mail\n");
}

/* Among them what a spreadsheet takes for a formula, a further cell or a further row. */
static void test_row_with_bad_name(void **state)
{
    static const char *const bad[] = {
        "a,b",     "=1+1", "+1",       "-1",        "@SUM(A1)", "\t=1",       "\r=1",
        "a\n=1+1", "a;=1", "\"=1+1\"", "=cmd|'x'!", " =1",      "\xc2\xa0=1",
    };
    struct pl_metrics_csv *csv = open_it();

    (void)state;
    assert_int_equal(row(csv, 1, "loss", 1), 0);
    for (size_t i = 0; i < PL_COUNT(bad); i++)
        assert_int_equal(row(csv, 2, bad[i], 1), -EINVAL);
    assert_int_equal(row(csv, 2, "loss", 2), 0);
    pl_metrics_csv_close(csv);
    holds("step,loss\n1,1\n2,2\n");
}

static void test_row_past_the_columns(void **state)
{
    static const double zeros[PL_CSV_COLUMNS_MAX];
    struct pl_metrics_csv *csv = open_it();
    const char *names[PL_CSV_COLUMNS_MAX];
    char text[PL_CSV_COLUMNS_MAX][8];

    (void)state;
    for (int i = 0; i < PL_CSV_COLUMNS_MAX; i++) {
        snprintf(text[i], sizeof(text[i]), "m%d", i);
        names[i] = text[i];
    }
    /* All but the last one at once: each call with new columns writes the file again. */
    assert_int_equal(pl_metrics_csv_row(csv, 0, names, zeros, PL_CSV_COLUMNS_MAX - 1, NULL), 0);
    assert_int_equal(row(csv, 1, names[PL_CSV_COLUMNS_MAX - 1], 1), 0);
    assert_int_equal(row(csv, 1, "more", 1), -E2BIG);
    assert_int_equal(row(csv, 1, "m7", 1), 0);
    pl_metrics_csv_close(csv);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_row_with_new_columns),     CASE(test_open_goes_on),
        CASE(test_sync_tells_what_is_lost),  CASE(test_open_refuses_others),
        CASE(test_row_with_bad_name),        CASE(test_row_past_the_columns),
        CASE(test_numbers_can_be_read_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
