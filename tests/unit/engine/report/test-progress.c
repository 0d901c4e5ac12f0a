/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/progress.h"

#include "common/base/fs.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>

#include <cmocka.h>

static const struct pl_progress_state half = {
    .epoch = 3,
    .epochs = 12,
    .done = 142,
    .total = 284,
    .loss = 0.21344,
    .samples = 12400,
    .seconds = 10,
};

/* Columns of UTF-8 text without combining characters. */
static size_t columns(const char *s)
{
    size_t n = 0;

    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

static void test_line_says_all(void **state)
{
    char buf[512];

    (void)state;
    assert_string_equal(pl_progress_line(&half, 80, false, buf, sizeof(buf)),
                        "epoch 3/12  50% ==========          142/284  loss 0.2134  1.24k samples/s"
                        "  0:10");
    assert_non_null(strstr(pl_progress_line(&half, 100, true, buf, sizeof(buf)), " ━━━━"));
}

static void test_line_fits(void **state)
{
    struct pl_progress_state s = half;
    char buf[512];

    (void)state;
    for (unsigned width = 0; width < 300; width++)
        for (int utf8 = 0; utf8 < 2; utf8++) {
            s.seconds = width % 3 ? 1e-9 : 1e7; /* long numbers, too */
            pl_progress_line(&s, width, utf8, buf, sizeof(buf));
            assert_true(columns(buf) <= (width ? width - 1 : 0));
        }
}

static void test_line_of_the_beginning(void **state)
{
    struct pl_progress_state s = {.epoch = 1, .total = 10, .loss = NAN};
    char buf[512];

    (void)state;
    assert_string_equal(pl_progress_line(&s, 30, false, buf, sizeof(buf)),
                        "epoch 1   0%          0/10  -");
    s.total = 0; /* unknown number */
    assert_string_equal(pl_progress_line(&s, 20, false, buf, sizeof(buf)), "epoch 1   0% 0/0  -");
}

static void test_show_on_no_terminal(void **state)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct pl_progress p;

    (void)state;
    pl_progress_init(&p, out, true);
    pl_progress_show(&p, &half);
    pl_progress_clear(&p);
    fclose(out);
    assert_int_equal(len, 0);
    free(text);
}

static void test_show_on_a_terminal(void **state)
{
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    struct pl_progress_state s = half;
    struct pl_progress p;
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    const char *want = "\repoch 3/12  50% 142/284  0:10\033[K\r\033[K";
    char text[1024] = "";
    size_t have = 0;
    FILE *out;

    (void)state;
    assert_true(master >= 0);
    assert_int_equal(grantpt(master) | unlockpt(master), 0);
    out = fopen(ptsname(master), "w");
    assert_non_null(out);
    assert_int_equal(ioctl(fileno(out), TIOCSWINSZ, &size), 0);
    assert_int_equal(setenv("TERM", "vt100", 1), 0);
    pl_progress_init(&p, out, false);
    pl_progress_show(&p, &s);
    s.done++; /* too soon again on any machine: nothing is drawn */
    p.drawn_ns = pl_now_ns() + 60000000000u;
    pl_progress_show(&p, &s);
    pl_progress_clear(&p);
    /* A terminal hands on what was written in pieces. */
    while (have < strlen(want)) {
        struct pollfd fd = {.fd = master, .events = POLLIN};
        ssize_t n;

        assert_int_equal(poll(&fd, 1, 20000), 1);
        n = read(master, text + have, sizeof(text) - 1 - have);
        assert_true(n > 0);
        have += (size_t)n;
    }
    assert_string_equal(text, want);
    assert_int_equal(setenv("TERM", "dumb", 1), 0);
    pl_progress_init(&p, out, false);
    assert_null(p.out);
    fclose(out);
    close(master);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line_says_all),         cmocka_unit_test(test_line_fits),
        cmocka_unit_test(test_line_of_the_beginning), cmocka_unit_test(test_show_on_no_terminal),
        cmocka_unit_test(test_show_on_a_terminal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
