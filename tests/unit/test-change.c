/* SPDX-License-Identifier: MIT */
#include "common/base/fs.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/change.h"
#include "launcher/plsubmit/update.h"
#include "tests/lib/tmpdir.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cmocka.h>

static bool has_locks = true; /* the file system */
static bool other_host;       /* calls that host */

/* In place of libc's, in this program: locks of NFS. That of a folder is of one host only. */
int flock(int fd, int how)
{
    struct stat st;
    bool is_folder = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    int error = is_folder                                      ? 0
                : !has_locks                                   ? ENOLCK
                : (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY ? EBADF
                                                               : 0;

    if (is_folder && other_host)
        return 0;
    errno = error;
    return error ? -1 : (int)syscall(SYS_flock, fd, how);
}

static void unlock(int locks[2])
{
    for (int i = 0; i < 2; i++) {
        pl_closep(&locks[i]);
        locks[i] = -EBADF;
    }
}

static void is_busy(const char *dir)
{
    int locks[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};

    assert_int_equal(pl_change_lock(dir, locks, &err), -EBUSY);
    assert_non_null(strstr(pl_error_text(&err), "another plsubmit changes"));
    assert_int_equal(locks[0], -EBADF);
    assert_int_equal(locks[1], -EBADF);
}

static char *make_folder(char *dir, size_t size)
{
    char *key;

    assert_int_equal(tmpdir_make(dir, size), 0);
    key = pl_path_join(dir, "key");
    assert_int_equal(pl_file_replace(key, "", 0, 0600, NULL), 0);
    return key;
}

static void test_lock_between_hosts(void **state)
{
    int first[2] = {-EBADF, -EBADF}, second[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};
    _cleanup_free_ char *key = NULL;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    is_busy(dir);
    other_host = true;
    is_busy(dir);
    unlock(first);
    assert_int_equal(pl_change_lock(dir, second, &err), 0);
    other_host = false;
    is_busy(dir);
    unlock(second);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* As a release does that locks nothing else, or one plsubmit on a server that refuses locks for a
 * moment. */
static void test_lock_of_the_folder_alone(void **state)
{
    int first[2] = {-EBADF, -EBADF};
    struct pl_error err = {0};
    _cleanup_free_ char *key = NULL;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    first[0] = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(flock(first[0], LOCK_EX | LOCK_NB), 0);
    is_busy(dir);
    unlock(first);
    has_locks = false;
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    has_locks = true;
    is_busy(dir);
    unlock(first);
    assert_int_equal(pl_change_lock(dir, first, &err), 0);
    has_locks = false;
    is_busy(dir);
    has_locks = true;
    unlock(first);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* As a release does that locks nothing else. */
static void test_lock_of_the_key_alone(void **state)
{
    _cleanup_free_ char *key = NULL;
    _cleanup_close_ int fd = -EBADF;
    char dir[64];

    key = make_folder(dir, sizeof(dir));
    fd = open(key, O_RDWR | O_CLOEXEC);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
    is_busy(dir);
    assert_int_equal(tmpdir_remove(dir), 0);
}

/* The message of a command of Slurm that ends with 1 and has written this to stderr. */
static void says(const char *text, int want, bool want_ended)
{
    const char *argv[] = {"sh", "-c", "printf %s \"$0\" >&2; exit 1", text, NULL};
    struct pl_error err = {0};
    bool ended = !want_ended;

    assert_int_equal(pl_change_command(argv, &ended, &err), want);
    assert_int_equal(ended, want_ended);
}

static void test_command(void **state)
{
    says("Invalid job id specified for job 12\n", 0, true);
    says("12_0: Job has already finished\n", 0, true);
    says("Access/permission denied for job 12\n", -EREMOTEIO, false);
    /* An array of which some tasks have ended: Slurm has changed the others. */
    says("12_[2-9]: No error\n12_[0-1]: Job has already finished\n", 0, false);
    says("12_[0-1]: Job has already finished\n12_[2-9]: No error\n", 0, false);
}

/* ---- --update of limits ---- */

static char top[64], run_dir[80];

static char *in_top(const char *name)
{
    static char path[128];

    snprintf(path, sizeof(path), "%s/%s", top, name);
    return path;
}

static int no_values(void *ctx, unsigned trial, const char **values)
{
    return 0;
}

/* A sweep with two options of sbatch, and a scontrol that refuses job 13. */
static int make_sweep(void **state)
{
    static const char scontrol[] = "#!/bin/sh\necho \"$*\" >>\"${0%/*}/asked\"\n"
                                   "[ $2 != JobId=13 ] || { echo no >&2; exit 1; }\n";
    static const char *const argv[] = {"true", NULL}, *const axes[] = {NULL},
                             *const sbatch[] = {"--mem-per-cpu=1G", "--time-min=1", "--time=1",
                                                NULL};
    _cleanup_(json_decrefp) json_t *options = json_object();
    struct pl_run_desc desc = {.sweep = "s-1",
                               .name = "s",
                               .n_trials = 1,
                               .argv = argv,
                               .axes = axes,
                               .sbatch_args = sbatch,
                               .options = options,
                               .values = no_values};

    if (tmpdir_make(top, sizeof(top)) < 0)
        return -1;
    snprintf(run_dir, sizeof(run_dir), "%s/run", top);
    setenv("PATH", top, 1);
    return pl_file_replace(in_top("scontrol"), scontrol, strlen(scontrol), 0755, NULL) < 0 ||
           pl_run_create(run_dir, &desc, NULL) < 0;
}

static int remove_sweep(void **state)
{
    return tmpdir_remove(top);
}

/* Updates as `plsubmit --update` does, with these values. */
static int update(const char *mem, const char *per_cpu, char *const *jobs, struct pl_error *err)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    struct pl_spec spec = {0};

    assert_int_equal(pl_run_open_own(run_dir, &run, NULL), 0);
    spec.values[PL_SPEC_MEM].text = (char *)(uintptr_t)mem;
    spec.values[PL_SPEC_MEM_PER_CPU].text = (char *)(uintptr_t)per_cpu;
    spec.values[PL_SPEC_TIME].text = (char[]){"5"};
    return pl_update_limits(run, &spec, jobs, err);
}

/* The options of sbatch that are recorded, and those with a value. */
static void check_recorded(const char *want)
{
    _cleanup_(pl_run_closep) struct pl_run *run = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};
    static const char *const names[] = {"mem", "mem-per-cpu", "time"};

    assert_int_equal(pl_run_open(run_dir, &run, NULL), 0);
    for (const char *const *arg = pl_run_sbatch_args(run); *arg; arg++)
        pl_buf_addf(&all, "%s ", *arg);
    for (size_t i = 0; i < PL_COUNT(names); i++) {
        const json_t *o = json_object_get(pl_run_options(run), names[i]);

        if (o)
            pl_buf_addf(&all, "%s %s ", names[i], pl_json_string(o, "value"));
    }
    assert_string_equal(pl_buf_str(&all), want);
}

static void test_update_of_limits(void **state)
{
    char *jobs[] = {"11_[0-1]", "12", NULL}, *refused[] = {"12", "13", NULL}, *none[] = {NULL};
    static const char before[] = "--mem-per-cpu=1G --time-min=1 --time=1 ";
    static const char after[] =
        "--mem-per-cpu=1500K --time-min=1 --time=5 mem-per-cpu 1500K time 5 ";
    _cleanup_free_ char *asked = NULL;
    struct pl_error err = {0};
    char kept[96];

    /* scontrol's number is of whole mebibytes; another kind of memory would be one too many. */
    assert_int_equal(update("2G", NULL, jobs, &err), -EINVAL);
    assert_non_null(strstr(pl_error_text(&err), "the sweep has --mem-per-cpu,"));
    /* Slurm refuses the second job, or the first: nothing is recorded. */
    assert_int_equal(update(NULL, "1500K", refused, &err), -EREMOTEIO);
    assert_non_null(strstr(pl_error_text(&err), "jobs before 13 have the new values"));
    assert_int_equal(update(NULL, "1500K", refused + 1, &err), -EREMOTEIO);
    assert_null(strstr(pl_error_text(&err), "jobs before"));
    check_recorded(before);
    unlink(in_top("asked"));
    assert_int_equal(update(NULL, "1500K", jobs, &err), 0);
    check_recorded(after);
    assert_int_equal(pl_file_read(in_top("asked"), 4096, &asked, NULL, NULL), 0);
    assert_string_equal(asked, "update JobId=11_[0-1] TimeLimit=5 MinMemoryCPU=2\n"
                               "update JobId=12 TimeLimit=5 MinMemoryCPU=2\n");
    /* A file that cannot be replaced, as on a full disk. */
    snprintf(kept, sizeof(kept), "%s/kept", top);
    assert_int_equal(rename(in_top("run/sweep.json"), kept), 0);
    for (int some = 0; some < 2; some++) {
        _cleanup_(pl_run_closep) struct pl_run *run = NULL;
        struct pl_spec spec = {0};

        assert_int_equal(link(kept, in_top("run/sweep.json")), 0);
        assert_int_equal(pl_run_open_own(run_dir, &run, NULL), 0);
        assert_int_equal(unlink(in_top("run/sweep.json")), 0);
        assert_int_equal(mkdir(in_top("run/sweep.json"), 0700), 0);
        spec.values[PL_SPEC_TIME].text = (char[]){"6"};
        assert_int_equal(pl_update_limits(run, &spec, some ? jobs : none, &err), -EISDIR);
        assert_true(!strstr(pl_error_text(&err), "repeat the command") == !some);
        assert_string_equal(pl_run_sbatch_args(run)[2], "--time=6");
        assert_int_equal(rmdir(in_top("run/sweep.json")), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_between_hosts), cmocka_unit_test(test_lock_of_the_folder_alone),
        cmocka_unit_test(test_lock_of_the_key_alone), cmocka_unit_test(test_command),
        cmocka_unit_test_setup_teardown(test_update_of_limits, make_sweep, remove_sweep)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
