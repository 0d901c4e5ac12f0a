/* SPDX-License-Identifier: MIT */
#include "common/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum kind { NONE, ONE, TWO };

struct values {
    bool flag, on;
    const char *text;
    int number;
    int64_t wide;
    uint64_t count;
    double real;
    enum kind kind;
};

static int seen_word(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err);

static const struct pl_option table[] = {
    {"nodes", 'N', "N", "Resources", "number of nodes", PL_OPTION_CALL(seen_word)},
    {"dry-run", 0, NULL, NULL, "do nothing", PL_OPTION_CALL(seen_word)},
    {"a-name-that-is-longer-than-the-column", 'l', "VALUE-OF-SOME-LENGTH", "More",
     "a text that is so long that it has to be broken, and broken once more, as no line may have "
     "more than eighty columns\nand this starts a line of its own",
     PL_OPTION_CALL(seen_word)},
    {"hidden", 0, NULL, NULL, NULL, PL_OPTION_CALL(seen_word)},
    {0},
};

static const struct pl_command command = {
    .name = "tool",
    .synopsis = "[OPTIONS] PROGRAM\n--other FORM",
    .summary = "Do it.",
    .footer = "See tool(1).",
    .options = table,
};

static struct {
    const struct pl_option *options[16];
    char values[16][32];
    int n, refuse;
} seen;

static int seen_word(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    assert_ptr_equal(ctx, &seen);
    if (seen.refuse)
        return pl_error_set(err, -ERANGE, "no");
    seen.options[seen.n] = o;
    snprintf(seen.values[seen.n++], 32, "%s", value ? value : "(none)");
    return 0;
}

static int parse(int *rest, bool *done, struct pl_error *err, char **argv)
{
    int argc = 0;

    while (argv[argc])
        argc++;
    seen.n = 0;
    return pl_options_parse(&command, argc, argv, &seen, rest, done, err);
}

#define PARSE(...) parse(&rest, &done, &err, (char *[]){"tool", __VA_ARGS__, NULL})

static void test_parse_forms(void **state)
{
    struct pl_error err = {0};
    bool done = true;
    int rest = -1;

    assert_int_equal(PARSE("--nodes", "1", "--nodes=2", "-N", "3", "-N4", "--nodes=", "--nodes=a=b",
                           "--dry-run", "prog", "--nodes"),
                     0);
    assert_false(done);
    assert_int_equal(seen.n, 7);
    assert_string_equal(seen.values[0], "1");
    assert_string_equal(seen.values[1], "2");
    assert_string_equal(seen.values[2], "3");
    assert_string_equal(seen.values[3], "4");
    assert_string_equal(seen.values[4], "");
    assert_string_equal(seen.values[5], "a=b");
    assert_string_equal(seen.values[6], "(none)");
    assert_ptr_equal(seen.options[6], &table[1]);
    assert_int_equal(rest, 10);
}

static void test_parse_stops(void **state)
{
    struct pl_error err = {0};
    bool done;
    int rest;

    assert_int_equal(PARSE("--dry-run", "--", "--nodes"), 0);
    assert_int_equal(rest, 3);
    assert_int_equal(PARSE("-", "--dry-run"), 0); /* stdin's name is no option */
    assert_int_equal(rest, 1);
    assert_int_equal(PARSE("--dry-run"), 0);
    assert_int_equal(rest, 2);
    assert_int_equal(PARSE("-N", "--"), 0); /* a value may look like anything */
    assert_string_equal(seen.values[0], "--");
}

static void test_parse_refused(void **state)
{
    struct pl_error err = {0};
    bool done;
    int rest = 77;

    assert_int_equal(PARSE("--node", "1"), -EINVAL); /* names must be whole */
    assert_string_equal(err.text, "unknown option '--node': did you mean --nodes?");
    assert_int_equal(PARSE("--nodesx=1"), -EINVAL);
    assert_string_equal(err.text, "unknown option '--nodesx': did you mean --nodes?");
    assert_int_equal(PARSE("--hiden"), -EINVAL); /* a hidden option is not offered */
    assert_string_equal(err.text, "unknown option '--hiden': see tool --help");
    assert_int_equal(PARSE("-x5"), -EINVAL);
    assert_string_equal(err.text, "unknown option '-x': see tool --help");
    assert_int_equal(PARSE("--nodes"), -EINVAL);
    assert_string_equal(err.text, "option '--nodes' needs a value: --nodes N");
    assert_int_equal(PARSE("--nodes", "--dry-run", "x"), -EINVAL); /* a forgotten value */
    assert_string_equal(err.text, "option '--nodes' needs a value, and '--dry-run' is an option: "
                                  "write --nodes=--dry-run if it is meant");
    assert_int_equal(PARSE("-N", "--help"), -EINVAL);
    assert_int_equal(PARSE("--nodes", "--nodes=2"), -EINVAL);
    assert_int_equal(PARSE("--nodes", "--dry-runs"), 0); /* no option */
    rest = 77;
    assert_int_equal(PARSE("--dry-run=1"), -EINVAL);
    assert_string_equal(err.text, "option '--dry-run' takes no value");
    assert_int_equal(PARSE("--=x"), -EINVAL);
    assert_int_equal(PARSE("-=x"), -EINVAL);
    seen.refuse = 1;
    assert_int_equal(PARSE("-N1"), -ERANGE);
    seen.refuse = 0;
    assert_string_equal(err.text, "--nodes: no");
    assert_int_equal(rest, 77); /* written on success only */
}

/* ---- typed targets ---- */

static const char *const kinds[] = {"none", "one", "two", NULL};
static const struct pl_option typed_table[] = {
    {"flag", 0, NULL, NULL, NULL, PL_OPTION_TRUE(struct values, flag)},
    {"off", 0, NULL, NULL, NULL, PL_OPTION_FALSE(struct values, on)},
    {"text", 0, "X", NULL, NULL, PL_OPTION_STRING(struct values, text)},
    {"number", 0, "N", NULL, NULL, PL_OPTION_INT(struct values, number, -2, INT64_MAX)},
    {"wide", 0, "N", NULL, NULL, PL_OPTION_INT(struct values, wide, -5, INT64_MAX)},
    {"count", 0, "N", NULL, NULL, PL_OPTION_INT(struct values, count, 1, INT64_MAX)},
    {"real", 0, "X", NULL, NULL, PL_OPTION_REAL(struct values, real, 0)},
    {"kind", 0, "X", NULL, NULL, PL_OPTION_CHOICE(struct values, kind, kinds)},
    {0},
};

static int parse_typed(struct values *v, struct pl_error *err, char **argv)
{
    static const struct pl_command typed = {.name = "tool", .options = typed_table};
    int argc = 0, rest;
    bool done;

    while (argv[argc])
        argc++;
    return pl_options_parse(&typed, argc, argv, v, &rest, &done, err);
}

#define TYPED(...) parse_typed(&v, &err, (char *[]){"tool", __VA_ARGS__, NULL})

static void test_typed_values(void **state)
{
    struct values v = {.on = true};
    struct pl_error err = {0};

    assert_int_equal(TYPED("--flag", "--off", "--text", "a b", "--number=-2", "--wide",
                           "9000000000", "--count", "9000000001", "--real", "0.5", "--kind=two"),
                     0);
    assert_true(v.flag);
    assert_false(v.on);
    assert_string_equal(v.text, "a b");
    assert_int_equal(v.number, -2);
    assert_int_equal(v.wide, 9000000000);
    assert_int_equal(v.count, 9000000001);
    assert_true(v.real == 0.5);
    assert_int_equal(v.kind, TWO);
}

static void test_typed_refused(void **state)
{
    struct values v = {.number = 7, .count = 7, .real = 7, .kind = ONE};
    struct pl_error err = {0};

    assert_int_equal(TYPED("--number", "2147483648"), -ERANGE); /* wider than an int */
    assert_int_equal(TYPED("--count", "0"), -ERANGE);
    assert_int_equal(TYPED("--count", "-1"), -ERANGE);
    assert_int_equal(TYPED("--real", "-0.5"), -ERANGE);
    assert_string_equal(err.text, "--real: '-0.5' must be at least 0");
    assert_int_equal(TYPED("--kind", "three"), -EINVAL);
    assert_string_equal(err.text, "--kind: 'three' is none of none, one, two");
    assert_int_equal(v.number, 7);
    assert_int_equal(v.count, 7);
    assert_true(v.real == 7);
    assert_int_equal(v.kind, ONE);
}

/* A row with a defect: the first run of the tool shows it. */
static void refuses_row(struct pl_option row, const char *text)
{
    struct pl_option rows[] = {
        {"flag", 'f', NULL, NULL, NULL, PL_OPTION_CALL(seen_word)}, row, {0}};
    struct pl_command broken = {.name = "tool", .options = rows};
    char *argv[] = {"tool", NULL};
    struct pl_error err = {0};
    int rest;
    bool done;

    assert_int_equal(pl_options_parse(&broken, 1, argv, &seen, &rest, &done, &err), -ENOTSUP);
    assert_string_equal(err.text, text);
}

static void test_table_defects(void **state)
{
    refuses_row((struct pl_option){.name = "x"}, "defect: option '--x' has no target");
    refuses_row((struct pl_option){.name = "x", .target = PL_OPTION_STRING(struct values, text)},
                "defect: option '--x' has no argument");
    refuses_row(
        (struct pl_option){.name = "x", .arg = "N", .target = PL_OPTION_TRUE(struct values, flag)},
        "defect: option '--x' has a superfluous argument");
    refuses_row((struct pl_option){.name = "x",
                                   .arg = "[N]",
                                   .target = PL_OPTION_INT(struct values, number, 0, 9)},
                "defect: option '--x' must not be without a value");
    refuses_row((struct pl_option){.name = "flag", .target = PL_OPTION_CALL(seen_word)},
                "defect: option '--flag' is defined twice");
    refuses_row(
        (struct pl_option){.name = "x", .short_name = 'f', .target = PL_OPTION_CALL(seen_word)},
        "defect: option '--x' is defined twice");
}

static void test_help_width(void **state)
{
    char *text = NULL, *line, *next;
    size_t size;
    FILE *out = open_memstream(&text, &size);

    assert_int_equal(pl_options_help(&command, out), 0);
    fclose(out);
    assert_non_null(strstr(text, "Usage: tool [OPTIONS] PROGRAM\n   or: tool --other FORM\n"));
    assert_non_null(strstr(text, "\nResources:\n  -N, --nodes N             number of nodes\n"));
    assert_non_null(strstr(text, "      --dry-run "));
    assert_non_null(strstr(text, "\nMore:\n"));
    assert_non_null(strstr(text, "--help"));
    assert_non_null(strstr(text, "--version"));
    assert_non_null(strstr(text, "See tool(1).\n"));
    assert_null(strstr(text, "hidden"));
    for (line = text; *line; line = next + 1) {
        next = strchr(line, '\n');
        assert_non_null(next);
        assert_true(next - line <= 80);
        assert_true(next == line || next[-1] != ' ');
    }
    free(text);
}

static void test_help_closed_stream(void **state)
{
    FILE *out = fopen("/dev/full", "w");

    assert_non_null(out);
    assert_true(pl_options_help(&command, out) < 0);
    fclose(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_forms),   cmocka_unit_test(test_parse_stops),
        cmocka_unit_test(test_parse_refused), cmocka_unit_test(test_typed_values),
        cmocka_unit_test(test_typed_refused), cmocka_unit_test(test_table_defects),
        cmocka_unit_test(test_help_width),    cmocka_unit_test(test_help_closed_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
