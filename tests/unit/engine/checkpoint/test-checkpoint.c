/* SPDX-License-Identifier: MIT */
/* Checkpoints: the file, its folder, and the writer's thread. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/checkpoint/folder_lock.h"
#include "runtime/engine/util/xxh64.h"
#include "tests/unit/engine/checkpoint/checkpoint_dir.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* Files that an unfinished write leaves. */
static int temporaries(void)
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)))
        n += strstr(entry->d_name, ".tmp") != NULL;
    closedir(d);
    return n;
}

/* Counts the folders that are written to the disk. */
static int folder_syncs;

int fsync(int fd)
{
    struct stat st;

    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        folder_syncs++;
    return (int)syscall(SYS_fsync, fd);
}

/* The specification's own vectors: the bytes are of its generator, here the short ones. */
static void test_xxh64_vectors(void **state)
{
    static const char text[] = "Nobody inspects the spammish repetition";
    struct pl_xxh64 x;

    assert_true(pl_xxh64("", 0) == 0xef46db3751d8e999u);
    assert_true(pl_xxh64("a", 1) == 0xd24ec4f1a98c6e5bu);
    assert_true(pl_xxh64("abc", 3) == 0x44bc2cf5ad770999u);
    assert_true(pl_xxh64(text, sizeof(text) - 1) == 0xfbcea83c8a378bf1u);
    for (size_t cut = 0; cut < sizeof(text); cut++) {
        pl_xxh64_init(&x);
        pl_xxh64_add(&x, text, cut);
        pl_xxh64_add(&x, text + cut, sizeof(text) - 1 - cut);
        assert_true(pl_xxh64_final(&x) == 0xfbcea83c8a378bf1u);
    }
}

static void make(struct pl_checkpoint *c, float first)
{
    const float w[] = {first, 2, 3, 4, 5, 6};
    const uint8_t odd[] = {7, 8, 9};

    *c = (struct pl_checkpoint){0};
    assert_int_equal(pl_checkpoint_set(c, "epoch", "3"), 0);
    assert_int_equal(pl_checkpoint_set(c, "odd \"key\"", "[1,{\"a\":null}]"), 0);
    assert_int_equal(pl_checkpoint_add(c, "odd", PLUME_U8, 1, (size_t[]){3}, odd, NULL), 0);
    assert_int_equal(pl_checkpoint_add(c, "w/\xc3\xa4", PLUME_F32, 2, (size_t[]){2, 3}, w, NULL),
                     0);
    assert_int_equal(pl_checkpoint_add(c, "scalar", PLUME_F32, 0, NULL, w, NULL), 0);
    assert_int_equal(pl_checkpoint_add(c, "empty", PLUME_F32, 1, (size_t[]){0}, NULL, NULL), 0);
}

static void test_file_round_trip(void **state)
{
    _cleanup_free_ char *path = in_dir("round.ckpt"), *text = NULL;
    const struct pl_checkpoint_tensor *t;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    int64_t epoch;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_add(&c, "odd", PLUME_U8, 1, (size_t[]){1}, "x", &err), -EEXIST);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_checkpoint_read(path, &back, &err), 0);
    assert_int_equal(back.n, 4);
    assert_int_equal(pl_checkpoint_get_int(&back, "epoch", &epoch), 0);
    assert_int_equal(epoch, 3);
    text = pl_checkpoint_get(&back, "odd \"key\"");
    assert_string_equal(text, "[1,{\"a\":null}]");
    t = pl_checkpoint_find(&back, "w/\xc3\xa4");
    assert_non_null(t);
    assert_int_equal(t->rank, 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_false(back.foreign);
    assert_true(((const float *)t->data)[5] == 6);
    assert_int_equal(pl_checkpoint_find(&back, "odd")->bytes, 3);
    assert_int_equal(pl_checkpoint_find(&back, "scalar")->bytes, 4);
    assert_null(pl_checkpoint_find(&back, "none"));
    assert_null(pl_checkpoint_get(&back, "none"));
    assert_int_equal(temporaries(), 0);
    pl_checkpoint_finish(&back);
}

/* Every truncation and every flipped bit is detected, and the error names it. */
static void test_damage_is_found(void **state)
{
    _cleanup_free_ char *path = in_dir("damage.ckpt"), *bytes = NULL;
    struct pl_checkpoint c, back;
    struct pl_error err = {0};
    size_t len;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    pl_checkpoint_finish(&c);
    assert_int_equal(pl_file_read(path, 1 << 20, &bytes, &len, NULL), 0);
    for (size_t cut = 0; cut < len; cut++) {
        _cleanup_free_ char *exact = malloc(cut + !cut); /* for ASan */

        memcpy(exact, bytes, cut);
        assert_int_equal(pl_checkpoint_parse(exact, cut, &back, &err), -EINVAL);
        assert_non_null(strstr(err.text, cut < 9 ? "neither" : "truncated"));
    }
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 16;
        assert_true(pl_checkpoint_parse(bytes, len, &back, &err) < 0);
        assert_null(strchr(err.text, '\n'));
        bytes[i] ^= 16;
    }
    assert_int_equal(pl_checkpoint_read("/nonexistent.ckpt", &back, &err), -ENOENT);
    assert_int_equal(pl_checkpoint_read("/", &back, &err), -EINVAL);
    assert_int_equal(pl_checkpoint_read("/proc/self/stat", &back, &err), -EINVAL);
}

static double first_of(const char *path)
{
    struct pl_checkpoint c;
    double value;

    assert_int_equal(pl_checkpoint_read(path, &c, NULL), 0);
    value = (double)*(const float *)pl_checkpoint_find(&c, "scalar")->data;
    pl_checkpoint_finish(&c);
    return value;
}

/* The child's files may not grow past each size in turn: by error or by death in the middle of the
 * writing (SIGXFSZ). The old file stays whole. */
static void test_an_interrupted_write_leaves_the_old_file(void **state)
{
    _cleanup_free_ char *path = in_dir("old.ckpt");
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT;
    struct pl_checkpoint c;
    struct stat st;

    make(&c, 1);
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    assert_int_equal(stat(path, &st), 0);
    pl_checkpoint_finish(&c);
    make(&c, 2);
    for (int i = 0; i < 16; i++) {
        pid_t pid = fork();
        int status;

        assert_true(pid >= 0);
        if (pid == 0) {
            rlim_t limit = (rlim_t)(i / 2) * (rlim_t)st.st_size / 8;
            struct pl_error err;

            signal(SIGXFSZ, i % 2 ? SIG_IGN : SIG_DFL);
            setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
            _exit(pl_checkpoint_write(&c, path, &err) == -EFBIG ? 7 : 8);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (i % 2)
            assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        else
            assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
        assert_true(first_of(path) == 1);
    }
    assert_int_equal(pl_checkpoint_write(&c, path, NULL), 0);
    assert_true(first_of(path) == 2);
    pl_checkpoint_finish(&c);
    /* Those that were killed left a file each, of different names; the next run removes them. */
    assert_int_equal(temporaries(), 8);
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    assert_int_equal(temporaries(), 0);
    pl_folder_unlock(&lock);
    assert_true(first_of(path) == 2);
}

static void test_a_folder_has_one_run(void **state)
{
    struct pl_folder_lock lock = PL_FOLDER_LOCK_INIT, second = PL_FOLDER_LOCK_INIT;
    struct pl_error err = {0};
    char holder[64];
    int ready[2], status;
    pid_t pid;
    char c;

    unsetenv("SLURM_JOB_ID");
    assert_int_equal(pl_folder_lock(dir, &lock, NULL), 0);
    assert_int_equal(pl_folder_lock(dir, &second, &err), -EBUSY);
    snprintf(holder, sizeof(holder), "another run (process %d on ", (int)getpid());
    assert_non_null(strstr(err.text, holder));
    assert_non_null(strstr(err.text, "--checkpoint-dir of its own"));
    pl_folder_unlock(&lock);
    assert_false(is_there(PL_FOLDER_LOCK_NAME));
    assert_int_equal(pl_folder_lock(dir, &second, NULL), 0);
    pl_folder_unlock(&second);
    /* A killed holder does not count. */
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (pl_folder_lock(dir, &lock, NULL) < 0 || write(ready[1], "", 1) != 1)
            _exit(1);
        pause();
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(pl_folder_lock(dir, &second, NULL), -EBUSY);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(is_there(PL_FOLDER_LOCK_NAME));
    assert_int_equal(pl_folder_lock(dir, &second, NULL), 0);
    pl_folder_unlock(&second);
    close(ready[0]);
    close(ready[1]);
}

static void test_writer_writes_in_order(void **state)
{
    _cleanup_(pl_ckpt_writer_destroyp) struct pl_ckpt_writer *w = NULL;
    _cleanup_free_ char *last = in_dir("last.ckpt");
    struct pl_error err = {0};
    struct pl_ckpt_job job = {0};
    char name[32];

    folder_syncs = 0;
    assert_int_equal(pl_ckpt_writer_create(&w, NULL), 0);
    for (int i = 0; i < 20; i++) {
        make(&job.checkpoint, (float)i);
        snprintf(name, sizeof(name), "w%d.ckpt", i);
        job.path = in_dir(name);
        job.also = strdup(last);
        snprintf(name, sizeof(name), "w%d.ckpt", i - 1);
        job.remove = i ? in_dir(name) : NULL;
        assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
        assert_null(job.path);
    }
    assert_int_equal(pl_ckpt_writer_flush(w, NULL), 0);
    assert_int_equal(folder_syncs, 2 * 20); /* after each rename */
    assert_true(first_of(last) == 19);
    assert_false(is_there("w18.ckpt"));
    assert_true(is_there("w19.ckpt"));
    assert_int_equal(temporaries(), 0);
    /* A failure is reported once, and the next job is written. */
    make(&job.checkpoint, 0);
    job.path = strdup("/nonexistent/x.ckpt");
    assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
    assert_int_equal(pl_ckpt_writer_flush(w, &err), -ENOENT);
    assert_non_null(strstr(err.text, "'/nonexistent/x.ckpt'"));
    make(&job.checkpoint, 5);
    job.path = strdup(last);
    assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
    assert_int_equal(pl_ckpt_writer_flush(w, NULL), 0);
    assert_true(first_of(last) == 5);
}

/* No memory for a thread's stack, as with a low ulimit -v. */
static void test_without_a_thread_the_caller_writes(void **state)
{
    _cleanup_(pl_ckpt_writer_destroyp) struct pl_ckpt_writer *w = NULL;
    struct pl_ckpt_job job = {0};
    pthread_attr_t before, large;

    assert_int_equal(pthread_getattr_default_np(&before), 0);
    assert_int_equal(pthread_attr_init(&large), 0);
    assert_int_equal(pthread_attr_setstacksize(&large, (size_t)1 << 46), 0);
    assert_int_equal(pthread_setattr_default_np(&large), 0);
    assert_int_equal(pl_ckpt_writer_create(&w, NULL), 0);
    for (int i = 0; i < 2; i++) {
        make(&job.checkpoint, (float)i);
        job.path = in_dir("alone.ckpt");
        assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), 0);
        assert_null(job.path);
        assert_true(is_there("alone.ckpt")); /* already */
    }
    assert_int_equal(pl_ckpt_writer_flush(w, NULL), 0);
    make(&job.checkpoint, 0);
    job.path = strdup("/nonexistent/x.ckpt");
    assert_int_equal(pl_ckpt_writer_submit(w, &job, NULL), -ENOENT);
    assert_int_equal(pthread_setattr_default_np(&before), 0);
    pthread_attr_destroy(&large);
    pthread_attr_destroy(&before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_xxh64_vectors),
        cmocka_unit_test(test_file_round_trip),
        cmocka_unit_test(test_damage_is_found),
        cmocka_unit_test(test_an_interrupted_write_leaves_the_old_file),
        cmocka_unit_test(test_a_folder_has_one_run),
        cmocka_unit_test(test_writer_writes_in_order),
        cmocka_unit_test(test_without_a_thread_the_caller_writes),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
