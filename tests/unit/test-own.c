/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/base/own.h"
#include "common/base/shared_open.h"
#include "tests/lib/tmpdir.h"

#include <endian.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>

#include <cmocka.h>

static char top[64];
static int top_fd;

static int begin(void **state)
{
    umask(022);
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

static mode_t mode_of(int fd)
{
    struct stat st;

    assert_int_equal(fstat(fd, &st), 0);
    return st.st_mode & 07777;
}

/* Gives user 1234 all rights by a list of POSIX.1e, as setfacl(1) does. False: no lists here. */
static bool give(int fd, const char *which)
{
    struct entry {
        uint16_t tag, perm;
        uint32_t id;
    } __attribute__((packed));
    struct {
        uint32_t version;
        struct entry entries[5];
    } __attribute__((packed)) list = {htole32(2),
                                      {{htole16(1), htole16(7), UINT32_MAX},
                                       {htole16(2), htole16(7), htole32(1234)},
                                       {htole16(4), htole16(5), UINT32_MAX},
                                       {htole16(16), htole16(7), UINT32_MAX},
                                       {htole16(32), htole16(5), UINT32_MAX}}};

    if (fsetxattr(fd, which, &list, sizeof(list), 0) == 0)
        return true;
    assert_true(errno == ENOTSUP || errno == EPERM);
    print_message("# skipped: no access control lists in /tmp\n");
    return false;
}

static void test_folder_open_with_a_list(void **state)
{
    _cleanup_close_ int fd = -EBADF;
    struct pl_error err = {0};

    assert_int_equal(pl_own_folder_open(AT_FDCWD, top, &fd, &err), 0);
    close(PL_TAKE_FD(fd));
    if (!give(top_fd, "system.posix_acl_access"))
        return;
    assert_int_equal(pl_own_folder_open(AT_FDCWD, top, &fd, &err), -EPERM);
    assert_non_null(strstr(err.text, "others may write to it: chmod go-w"));
    assert_int_equal(chmod(top, 0755), 0); /* as the message says: it sets the list's mask */
    assert_int_equal(pl_own_folder_open(AT_FDCWD, top, &fd, &err), 0);
}

/* A list of the parent's for what is made in it takes the place of the umask. */
static void test_made_below_a_list(void **state)
{
    _cleanup_close_ int folder = -EBADF, file = -EBADF;
    struct pl_error err = {0};

    if (!give(top_fd, "system.posix_acl_default"))
        return;
    assert_int_equal(pl_own_folder_make(top_fd, "folder", 0777, &folder, &err), 0);
    assert_int_equal(mode_of(folder) & PL_OWN_MASK, 0);
    assert_int_equal(
        pl_own_file_open(folder, "file", O_WRONLY | O_CREAT | O_EXCL, 0666, &file, &err), 0);
    assert_int_equal(mode_of(file) & PL_OWN_MASK, 0);
}

/* Whatever has the name of a file: none is followed, waited for, or taken. */
static void test_file_open_what_is_no_file(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    _cleanup_close_ int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -EBADF;
    static const struct {
        const char *name;
        int reading, writing;
    } rows[] = {{"fifo", -EINVAL, -ENXIO},  {"folder", -EINVAL, -EISDIR},
                {"link", -ELOOP, -ELOOP},   {"device", -ELOOP, -ELOOP},
                {"socket", -ENXIO, -ENXIO}, {"none", -ENOENT, -ENOENT}};
    struct pl_error err = {0};

    assert_int_equal(mkfifoat(top_fd, "fifo", 0600), 0);
    assert_int_equal(mkdirat(top_fd, "folder", 0700), 0);
    assert_int_equal(symlinkat("file", top_fd, "link"), 0);
    assert_int_equal(symlinkat("/dev/zero", top_fd, "device"), 0);
    assert_true(snprintf(at.sun_path, sizeof(at.sun_path), "%s/socket", top) > 0);
    assert_int_equal(bind(sock, (struct sockaddr *)&at, sizeof(at)), 0);
    for (size_t i = 0; i < PL_COUNT(rows); i++) {
        assert_int_equal(pl_own_file_open(top_fd, rows[i].name, O_RDONLY, 0, &fd, &err),
                         rows[i].reading);
        assert_non_null(strstr(err.text, rows[i].name));
        assert_int_equal(pl_own_file_open(top_fd, rows[i].name, O_WRONLY, 0, &fd, &err),
                         rows[i].writing);
    }
}

static void test_file_open_checks_before_it_empties(void **state)
{
    _cleanup_close_ int fd = openat(top_fd, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600),
                        again = -EBADF;
    struct pl_error err = {0};
    struct stat st;

    assert_true(fd >= 0);
    assert_int_equal(pl_write_all(fd, "text", 4), 0);
    assert_int_equal(fchmod(fd, 0620), 0);
    assert_int_equal(pl_own_file_open(top_fd, "file", O_WRONLY | O_TRUNC, 0, &again, &err), -EPERM);
    assert_non_null(strstr(err.text, "mode 0620"));
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(fchmod(fd, 0640), 0);
    assert_int_equal(pl_own_file_open(top_fd, "file", O_WRONLY | O_TRUNC, 0, &again, &err), 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(st.st_size, 0);
}

/* ---- what others may have put there ---- */

#define OTHER 65533

/* Of another user, with a file of theirs, a link of theirs to it, one to a file of ours, one to a
 * device, and a pipe. */
static int make_foreign(void)
{
    int fd;

    assert_int_equal(mkdirat(top_fd, "theirs", 0755), 0);
    fd = openat(top_fd, "theirs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pl_file_write_at(fd, "file", "theirs", 6, 0644, false, NULL), 0);
    assert_int_equal(pl_file_write_at(top_fd, "secret", "ours", 4, 0600, false, NULL), 0);
    assert_int_equal(symlinkat("file", fd, "link"), 0);
    assert_int_equal(symlinkat("../secret", fd, "trap"), 0);
    assert_int_equal(symlinkat("../secret", fd, "our-link"), 0);
    assert_int_equal(symlinkat("/dev/zero", fd, "device"), 0);
    assert_int_equal(mkfifoat(fd, "pipe", 0666), 0);
    assert_int_equal(fchownat(fd, "file", OTHER, OTHER, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(fchownat(fd, "link", OTHER, OTHER, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(fchownat(fd, "trap", OTHER, OTHER, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(fchownat(fd, "device", OTHER, OTHER, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(fchown(fd, OTHER, OTHER), 0);
    return fd;
}

static void expect_shared(int folder, const char *name, const char *content)
{
    int fd = pl_shared_open_at(folder, name);
    char data[16] = "";

    if (fd < 0)
        fail_msg("%s: %s", name, strerror(-fd));
    assert_true(read(fd, data, sizeof(data) - 1) >= 0);
    assert_string_equal(data, content);
    close(fd);
}

static void test_shared_open_of_a_foreign_folder(void **state)
{
    int folder;

    if (geteuid() != 0) {
        print_message("# skipped: only root makes another user's folder\n");
        return;
    }
    folder = make_foreign();
    expect_shared(folder, "file", "theirs");
    expect_shared(folder, "link", "theirs");
    expect_shared(folder, "our-link", "ours");
    assert_int_equal(pl_shared_open_at(folder, "trap"), -EPERM);
    assert_int_equal(pl_shared_open_at(folder, "device"), -EPERM);
    assert_int_equal(pl_shared_open_at(folder, "none"), -ENOENT);
    close(folder);
}

/* Root's link to a device is followed, and then the device is not opened. */
static void test_shared_open_opens_no_device(void **state)
{
    char event[4096];
    int folder, watch;

    if (geteuid() != 0) {
        print_message("# skipped: only root makes another user's folder\n");
        return;
    }
    folder = make_foreign();
    watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    assert_int_equal(fchdir(folder), 0);
    assert_true(inotify_add_watch(watch, "pipe", IN_OPEN) >= 0);
    assert_int_equal(pl_shared_open_at(folder, "pipe"), -EINVAL);
    assert_int_equal(read(watch, event, sizeof(event)), -1); /* nobody has opened it */
    assert_int_equal(symlinkat("/dev/zero", folder, "ours"), 0);
    assert_int_equal(pl_shared_open_at(folder, "ours"), -EINVAL);
    assert_int_equal(chdir("/"), 0);
    close(watch);
    close(folder);
}

static void test_shared_open_by_path(void **state)
{
    char path[128];
    int fd;

    assert_int_equal(pl_file_write_at(top_fd, "file", "x", 1, 0644, false, NULL), 0);
    assert_int_equal(symlinkat("file", top_fd, "link"), 0);
    snprintf(path, sizeof(path), "%s/link", top);
    fd = pl_shared_open(path);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(fchdir(top_fd), 0);
    fd = pl_shared_open("file");
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(chdir("/"), 0);
    snprintf(path, sizeof(path), "%s/none/file", top);
    assert_int_equal(pl_shared_open(path), -ENOENT);
    fd = pl_shared_open("/");
    assert_true(fd >= 0);
    close(fd);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_folder_open_with_a_list),
        CASE(test_made_below_a_list),
        CASE(test_file_open_what_is_no_file),
        CASE(test_file_open_checks_before_it_empties),
        CASE(test_shared_open_of_a_foreign_folder),
        CASE(test_shared_open_opens_no_device),
        CASE(test_shared_open_by_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
