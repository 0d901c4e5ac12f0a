/* SPDX-License-Identifier: MIT */
#include "common/base/log.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int saved_stderr, out_fd;

/* The text written to stderr since the last call; borrowed. */
static const char *written(void)
{
    static char text[16384];
    ssize_t n;

    n = pread(out_fd, text, sizeof(text) - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    assert_int_equal(ftruncate(out_fd, 0), 0);
    lseek(out_fd, 0, SEEK_SET);
    return text;
}

static void begin(const char *log, const char *format)
{
    log ? setenv("PLUME_LOG", log, 1) : unsetenv("PLUME_LOG");
    format ? setenv("PLUME_LOG_FORMAT", format, 1) : unsetenv("PLUME_LOG_FORMAT");
    pl_log_init("tool");
}

static int redirect(void **state)
{
    char path[] = "/tmp/plume-test-log-XXXXXX";

    out_fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    unlink(path);
    saved_stderr = dup(STDERR_FILENO);
    return dup2(out_fd, STDERR_FILENO) < 0;
}

static int restore(void **state)
{
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    return close(out_fd);
}

static void test_init_levels(void **state)
{
    static const struct {
        const char *spec;
        enum pl_log_level most;
    } rows[] = {{NULL, PL_LOG_WARN},      {"", PL_LOG_WARN},        {"error", PL_LOG_ERROR},
                {"warn", PL_LOG_WARN},    {"info", PL_LOG_INFO},    {"debug", PL_LOG_DEBUG},
                {"loud", PL_LOG_WARN},    {"debu", PL_LOG_WARN},    {"debug:", PL_LOG_DEBUG},
                {"warning", PL_LOG_WARN}, {"info:net", PL_LOG_INFO}};

    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        begin(rows[i].spec, NULL);
        for (int level = PL_LOG_ERROR; level <= PL_LOG_DEBUG; level++)
            assert_int_equal(pl_log_enabled((enum pl_log_level)level, "net"),
                             level <= (int)rows[i].most);
    }
}

static void test_init_unknown(void **state)
{
    begin("verbose", NULL);
    assert_string_equal(written(), "tool: warning: PLUME_LOG is 'verbose', not error, warn, info "
                                   "or debug: warn is used\n");
    begin("verbose:net", "xml");
    assert_string_equal(written(),
                        "tool: warning: PLUME_LOG_FORMAT is 'xml', not json: messages are text\n"
                        "tool: warning: PLUME_LOG is 'verbose:net', not error, warn, info or "
                        "debug: warn is used\n");
    begin("warning", "");
    assert_string_equal(written(), "");
    setenv("RANK", "0", 1);
    begin("verbose", "xml");
    assert_string_equal(written(), "");
    unsetenv("RANK");
    setenv("SLURM_PROCID", "1", 1);
    begin("verbose", "xml");
    assert_string_equal(written(), "");
    unsetenv("SLURM_PROCID");
}

static void test_init_subsystems(void **state)
{
    begin("debug:net,child", NULL);
    assert_true(pl_log_enabled(PL_LOG_DEBUG, "net"));
    assert_true(pl_log_enabled(PL_LOG_DEBUG, "child"));
    assert_false(pl_log_enabled(PL_LOG_DEBUG, "chil"));
    assert_false(pl_log_enabled(PL_LOG_DEBUG, "ne"));
    assert_false(pl_log_enabled(PL_LOG_DEBUG, "run"));
    assert_true(pl_log_enabled(PL_LOG_INFO, "run")); /* the list limits debug only */
}

static void test_write_plain(void **state)
{
    begin("debug", NULL);
    errno = 7;
    pl_log_error("net", "bad '%s'", "x");
    assert_int_equal(errno, 7);
    assert_string_equal(written(), "tool: bad 'x'\n");
    pl_log_warn("net", "hm");
    assert_string_equal(written(), "tool: warning: hm\n");
    pl_log_info("net", "so");
    assert_string_equal(written(), "tool: info: so\n");
    pl_log_debug("net", "deep");
    assert_non_null(strstr(written(), "]: net: deep\n"));
}

static void test_write_hostile_bytes(void **state)
{
    begin(NULL, NULL);
    pl_log_error("net", "a\nb\x1b[31m\x7f\r");
    assert_string_equal(written(), "tool: a\\x0ab\\x1b[31m\\x7f\\x0d\n");
    /* C1's CSI in UTF-8 and as a byte, an override of the direction, a tag; and text that stays */
    pl_log_error("net", "\xc2\x9b[2J \x9b[2J \xe2\x80\xae \xf3\xa0\x81\x81 \xc3\xa9");
    assert_string_equal(written(), "tool: \\x9b[2J \\x9b[2J \\u{202e} \\u{e0041} \xc3\xa9\n");
}

static void test_write_disabled(void **state)
{
    begin("error", NULL);
    pl_log_warn("net", "quiet");
    pl_log_debug("net", "quiet");
    assert_string_equal(written(), "");
}

static void test_write_long(void **state)
{
    char word[9000];
    const char *text;

    memset(word, '\x01', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    begin(NULL, NULL);
    pl_log_error("net", "%s", word);
    text = written();
    assert_int_equal(text[strlen(text) - 1], '\n');
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
}

static void test_write_json(void **state)
{
    const char *text;

    begin("warn", "json");
    pl_log_error("net", "say \"hi\"\\ \n\x1b \xc3\xa9 \xff.");
    text = written();
    assert_true(strncmp(text, "{\"time\":", 8) == 0);
    assert_non_null(strstr(text, "\"program\":\"tool\",\"level\":\"error\",\"subsys\":\"net\""));
    /* Always JSON, so always UTF-8, whatever was logged. */
    assert_non_null(
        strstr(text, "\"text\":\"say \\\"hi\\\"\\\\ \\u000a\\u001b \xc3\xa9 \xef\xbf\xbd.\"}\n"));
    pl_log_error("net", "\xc2\x9b \xe2\x80\xae \xf3\xa0\x81\x81");
    assert_non_null(strstr(written(), "\"text\":\"\\u009b \\u202e \\udb40\\udc41\"}\n"));
}

static void test_limit_pass(void **state)
{
    const uint64_t minute = 60000000000ull;
    struct pl_log_limit limit = {0};
    uint64_t start = 7;
    unsigned left_out, n = 0;

    for (int i = 0; i < 1000; i++)
        n += pl_log_limit_pass(&limit, start + (uint64_t)i, &left_out) && left_out == 0;
    assert_int_equal(n, 5);
    assert_false(pl_log_limit_pass(&limit, start + minute - 1, &left_out));
    assert_true(pl_log_limit_pass(&limit, start + minute, &left_out));
    assert_int_equal(left_out, 1001 - 5); /* told once */
    assert_true(pl_log_limit_pass(&limit, start + minute, &left_out));
    assert_int_equal(left_out, 0);
    assert_true(pl_log_limit_pass(&limit, start + 3 * minute, &left_out));
    assert_int_equal(left_out, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_levels),
        cmocka_unit_test_setup_teardown(test_init_unknown, redirect, restore),
        cmocka_unit_test(test_init_subsystems),
        cmocka_unit_test(test_limit_pass),
        cmocka_unit_test_setup_teardown(test_write_plain, redirect, restore),
        cmocka_unit_test_setup_teardown(test_write_hostile_bytes, redirect, restore),
        cmocka_unit_test_setup_teardown(test_write_disabled, redirect, restore),
        cmocka_unit_test_setup_teardown(test_write_long, redirect, restore),
        cmocka_unit_test_setup_teardown(test_write_json, redirect, restore),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
