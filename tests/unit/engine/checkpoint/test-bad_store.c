/* SPDX-License-Identifier: MIT */
/* Checkpoints on network file systems and broken disks. The calls below stand in for libc's, in
 * this program. */
#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/checkpoint/folder_lock.h"
#include "runtime/engine/checkpoint/resume_file.h"
#include "tests/unit/engine/checkpoint/checkpoint_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static int link_error; /* the link is there all the same */
static int rename_error;
static int read_error;
static int access_error;
static int flock_error, stale_flocks; /* so many of the next calls */
static int fstat_error, fstats;

int link(const char *from, const char *to)
{
    int r = (int)syscall(SYS_link, from, to);

    errno = link_error ? link_error : errno;
    return link_error ? -1 : r;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    int r = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);

    errno = rename_error ? rename_error : errno;
    return rename_error ? -1 : r;
}

ssize_t pread(int fd, void *data, size_t len, off_t at)
{
    errno = read_error;
    return read_error ? -1 : (ssize_t)syscall(SYS_pread64, fd, data, len, at);
}

int access(const char *path, int how)
{
    errno = access_error;
    return access_error && strstr(path, "last") ? -1 : (int)syscall(SYS_access, path, how);
}

int flock(int fd, int how)
{
    if (stale_flocks == 0)
        return (int)syscall(SYS_flock, fd, how);
    stale_flocks--;
    errno = flock_error;
    return -1;
}

int fstat(int fd, struct stat *st)
{
    fstats++;
    errno = fstat_error;
    return fstat_error ? -1 : fstatat(fd, "", st, AT_EMPTY_PATH);
}

static bool buffers; /* what is written stays with the client */
static char buffer[1024];
static size_t buffered;

ssize_t write(int fd, const void *data, size_t len)
{
    if (!buffers || len > sizeof(buffer) - buffered)
        return (ssize_t)syscall(SYS_write, fd, data, len);
    memcpy(buffer + buffered, data, len);
    buffered += len;
    return (ssize_t)len;
}

int fsync(int fd)
{
    size_t len = buffered;

    buffered = 0;
    if (len > 0 && syscall(SYS_write, fd, buffer, len) != (long)len)
        return -1;
    return (int)syscall(SYS_fsync, fd);
}

static int set_up(void **state)
{
    (void)state;
    buffers = false;
    link_error = rename_error = read_error = access_error = 0;
    flock_error = stale_flocks = fstat_error = fstats = 0;
    return 0;
}

/* Writes NAME of the folder, and last.ckpt. */
static void write_both(const char *name)
{
    struct pl_ckpt_job job = {.path = in_dir(name), .also = in_dir("last.ckpt")};
    size_t shape[1] = {2};
    struct pl_error err = {0};

    assert_int_equal(
        pl_checkpoint_add(&job.checkpoint, "w", PLUME_F32, 1, shape, (float[]){1, 2}, NULL), 0);
    assert_int_equal(pl_checkpoint_set(&job.checkpoint, "global_step", "7"), 0);
    assert_int_equal(pl_checkpoint_set(&job.checkpoint, "optimizer_states", "[]"), 0);
    if (pl_ckpt_job_run(&job, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    pl_ckpt_job_finish(&job);
}

static void both_can_be_read(const char *name)
{
    const char *const names[] = {name, "last.ckpt"};

    for (size_t i = 0; i < PL_COUNT(names); i++) {
        _cleanup_free_ char *path = in_dir(names[i]);
        struct pl_checkpoint c;

        assert_int_equal(pl_checkpoint_read(path, &c, NULL), 0);
        pl_checkpoint_finish(&c);
    }
}

static unsigned temporaries(void)
{
    const struct dirent *entry;
    DIR *d = opendir(dir);
    unsigned n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)))
        n += strstr(entry->d_name, ".tmp") != NULL;
    closedir(d);
    return n;
}

static void test_link_without_an_answer(void **state)
{
    (void)state;
    link_error = EEXIST;
    write_both("a.ckpt");
    both_can_be_read("a.ckpt");
    assert_int_equal(temporaries(), 0);
}

static void test_rename_without_an_answer(void **state)
{
    (void)state;
    rename_error = ENOENT;
    write_both("b.ckpt");
    both_can_be_read("b.ckpt");
    assert_int_equal(temporaries(), 0);
}

static void test_read_of_a_broken_disk(void **state)
{
    _cleanup_free_ char *path = in_dir("c.ckpt");
    struct pl_error err = {0};
    struct pl_checkpoint c;

    (void)state;
    write_both("c.ckpt");
    read_error = EIO;
    assert_int_equal(pl_checkpoint_read(path, &c, &err), -EIO);
    assert_non_null(strstr(pl_error_text(&err), "Input/output error"));
}

/* Another node must learn at once who holds the lock: it waits for a holder of its own job. */
static void test_a_lock_names_its_holder_to_all_nodes(void **state)
{
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT, second = PL_FOLDER_LOCK_INIT;
    struct pl_error err = {0};

    (void)state;
    buffers = true;
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    buffers = false;
    assert_int_equal(pl_folder_lock(dir, &second, &err), -EBUSY);
    assert_non_null(strstr(pl_error_text(&err), "another run (process "));
    pl_folder_unlock(&lock);
}

/* NFS 3: the holder removes the file on its node, after it was opened on this one. */
static void test_a_lock_whose_file_is_removed_meanwhile(void **state)
{
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT;

    (void)state;
    flock_error = ESTALE;
    stale_flocks = 2;
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    assert_true(lock.fd >= 0);
    pl_folder_unlock(&lock);
    flock_error = EIO;
    stale_flocks = 1;
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), -EIO);
}

static void test_a_lock_that_cannot_be_looked_at(void **state)
{
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT;
    struct pl_error err = {0};

    (void)state;
    fstat_error = EIO;
    assert_int_equal(pl_folder_lock(dir, &lock, &err), -EIO);
    assert_int_equal(fstats, 1);
}

/* A run that began anew would replace the checkpoints. */
static void test_resume_from_what_cannot_be_seen(void **state)
{
    _cleanup_free_ char *path = NULL;
    struct pl_error err = {0};

    (void)state;
    write_both("d.ckpt");
    access_error = EIO;
    assert_int_equal(pl_resume_file(dir, "last", &path, &err), -EIO);
    assert_non_null(strstr(pl_error_text(&err), "last.ckpt"));
    access_error = 0;
    assert_int_equal(pl_resume_file(dir, "last", &path, &err), 0);
    assert_non_null(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_link_without_an_answer, set_up),
        cmocka_unit_test_setup(test_rename_without_an_answer, set_up),
        cmocka_unit_test_setup(test_read_of_a_broken_disk, set_up),
        cmocka_unit_test_setup(test_resume_from_what_cannot_be_seen, set_up),
        cmocka_unit_test_setup(test_a_lock_names_its_holder_to_all_nodes, set_up),
        cmocka_unit_test_setup(test_a_lock_whose_file_is_removed_meanwhile, set_up),
        cmocka_unit_test_setup(test_a_lock_that_cannot_be_looked_at, set_up),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
