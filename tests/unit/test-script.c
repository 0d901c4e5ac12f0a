/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "launcher/plsubmit/script.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void quote(const char *s, const char *expected)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    assert_int_equal(pl_script_quote(&out, s), 0);
    assert_string_equal(pl_buf_str(&out), expected);
}

static void test_quote(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};

    quote("", "''");
    quote("plain", "'plain'");
    quote("it's", "'it'\\''s'");
    quote("$(id) `id` \"x\" \\ !", "'$(id) `id` \"x\" \\ !'");
    pl_buf_adds(&out, "before ");
    assert_int_equal(pl_script_quote(&out, "two\nlines"), -EINVAL);
    assert_string_equal(pl_buf_str(&out), "before ");
}

/* bash reads a quoted string back as the string. */
static void test_quote_through_bash(void **state)
{
    unsigned seed = 3;

    for (int round = 0; round < 50; round++) {
        _cleanup_(pl_buf_finish) struct pl_buf command = {0}, all = {0};
        _cleanup_(pl_child_finish) struct pl_child child = {0};
        const char *argv[] = {"bash", "-c", NULL, NULL};
        struct pl_error err = {0};

        pl_buf_adds(&command, "printf %s\\\\n");
        for (int word = 0; word < 20; word++) {
            char s[9];
            size_t len = (size_t)rand_r(&seed) % sizeof(s);

            for (size_t i = 0; i < len; i++)
                do
                    s[i] = (char)rand_r(&seed);
                while (s[i] == '\n' || s[i] == '\0');
            if (len == sizeof(s))
                len--;
            s[len] = '\0';
            pl_buf_addc(&command, ' ');
            assert_int_equal(pl_script_quote(&command, s), 0);
            pl_buf_addf(&all, "%s\n", s);
        }
        argv[2] = pl_buf_str(&command);
        assert_int_equal(pl_child_run(argv, NULL, 60000, &child, &err), 0);
        assert_string_equal(pl_buf_str(&child.err), "");
        assert_string_equal(pl_buf_str(&child.out), pl_buf_str(&all));
    }
}

static void test_directive_ok(void **state)
{
    assert_true(pl_script_directive_ok("--nodes=12"));
    assert_true(pl_script_directive_ok("--output=/a/b/slurm-%A_%a.out"));
    assert_true(pl_script_directive_ok("--nodelist=n[1-3],m4"));
    assert_false(pl_script_directive_ok("--job-name=a b"));
    assert_false(pl_script_directive_ok("--job-name=a\nb"));
    assert_false(pl_script_directive_ok("--job-name='x'"));
    assert_false(pl_script_directive_ok("--constraint=a&b"));
    assert_false(pl_script_directive_ok("--comment=a#b"));
    assert_false(pl_script_directive_ok("--comment=a\\b"));
    assert_false(pl_script_directive_ok("--comment=\xc3\xa9"));
    /* Of ASCII, no character that a shell or sbatch reads as more than itself. */
    for (char c = 1; c > 0 && c < 127; c++) {
        const char word[] = {'-', '-', 'x', '=', c, '\0'};

        assert_int_equal(pl_script_directive_ok(word),
                         isalnum((unsigned char)c) || strchr("_.,:/+@%=*[]-", c));
    }
}

static const char *const args[] = {"--nodes=2", "--job-name=my job", NULL};
static const char *const modules[] = {"cuda/12.1", "it's", NULL};
static const char *const env[] = {"A=$(id)", NULL};
static const char *const setup[] = {"source venv/bin/activate # mine", NULL};

static const struct pl_script full = {
    .sweep = "s-abc",
    .run_dir = "/runs/a 'b'/s-abc",
    .bin_dir = "/bin",
    .array = "0-8%2",
    .sbatch_args = args,
    .modules = modules,
    .env = env,
    .setup = setup,
    .program = "it's",
};

static void test_render(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    struct pl_error err = {0};
    const char *s;

    assert_int_equal(pl_script_render(&full, &out, &err), 0);
    s = pl_buf_str(&out);
    assert_int_equal(strncmp(s, "#!/bin/bash -l\n#SBATCH --array=0-8%2\n#SBATCH --nodes=2\n", 53),
                     0);
    assert_non_null(strstr(s, "\n#SBATCH \"--job-name=my job\"\n"));
    for (const char *p = strchr(s, '@'); p; p = strchr(p + 1, '@'))
        assert_false(p[1] >= 'A' && p[1] <= 'Z'); /* a name that nobody filled in */
    assert_non_null(strstr(s, "\nexport PLUME_RUN_DIR='/runs/a '\\''b'\\''/s-abc'\n"));
    assert_non_null(
        strstr(s, "\nset -eE\nmodule load 'cuda/12.1' || exit\nmodule load 'it'\\''s' || exit\n"
                  "plume_setup='source venv/bin/activate # mine'\n"
                  "eval \"$plume_setup\"\nplume_check \"$?\"\nplume_setup=\nexport "
                  "'A=$(id)'\nset +eE\ntrap - ERR\n"));
    assert_non_null(strstr(s, "\nPLUME_PROGRAM=$(\"$PLUME_BIN/plrun\" --find-program='it'\\''s') "
                              "&& export PLUME_PROGRAM\n"));
    assert_true(strstr(s, "--find-program") > strstr(s, "set +e"));
}

static void test_render_is_bash(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *argv[] = {"bash", "-n", "-c", NULL, NULL};
    struct pl_error err = {0};

    assert_int_equal(pl_script_render(&full, &out, &err), 0);
    argv[3] = pl_buf_str(&out);
    assert_int_equal(pl_child_run(argv, NULL, 60000, &child, &err), 0);
    assert_string_equal(pl_buf_str(&child.err), "");
    assert_int_equal(child.status, 0);
}

static void test_render_newline(void **state)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    struct pl_script script = full;
    struct pl_error err = {0};

    script.run_dir = "/a\nb";
    assert_int_equal(pl_script_render(&script, &out, &err), -EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quote),          cmocka_unit_test(test_quote_through_bash),
        cmocka_unit_test(test_directive_ok),   cmocka_unit_test(test_render),
        cmocka_unit_test(test_render_is_bash), cmocka_unit_test(test_render_newline),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
