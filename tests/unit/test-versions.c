/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/base/strv.h"
#include "common/base/versions.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <string.h>

static void release_is(const char *text, const char *expected)
{
    char release[16];

    pl_versions_release(text, release, sizeof(release));
    assert_string_equal(release, expected);
}

static void test_release(void **state)
{
    release_is("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15\n",
               "535.104.05");
    release_is(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build\n",
        "550.54.15");
    release_is("2.18.3", "2.18.3");
    release_is("2", "");
    release_is("no . number 7 1a.2 .5", "");
    release_is("", "");
    release_is("1111111111.2222222222", "1111111111.2222");
}

static int write_file(const char *path, const char *text)
{
    _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);

    return fd < 0 ? -errno : pl_write_all(fd, text, strlen(text));
}

static void put(const char *root, const char *path, const char *text, const char *link)
{
    _cleanup_free_ char *full = pl_strf("%s%s", root, path), *folder = full ? strdup(full) : NULL;

    assert_non_null(folder);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(pl_mkdir_p(folder, 0700, NULL), 0);
    if (link)
        assert_int_equal(symlink(link, full), 0);
    else
        assert_int_equal(write_file(full, text), 0);
}

static void test_read(void **state)
{
    struct pl_versions v;
    char root[64];

    assert_int_equal(tmpdir_make(root, sizeof(root)), 0);
    pl_versions_read(root, NULL, &v);
    assert_string_equal(v.driver, "");
    assert_string_equal(v.nccl, "");
    assert_string_equal(v.mpi, "");
    put(root, "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n", NULL);
    put(root, "/usr/lib64/libnccl.so.2.18.3", "", NULL);
    put(root, "/usr/lib64/libnccl.so.2", NULL, "libnccl.so.2.18.3");
    put(root, "/usr/lib64/libmpi.so.40", "", NULL); /* no release in its name */
    put(root, "/opt/mpi/lib/libmpi.so.40.30.4", "", NULL);
    put(root, "/opt/mpi/lib/libmpi.so.40", NULL, "libmpi.so.40.30.4");
    pl_versions_read(root, NULL, &v);
    assert_string_equal(v.driver, "535.104.05");
    assert_string_equal(v.nccl, "2.18.3");
    assert_string_equal(v.mpi, "");
    put(root, "/own/libnccl.so.2", NULL, "libnccl.so.2.20.5");
    put(root, "/own/libnccl.so.2.20.5", "", NULL);
    pl_versions_read(root, "/nowhere::relative:/own:/opt/mpi/lib", &v);
    assert_string_equal(v.nccl, "2.20.5");
    assert_string_equal(v.mpi, "libmpi.so.40.30.4");
    assert_int_equal(tmpdir_remove(root), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release),
        cmocka_unit_test(test_read),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
