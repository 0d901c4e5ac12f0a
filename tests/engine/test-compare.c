/* SPDX-License-Identifier: MIT */
/* The device that a comparison recommends. */
#include "runtime/pltrain/compare.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A row of `ms` milliseconds a step; negative: it failed, 0: it is not there. */
static struct pl_compare_row row(double ms)
{
    struct pl_compare_row r = {.there = ms != 0};

    if (ms <= 0) {
        snprintf(r.why, sizeof(r.why), "why");
        return r;
    }
    r.steps = 20;
    r.seconds = 20e-3 * ms;
    r.samples = 32;
    r.first_s = 1.25;
    r.peak_bytes = 3 << 20;
    snprintf(r.device, sizeof(r.device), "name");
    return r;
}

static char *printed(double cpu, double gpu, double tpu, int code)
{
    const struct pl_compare_row rows[] = {row(cpu), row(gpu), row(tpu)};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    assert_non_null(out);
    assert_int_equal(pl_compare_print(rows, out), code);
    assert_int_equal(fclose(out), 0);
    assert_true(size > 0 && text[size - 1] == '\n');
    text[size - 1] = '\0';
    return text;
}

/* The last line. */
static void compared(double cpu, double gpu, double tpu, int code, const char *want)
{
    char *text = printed(cpu, gpu, tpu, code), *last = strrchr(text, '\n') + 1;

    if (strcmp(last, want) != 0)
        fail_msg("not '%s': '%s'", want, last);
    free(text);
}

static void test_the_fastest_is_recommended_if_it_is_worth_it(void **state)
{
    compared(10, 0, 0, 0, "recommended: --accelerator cpu, the only device here");
    compared(10, -1, 0, 0, "recommended: --accelerator cpu");
    compared(10, 5, 0, 0, "recommended: --accelerator gpu, 2 times as fast as the CPU");
    compared(10, 5, 4, 0, "recommended: --accelerator tpu, 2.5 times as fast as the CPU");
    compared(10, 4, 5, 0, "recommended: --accelerator gpu, 2.5 times as fast as the CPU");
    compared(10, 9.5, 0, 0, "recommended: --accelerator cpu: the gpu is only 1.05 times as fast");
    compared(10, 20, 40, 0, "recommended: --accelerator cpu, 2 times as fast as the gpu");
    compared(10, -1, 40, 0, "recommended: --accelerator cpu, 4 times as fast as the tpu");
    compared(-1, 20, 0, 0, "recommended: --accelerator gpu");
    compared(-1, 0, 20, 0, "recommended: --accelerator tpu");
}

static void test_nothing_is_recommended_where_nothing_was_measured(void **state)
{
    compared(-1, 0, 0, 1, "tpu    not here: why");
    compared(-1, -1, -1, 1, "tpu    failed: why");
}

static void test_a_row_has_the_numbers_of_a_step(void **state)
{
    char *text = printed(4, -1, 0, 0);

    assert_string_equal(text, "DEVICE    MS/STEP   SAMPLES/S  FIRST STEP  PEAK MIB\n"
                              "cpu         4.000      8000.0      1.25 s       3.0  name\n"
                              "gpu    failed: why\n"
                              "tpu    not here: why\n"
                              "recommended: --accelerator cpu");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_fastest_is_recommended_if_it_is_worth_it),
        cmocka_unit_test(test_nothing_is_recommended_where_nothing_was_measured),
        cmocka_unit_test(test_a_row_has_the_numbers_of_a_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
