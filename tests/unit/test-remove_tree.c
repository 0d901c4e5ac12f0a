/* SPDX-License-Identifier: MIT */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "common/base/macros.h"
#include "common/base/remove_tree.h"
#include "tests/lib/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static char top[64];
static int top_fd;
static bool racing;

static void write_file(const char *path)
{
    int fd = openat(top_fd, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    close(fd);
}

static void make(const char *path)
{
    assert_int_equal(mkdirat(top_fd, path, 0700), 0);
}

static bool exists(const char *path)
{
    return faccessat(top_fd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static int begin(void **state)
{
    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    top_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return top_fd < 0 ? -1 : 0;
}

static int end(void **state)
{
    close(top_fd);
    return tmpdir_remove(top);
}

static void test_remove_tree_follows_no_link(void **state)
{
    make("victim");
    write_file("victim/file");
    make("tree");
    make("tree/folder");
    write_file("tree/folder/file");
    assert_int_equal(symlinkat("../../victim", top_fd, "tree/folder/link"), 0);
    assert_int_equal(symlinkat("../victim/file", top_fd, "tree/link"), 0);
    assert_int_equal(pl_remove_tree(top_fd, "tree"), 0);
    assert_false(exists("tree"));
    assert_true(exists("victim/file"));
    assert_int_equal(symlinkat("victim", top_fd, "link"), 0);
    assert_int_equal(pl_remove_tree(top_fd, "link"), 0);
    assert_false(exists("link"));
    assert_true(exists("victim/file"));
    assert_int_equal(pl_remove_tree(top_fd, "none"), -ENOENT);
}

/* Somebody puts a link in the place of a folder between the two looks at it. */
int unlinkat(int dir_fd, const char *name, int flags)
{
    int r = (int)syscall(SYS_unlinkat, dir_fd, name, flags), code = errno;

    if (racing && r < 0 && code == EISDIR && strcmp(name, "folder") == 0) {
        assert_int_equal(renameat2(top_fd, "swap", dir_fd, name, RENAME_EXCHANGE), 0);
        errno = code;
    }
    return r;
}

static void test_remove_tree_race(void **state)
{
    make("victim");
    write_file("victim/file");
    assert_int_equal(symlinkat("../victim", top_fd, "swap"), 0);
    make("tree");
    make("tree/folder");
    racing = true;
    assert_true(pl_remove_tree(top_fd, "tree") < 0);
    racing = false;
    assert_true(exists("victim/file"));
    assert_true(exists("tree/folder")); /* the link */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_remove_tree_follows_no_link, begin, end),
        cmocka_unit_test_setup_teardown(test_remove_tree_race, begin, end),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
