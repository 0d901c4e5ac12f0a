/* SPDX-License-Identifier: MIT */
#include "common/base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { NODES, DRY, LONG };

static const struct pl_option table[] = {
    {"nodes", 'N', "N", "Resources", "number of nodes", NODES},
    {"dry-run", 0, NULL, NULL, "do nothing", DRY},
    {"a-name-that-is-longer-than-the-column", 'l', "VALUE-OF-SOME-LENGTH", "More",
     "a text that is so long that it has to be broken, and broken once more, as no line may have "
     "more than eighty columns\nand this starts a line of its own",
     LONG},
    {"hidden", 0, NULL, NULL, NULL, 9},
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
    int ids[16];
    char values[16][32];
    int n, refuse;
} seen;

static int set(void *ctx, const struct pl_option *o, const char *value, struct pl_error *err)
{
    assert_ptr_equal(ctx, &seen);
    if (seen.refuse)
        return pl_error_set(err, -ERANGE, "no");
    seen.ids[seen.n] = o->id;
    snprintf(seen.values[seen.n++], 32, "%s", value ? value : "(none)");
    return 0;
}

static int parse(int *rest, bool *done, struct pl_error *err, char **argv)
{
    int argc = 0;

    while (argv[argc])
        argc++;
    seen.n = 0;
    return pl_options_parse(&command, argc, argv, set, &seen, rest, done, err);
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
    assert_int_equal(seen.ids[6], DRY);
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
    assert_string_equal(err.text, "unknown option '--node': see tool --help");
    assert_int_equal(PARSE("--nodesx=1"), -EINVAL);
    assert_string_equal(err.text, "unknown option '--nodesx': see tool --help");
    assert_int_equal(PARSE("-x5"), -EINVAL);
    assert_string_equal(err.text, "unknown option '-x': see tool --help");
    assert_int_equal(PARSE("--nodes"), -EINVAL);
    assert_string_equal(err.text, "option '--nodes' needs a value: --nodes N");
    assert_int_equal(PARSE("--dry-run=1"), -EINVAL);
    assert_string_equal(err.text, "option '--dry-run' takes no value");
    assert_int_equal(PARSE("--=x"), -EINVAL);
    assert_int_equal(PARSE("-=x"), -EINVAL);
    seen.refuse = 1;
    assert_int_equal(PARSE("-N1"), -ERANGE);
    seen.refuse = 0;
    assert_string_equal(err.text, "no");
    assert_int_equal(rest, 77); /* written on success only */
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
        cmocka_unit_test(test_parse_forms),        cmocka_unit_test(test_parse_stops),
        cmocka_unit_test(test_parse_refused),      cmocka_unit_test(test_help_width),
        cmocka_unit_test(test_help_closed_stream),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
