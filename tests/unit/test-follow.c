/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "launcher/plstat/follow.h"
#include "launcher/plstat/lines.h"
#include "tests/lib/tmpdir.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cmocka.h>

/* The file system of the folders. */
static long fs_type;
int __wrap_fstatfs(int fd, struct statfs *ret);
int __wrap_fstatfs64(int fd, struct statfs *ret);

int __wrap_fstatfs(int fd, struct statfs *ret)
{
    *ret = (struct statfs){.f_type = fs_type};
    return 0;
}

int __wrap_fstatfs64(int fd, struct statfs *ret)
{
    return __wrap_fstatfs(fd, ret);
}

struct fixture {
    char dir[64];
    struct pl_buf out, notes;
    struct pl_follow *follow;
};

static int take(void *ctx, const char *data, size_t len, struct pl_error *err)
{
    struct fixture *t = ctx;

    return pl_buf_add(&t->out, data, len);
}

static void take_note(void *ctx, const char *text)
{
    struct fixture *t = ctx;

    pl_buf_adds(&t->notes, strrchr(text, '/') + 1);
    pl_buf_addc(&t->notes, '\n');
}

static void start_with(struct fixture *t, struct pl_follow_options options)
{
    const struct pl_follow_ops ops = {take, take_note, t};
    struct pl_error err = {0};

    assert_int_equal(pl_follow_create(t->dir, &options, &ops, &t->follow, &err), 0);
}

static void start(struct fixture *t)
{
    start_with(t, (struct pl_follow_options){"all", true, true, -1, false});
}

static int set_up(void **state)
{
    struct fixture *t = calloc(1, sizeof(*t));

    *state = t;
    return t ? tmpdir_make(t->dir, sizeof(t->dir)) : -1;
}

static int tear_down(void **state)
{
    struct fixture *t = *state;
    int r = tmpdir_remove(t->dir);

    pl_follow_destroy(t->follow);
    pl_buf_finish(&t->out);
    pl_buf_finish(&t->notes);
    free(t);
    return r;
}

static void put(struct fixture *t, const char *name, int flags, const char *data, size_t len)
{
    _cleanup_free_ char *path = pl_path_join(t->dir, name);
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);

    assert_true(fd >= 0);
    assert_int_equal(pl_write_all(fd, data, len), 0);
}

static void add(struct fixture *t, const char *name, const char *text)
{
    put(t, name, O_APPEND, text, strlen(text));
}

static void replace(struct fixture *t, const char *name, const char *text)
{
    put(t, name, O_TRUNC, text, strlen(text));
}

static void move(struct fixture *t, const char *from, const char *to)
{
    _cleanup_free_ char *a = pl_path_join(t->dir, from), *b = pl_path_join(t->dir, to);

    assert_int_equal(rename(a, b), 0);
}

/* All passes until nothing is left; what they wrote. */
static const char *seen(struct fixture *t)
{
    bool any, more = true;
    struct pl_error err = {0};

    t->out.len = 0;
    pl_buf_adds(&t->out, "");
    while (more)
        assert_int_equal(pl_follow_pass(t->follow, &any, &more, &err), 0);
    return pl_buf_str(&t->out);
}

static const char *rest(struct fixture *t)
{
    struct pl_error err = {0};

    t->out.len = 0;
    pl_buf_adds(&t->out, "");
    assert_int_equal(pl_follow_end(t->follow, &err), 0);
    return pl_buf_str(&t->out);
}

/* Both. */
static const char *all(struct fixture *t)
{
    _cleanup_free_ char *first = strdup(seen(t));
    _cleanup_free_ char *last = strdup(rest(t));

    t->out.len = 0;
    pl_buf_adds(&t->out, first);
    pl_buf_adds(&t->out, last);
    return pl_buf_str(&t->out);
}

static const char *notes(struct fixture *t)
{
    return pl_buf_str(&t->notes);
}

static void test_follow_pass_in_which_lines_grow(void **state)
{
    struct fixture *t = *state;

    start(t);
    assert_string_equal(seen(t), "");
    pl_follow_label(t->follow);
    add(t, "rank-0.out", "one\ntw");
    add(t, "rank-0.err", "bad\n");
    add(t, "rank-12.out", "twelve\n");
    add(t, "rank-2.out", "two\n");
    assert_string_equal(seen(t), "0: one\n0: bad\n2: two\n12: twelve\n");
    add(t, "rank-2.out", "2\n");
    add(t, "rank-0.out", "o\n\nlast");
    assert_string_equal(seen(t), "0: two\n0: \n2: 2\n");
    assert_string_equal(seen(t), "");
    assert_string_equal(rest(t), "0: last\n");
    assert_string_equal(rest(t), "");
    assert_int_equal(pl_follow_n_files(t->follow), 4);
    assert_true(pl_follow_several(t->follow));
    assert_string_equal(notes(t), "");
}

static void test_follow_pass_of_a_folder_that_comes_later(void **state)
{
    struct fixture *t = *state;
    _cleanup_free_ char *inner = pl_path_join(t->dir, "attempt-0");
    const struct pl_follow_ops ops = {take, take_note, t};
    struct pl_follow_options options = {"all", true, true, -1, false};
    struct pl_error err = {0};

    assert_int_equal(pl_follow_create(inner, &options, &ops, &t->follow, &err), 0);
    assert_false(pl_follow_look(t->follow));
    assert_string_equal(seen(t), "");
    assert_int_equal(mkdir(inner, 0700), 0);
    add(t, "attempt-0/rank-0.out", "hello\n");
    assert_true(pl_follow_look(t->follow));
    assert_string_equal(seen(t), "hello\n");
}

static void test_follow_pass_of_chosen_files(void **state)
{
    struct fixture *t = *state;
    static const char *const names[] = {"rank-0.out",
                                        "rank-1.out",
                                        "rank-2.out",
                                        "rank-3.out",
                                        "rank-2.err",
                                        "rank-02.out",
                                        "rank-.out",
                                        "rank-2.outx",
                                        "rank-2.out.1",
                                        "arank-2.out",
                                        "rank-2",
                                        "rank--2.out",
                                        "rank-99999999999999.out"};

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        add(t, names[i], names[i]);
        add(t, names[i], "\n");
    }
    start_with(t, (struct pl_follow_options){"1-2", true, false, -1, false});
    assert_string_equal(seen(t), "rank-1.out\nrank-2.out\n");
    pl_follow_destroy(PL_TAKE(t->follow));
    start_with(t, (struct pl_follow_options){"all", false, true, -1, false});
    assert_string_equal(seen(t), "rank-2.err\n");
}

static void test_follow_pass_after_a_change_of_the_file(void **state)
{
    struct fixture *t = *state;

    start(t);
    add(t, "rank-0.out", "a first line\nand a part");
    assert_string_equal(seen(t), "a first line\n");
    replace(t, "rank-0.out", "short\n");
    assert_string_equal(seen(t), "and a part\nshort\n");
    assert_string_equal(notes(t), "rank-0.out was truncated\n");
    replace(t, "rank-0.out", "Short\nand longer than before\n");
    assert_string_equal(seen(t), "Short\nand longer than before\n");
    assert_string_equal(notes(t), "rank-0.out was truncated\nrank-0.out was written anew\n");
    replace(t, "rank-0.out", "");
    assert_string_equal(seen(t), "");
    add(t, "rank-0.out", "again\n");
    assert_string_equal(seen(t), "again\n");
    /* It is moved away and written to there, and then another one takes its place. */
    move(t, "rank-0.out", "rank-0.out.1");
    add(t, "rank-0.out.1", "in the old file\n");
    assert_string_equal(seen(t), "in the old file\n");
    add(t, "rank-0.out.1", "more\nunfinished");
    add(t, "rank-0.out", "in the new file\n");
    assert_string_equal(seen(t), "more\nunfinished\nin the new file\n");
    add(t, "rank-0.out.1", "nobody looks here\n");
    assert_string_equal(seen(t), "");
}

static void test_follow_pass_with_few_descriptors(void **state)
{
    struct fixture *t = *state;
    struct rlimit limit = {.rlim_cur = 70, .rlim_max = 4096}, before;
    char name[32];

    getrlimit(RLIMIT_NOFILE, &before);
    limit.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    start(t);
    for (int round = 0; round < 3; round++) {
        size_t lines = 0;

        for (int i = 0; i < 500; i++) {
            snprintf(name, sizeof(name), "rank-%d.out", i);
            add(t, name, "line\n");
        }
        for (const char *s = seen(t); *s; s++)
            lines += *s == '\n';
        assert_int_equal(lines, 500);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    assert_string_equal(notes(t), "");
    /* Of a file for which none was left, the rest is not read after it was moved. */
    add(t, "rank-499.out", "rest\n");
    move(t, "rank-499.out", "other");
    add(t, "rank-499.out", "new\n");
    assert_string_equal(seen(t), "new\n");
}

static void test_follow_pass_of_bytes_that_are_no_text(void **state)
{
    struct fixture *t = *state;
    static const char bytes[] = "\033[31mred\0\x80\xff\a\tcell\xc3\xa9\xe2\x80\xae\n";

    start(t);
    put(t, "rank-0.out", 0, bytes, sizeof(bytes) - 1);
    assert_string_equal(seen(t), "\\e[31mred\\x00\\x80\\xff\\x07\tcell\xc3\xa9\\u{202e}\n");
}

/* Another host's later bytes may be there before its earlier ones, which read as zeros. */
static void test_follow_pass_of_a_hole_on_nfs(void **state)
{
    struct fixture *t = *state;
    _cleanup_free_ char *path = pl_path_join(t->dir, "rank-0.out");
    _cleanup_close_ int fd = -EBADF;
    bool any, more;

    fs_type = NFS_SUPER_MAGIC;
    start(t);
    pl_follow_label(t->follow); /* else a part of a line is shown after a second */
    add(t, "rank-0.out", "one\n");
    fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "three\n", 6, 8), 6);
    assert_string_equal(seen(t), "0: one\n");
    assert_string_equal(seen(t), "");
    assert_int_equal(pwrite(fd, "two\n", 4, 4), 4);
    assert_string_equal(seen(t), "0: two\n0: three\n");
    /* Zeros that stay are the program's own. */
    assert_int_equal(pwrite(fd, "x\0y\n", 4, 14), 4);
    for (uint64_t end = pl_now_ns() + 60000000000u; pl_now_ns() < end;) {
        t->out.len = 0;
        assert_int_equal(pl_follow_pass(t->follow, &any, &more, NULL), 0);
        if (any && t->out.len)
            break;
    }
    assert_string_equal(pl_buf_str(&t->out), "0: x\\x00y\n");
    fs_type = 0;
}

static void test_follow_pass_of_carriage_returns(void **state)
{
    struct fixture *t = *state;

    start(t);
    add(t, "rank-0.out", "dos\r\n\r\nunix\n\rbar 1\rbar 2\r\nx\r");
    assert_string_equal(seen(t), "dos\n\nunix\nbar 1\nbar 2\nx\n");
    add(t, "rank-0.out", "\ny\r");
    assert_string_equal(seen(t), "y\n");
    add(t, "rank-0.out", "z\n");
    assert_string_equal(seen(t), "z\n");
}

static void test_follow_pass_of_long_lines(void **state)
{
    struct fixture *t = *state;
    size_t len = 3 * PL_LINES_MAX + 7;
    _cleanup_free_ char *line = malloc(len + 2);
    const char *s;

    /* Characters of three bytes, which no part cuts. */
    for (size_t i = 0; i < len; i++)
        line[i] = "\xe2\x82\xac"[i % 3];
    len -= len % 3;
    memcpy(line + len, "\n", 2);
    start(t);
    add(t, "rank-0.out", line);
    assert_string_equal(seen(t), line);
    /* Another rank breaks it, and then the label stands again. */
    pl_follow_label(t->follow);
    line[len] = '\0';
    add(t, "rank-0.out", line);
    add(t, "rank-1.out", "other\n");
    s = seen(t);
    assert_memory_equal(s, "0: \xe2\x82\xac", 6);
    s = strstr(s, "other\n");
    assert_non_null(s);
    assert_memory_equal(s - 4, "\n1: ", 4);
    add(t, "rank-0.out", "end\n");
    /* Its last part was the last one that was written: it goes on there. */
    assert_string_equal(seen(t), "\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac"
                                 "end\n");
}

static void test_follow_pass_of_last_lines(void **state)
{
    struct fixture *t = *state;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};

    for (int i = 0; i < 40000; i++)
        pl_buf_addf(&text, "line %d\n", i);
    pl_buf_adds(&text, "part");
    add(t, "rank-0.out", pl_buf_str(&text));
    add(t, "rank-1.out", "a\r\nb\r\n");
    start_with(t, (struct pl_follow_options){"0", true, true, 2, false});
    assert_string_equal(seen(t), "line 39999\n");
    add(t, "rank-0.out", "ed\nnext\n");
    assert_string_equal(seen(t), "parted\nnext\n");
    pl_follow_destroy(PL_TAKE(t->follow));
    start_with(t, (struct pl_follow_options){"1", true, true, 1, false});
    assert_string_equal(seen(t), "b\n");
    pl_follow_destroy(PL_TAKE(t->follow));
    start_with(t, (struct pl_follow_options){"1", true, true, 3, false});
    assert_string_equal(seen(t), "a\nb\n");
    pl_follow_destroy(PL_TAKE(t->follow));
    start_with(t, (struct pl_follow_options){"0", true, true, 20000, false});
    assert_memory_equal(seen(t), "line 20002\n", 11);
    pl_follow_destroy(PL_TAKE(t->follow));
    start_with(t, (struct pl_follow_options){"all", true, true, 0, false});
    assert_string_equal(seen(t), "");
    add(t, "rank-1.out", "c\n");
    add(t, "rank-2.out", "new\n");
    assert_string_equal(seen(t), "c\nnew\n");
}

/* A bar that begins with a carriage return, and what a chunk cuts. */
static void test_follow_pass_of_last_lines_of_bars(void **state)
{
    static const struct {
        int64_t lines;
        const char *text, *seen;
    } cases[] = {
        {1, "a\n\r", "a\n"},
        {2, "a\n\rb\n", "a\nb\n"},
        {3, "a\n\r1 %\r2 %", "a\n1 %\n2 %\n"},
        {2, "a\rb\r\n\r", "a\nb\n"},
        {2, "a\n\r\r\n", "a\n\n"},
        {1, "\r", ""},
    };
    struct fixture *t = *state;
    _cleanup_free_ char *line = malloc(65540);

    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        replace(t, "rank-0.out", cases[i].text);
        start_with(t, (struct pl_follow_options){"0", true, true, cases[i].lines, false});
        assert_string_equal(all(t), cases[i].seen);
        pl_follow_destroy(PL_TAKE(t->follow));
    }
    for (size_t len = 65530; len < 65540; len++) {
        memset(line, 'x', len);
        memcpy(line + len - 2, "\n", 2);
        replace(t, "rank-0.out", "a\r\n");
        add(t, "rank-0.out", line);
        start_with(t, (struct pl_follow_options){"0", true, true, 2, false});
        assert_memory_equal(seen(t), "a\nxxx", 5);
        pl_follow_destroy(PL_TAKE(t->follow));
    }
}

static void test_follow_pass_of_whole_files(void **state)
{
    struct fixture *t = *state;
    size_t size = 1 << 20;
    _cleanup_free_ char *text = malloc(size + 1);

    for (size_t i = 0; i < size; i++)
        text[i] = i % 64 == 63 ? '\n' : 'x';
    text[size] = '\0';
    add(t, "rank-0.out", text);
    add(t, "rank-0.out", "no newline");
    add(t, "rank-1.out", "one\n");
    start_with(t, (struct pl_follow_options){"all", true, true, -1, true});
    seen(t);
    assert_int_equal(t->out.len, size + strlen("no newline\none\n"));
    assert_string_equal(pl_buf_str(&t->out) + size, "no newline\none\n");
}

static void test_follow_pass_of_what_is_no_file(void **state)
{
    struct fixture *t = *state;
    _cleanup_free_ char *fifo = pl_path_join(t->dir, "rank-0.out"),
                        *dir = pl_path_join(t->dir, "rank-1.out");

    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    add(t, "rank-2.out", "file\n");
    start(t);
    assert_string_equal(seen(t), "file\n");
    assert_string_equal(seen(t), "");
    assert_string_equal(notes(t), "rank-0.out is no regular file\nrank-1.out is no regular file\n");
    assert_true(pl_follow_unreadable(t->follow));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_follow_pass_in_which_lines_grow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_a_folder_that_comes_later, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_chosen_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_after_a_change_of_the_file, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_with_few_descriptors, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_bytes_that_are_no_text, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_a_hole_on_nfs, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_carriage_returns, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_long_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_last_lines, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_last_lines_of_bars, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_whole_files, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_follow_pass_of_what_is_no_file, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
