/* SPDX-License-Identifier: MIT */
/* Temporary files of writers that were killed, and of those that write still. */
#include "common/base/macros.h"
#include "runtime/engine/report/array_file.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define LIMIT_S 60

static char dir[64], path[96];

static int set_up(void **state)
{
    alarm(LIMIT_S);
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/p.jsonl", dir);
    return 0;
}

static int tear_down(void **state)
{
    alarm(0);
    unlink(path);
    assert_int_equal(rmdir(dir), 0); /* no temporary file is left */
    return 0;
}

/* Entries of the folder. */
static size_t entries(void)
{
    DIR *d = opendir(dir);
    size_t n = 0;

    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

static int begin(struct pl_array_file *f)
{
    int r = pl_array_file_open(f, path, true, 1, (size_t[]){1}, NULL);

    return r < 0 ? r : pl_array_file_row(f, &(double){0.5}, NULL);
}

static void write_all(void)
{
    struct pl_array_file f;

    assert_int_equal(begin(&f), 0);
    assert_int_equal(pl_array_file_finish(&f, NULL), 0);
    pl_array_file_close(&f);
}

static void test_open_removes_what_a_killed_writer_left(void **state)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        struct pl_array_file f;

        if (begin(&f) == 0)
            raise(SIGKILL);
        _exit(1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(entries(), 1);
    write_all();
    assert_int_equal(entries(), 1);
    assert_int_equal(access(path, F_OK), 0);
}

static void test_open_leaves_the_file_of_a_living_writer(void **state)
{
    int ready[2], go[2], status;
    pid_t child;
    char byte = 0;

    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(go), 0);
    child = fork();
    if (child == 0) {
        struct pl_array_file f;

        close(go[1]);
        if (begin(&f) < 0 || write(ready[1], &byte, 1) != 1 || read(go[0], &byte, 1) != 0)
            _exit(1);
        _exit(pl_array_file_finish(&f, NULL) < 0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    write_all();
    assert_int_equal(entries(), 2);
    close(go[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(entries(), 1);
    close(ready[0]);
    close(go[0]);
}

static void test_open_leaves_files_of_other_names(void **state)
{
    static const char *const names[] = {
        "p.jsonl.0123",
        "p.jsonl.0123456789abcdeg",
        "p.jsonl.0123456789abcdef0",
        "q.jsonl.0123456789abcdef",
        "p.jsonl0123456789abcdef",
        "p.jsonl-0123456789abcdef",
    };
    char other[PL_COUNT(names)][128], folder[128];

    snprintf(folder, sizeof(folder), "%s.0123456789abcdef", path);
    assert_int_equal(mkdir(folder, 0700), 0);
    for (size_t i = 0; i < PL_COUNT(names); i++) {
        FILE *f;

        snprintf(other[i], sizeof(other[i]), "%s/%s", dir, names[i]);
        f = fopen(other[i], "w");
        assert_non_null(f);
        fclose(f);
    }
    write_all();
    for (size_t i = 0; i < PL_COUNT(names); i++)
        assert_int_equal(unlink(other[i]), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_removes_what_a_killed_writer_left, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_open_leaves_the_file_of_a_living_writer, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_open_leaves_files_of_other_names, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
