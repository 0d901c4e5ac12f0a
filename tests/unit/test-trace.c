/* SPDX-License-Identifier: MIT */
#include "common/base/child.h"
#include "common/base/fs.h"
#include "common/base/trace.h"
#include "common/proto/json.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

static char top[] = "/tmp/plume-test-trace-XXXXXX";
static char path[256];

/* The objects of the trace so far; the caller frees the array. */
static json_t *lines(void)
{
    _cleanup_fclose_ FILE *f = fopen(path, "re");
    json_t *all = json_array();
    char line[1024];

    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        json_t *o = json_loads(line, 0, NULL);

        assert_non_null(o);
        json_array_append_new(all, o);
    }
    return all;
}

static json_t *last(json_t *all)
{
    return json_array_get(all, json_array_size(all) - 1);
}

/* The first test: nothing is written without PLUME_TRACE, nor through a link. */
static void test_trace_refused(void **state)
{
    char link[160];

    unsetenv("PLUME_TRACE");
    assert_int_equal(pl_trace_init("test"), 0);
    assert_false(pl_trace_enabled());
    pl_trace("send", "x", NULL, 1);
    snprintf(link, sizeof(link), "%s/link", top);
    setenv("PLUME_TRACE", link, 1);
    snprintf(path, sizeof(path), "%s.%d", link, (int)getpid());
    assert_int_equal(symlink("/tmp/plume-no-such-file", path), 0);
    assert_true(pl_trace_init("test") < 0);
    assert_false(pl_trace_enabled());
}

static void test_trace_lines(void **state)
{
    static const char message[] =
        "{\"secret\":\"hunter2\", \"type\": \"jo\\\\in\", \"nonce\":\"abcd\"}";
    char base[64];
    struct stat st;

    snprintf(base, sizeof(base), "%s/trace", top);
    snprintf(path, sizeof(path), "%s.%d", base, (int)getpid());
    setenv("PLUME_TRACE", base, 1);
    assert_int_equal(pl_trace_init("test"), 0);
    assert_true(pl_trace_enabled());
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    errno = 77;
    pl_trace("collective", "all\"reduce\n\x1b", "shm", 12);
    pl_trace("fork", "program", NULL, -1);
    pl_trace_line("send", "hub", message, sizeof(message) - 1);
    pl_trace_line("send", "hub", "{}", 2);
    pl_trace_line("send", "hub", "{\"type\":\"open", 13);
    assert_int_equal(errno, 77);

    json_t *all = lines(), *o = json_array_get(all, 0);

    assert_int_equal(json_array_size(all), 5);
    assert_true(json_is_real(json_object_get(o, "t")));
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), getpid());
    assert_string_equal(pl_json_string(o, "program"), "test");
    assert_string_equal(pl_json_string(o, "event"), "collective");
    assert_string_equal(pl_json_string(o, "name"), "all?reduce??");
    assert_string_equal(pl_json_string(o, "peer"), "shm");
    assert_int_equal(json_integer_value(json_object_get(o, "n")), 12);
    o = json_array_get(all, 1);
    assert_null(json_object_get(o, "peer"));
    assert_null(json_object_get(o, "n"));
    o = json_array_get(all, 2);
    assert_string_equal(pl_json_string(o, "name"), "jo??in");
    assert_int_equal(json_integer_value(json_object_get(o, "n")), (int)sizeof(message) - 1);
    assert_string_equal(pl_json_string(last(all), "name"), "?");
    json_decref(all);
}

/* A child's program is named; its arguments and variables are not. */
static void test_trace_child(void **state)
{
    const char *const argv[] = {"sh", "-c", "test $SECRET = hunter2", NULL};
    char *env[] = {"SECRET=hunter2", "PATH=/usr/bin:/bin", NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *text = NULL;
    struct pl_error err = {0};
    json_t *all, *o = NULL, *each;
    size_t len, i;

    assert_int_equal(pl_child_run(argv, env, 10000, &child, &err), 0);
    assert_int_equal(child.status, 0);
    all = lines();
    json_array_foreach (all, i, each)
        if (strcmp(pl_json_string(each, "event"), "fork") == 0)
            o = each;
    assert_non_null(o);
    assert_string_equal(pl_json_string(o, "name"), "sh");
    assert_true(json_integer_value(json_object_get(o, "n")) > 0);
    json_decref(all);
    assert_int_equal(pl_file_read(path, 1 << 20, &text, &len, &err), 0);
    assert_null(strstr(text, "hunter2"));
}

static int trace_in_child(void *ctx, int fd)
{
    pl_trace("fork", "in-child", NULL, getpid());
    return dprintf(fd, "%d", (int)getpid()) > 0 ? 0 : 1;
}

/* A child that goes on without exec writes a file of its own. */
static void test_trace_after_fork(void **state)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    _cleanup_free_ char *text = NULL, *own = NULL;
    char other[160];
    size_t len;

    assert_int_equal(pl_child_call(trace_in_child, NULL, 10000, &child, NULL), 0);
    snprintf(other, sizeof(other), "%s/trace.%s", top, pl_buf_str(&child.out));
    assert_int_equal(pl_file_read(other, 1 << 20, &text, &len, NULL), 0);
    assert_non_null(strstr(text, "in-child"));
    assert_int_equal(pl_file_read(path, 1 << 20, &own, &len, NULL), 0);
    assert_null(strstr(own, "in-child"));
}

static int make_folder(void **state)
{
    return mkdtemp(top) ? 0 : -1;
}

static int remove_folder(void **state)
{
    _cleanup_(pl_child_finish) struct pl_child child = {0};

    return pl_child_run((const char *const[]){"rm", "-rf", top, NULL}, NULL, 10000, &child, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_refused),
        cmocka_unit_test(test_trace_lines),
        cmocka_unit_test(test_trace_child),
        cmocka_unit_test(test_trace_after_fork),
    };

    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
