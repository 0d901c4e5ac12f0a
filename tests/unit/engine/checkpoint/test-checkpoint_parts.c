/* SPDX-License-Identifier: MIT */
/* A file that is written in parts is the one that a single process writes. */
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"
#include "runtime/engine/checkpoint/ckpt_writer.h"
#include "runtime/engine/util/rng.h"
#include "tests/lib/tmpdir.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define TENSORS 9
#define BYTES_MAX 4096

static char dir[64];

static char *in_dir(const char *name)
{
    char *path = pl_path_join(dir, name);

    assert_non_null(path);
    return path;
}

static int files(void)
{
    struct dirent *entry;
    DIR *d = opendir(dir);
    int n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)))
        n += entry->d_name[0] != '.';
    closedir(d);
    return n;
}

/* Numbers of a tensor. */
static unsigned char bytes[TENSORS][BYTES_MAX];

/* Both have the same tensors; those of `apart` have no data there. */
static void make(struct pl_rng *rng, struct pl_checkpoint *whole, struct pl_checkpoint *apart)
{
    static const enum plume_dtype types[] = {PLUME_F32, PLUME_F64, PLUME_U8, PLUME_BF16};
    struct pl_checkpoint *both[] = {whole, apart};

    for (int k = 0; k < 2; k++) {
        *both[k] = (struct pl_checkpoint){0};
        assert_int_equal(pl_checkpoint_set(both[k], "epoch", "3"), 0);
    }
    for (size_t i = 0; i < TENSORS; i++) {
        enum plume_dtype type = types[pl_rng_below(rng, PL_COUNT(types))];
        size_t shape[] = {1 + pl_rng_below(rng, 8), pl_rng_below(rng, 60)};
        bool later = pl_rng_below(rng, 2);
        char name[16];

        snprintf(name, sizeof(name), "t%zu", i);
        for (size_t b = 0; b < BYTES_MAX; b++)
            bytes[i][b] = (unsigned char)pl_rng_below(rng, 256);
        assert_int_equal(pl_checkpoint_add(whole, name, type, 2, shape, bytes[i], NULL), 0);
        if (later)
            assert_int_equal(pl_checkpoint_add_apart(apart, name, type, 2, shape, NULL), 0);
        else
            assert_int_equal(pl_checkpoint_add(apart, name, type, 2, shape, bytes[i], NULL), 0);
    }
}

/* Several writers, each with a descriptor of its own, in pieces from the end to the beginning. */
static void
put_all(struct pl_rng *rng, const struct pl_checkpoint *c, const char *temp, const uint64_t *places)
{
    int fd[3];
    size_t apart = 0;

    for (size_t i = 0; i < PL_COUNT(fd); i++)
        assert_true((fd[i] = open(temp, O_WRONLY | O_CLOEXEC)) >= 0);
    for (size_t i = 0; i < c->n; i++) {
        size_t end = c->tensors[i].bytes;

        if (!c->tensors[i].apart)
            continue;
        while (end > 0) {
            size_t n = 1 + pl_rng_below(rng, end);

            end -= n;
            assert_int_equal(pl_checkpoint_put_part(fd[pl_rng_below(rng, PL_COUNT(fd))],
                                                    places[apart] + end, bytes[i] + end, n),
                             0);
        }
        apart++;
    }
    for (size_t i = 0; i < PL_COUNT(fd); i++)
        close(fd[i]);
}

static void assert_same_files(const char *a, const char *b)
{
    _cleanup_free_ char *x = NULL, *y = NULL;
    size_t n = 0, m = 0;

    assert_int_equal(pl_file_read(a, 1 << 20, &x, &n, NULL), 0);
    assert_int_equal(pl_file_read(b, 1 << 20, &y, &m, NULL), 0);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
}

static void test_parts_make_the_file_of_one_process(void **state)
{
    _cleanup_free_ char *one = in_dir("one.ckpt"), *parts = in_dir("parts.ckpt");
    _cleanup_free_ char *copy = in_dir("copy.ckpt");
    struct pl_rng rng;

    pl_rng_init(&rng, 1, 2);
    for (int i = 0; i < 100; i++) {
        struct pl_checkpoint whole, apart, back;
        uint64_t places[TENSORS] = {0};
        char *temp = NULL;

        make(&rng, &whole, &apart);
        assert_int_equal(pl_checkpoint_write(&whole, one, NULL), 0);
        assert_int_equal(pl_checkpoint_begin(&apart, parts, &temp, places, NULL), 0);
        put_all(&rng, &apart, temp, places);
        assert_int_equal(pl_checkpoint_seal(temp, parts, NULL), 0);
        assert_same_files(one, parts);
        assert_int_equal(pl_checkpoint_read(parts, &back, NULL), 0); /* its checksum is right */
        pl_checkpoint_finish(&back);
        pl_checkpoint_finish(&whole);
        pl_checkpoint_finish(&apart);
        free(temp);
    }
    assert_int_equal(pl_checkpoint_copy(parts, copy, NULL), 0);
    assert_same_files(parts, copy);
    assert_int_equal(files(), 3);
}

/* The numbers of a name are taken once. */
static void test_names_are_new(void **state)
{
    struct pl_checkpoint c = {0};

    assert_int_equal(pl_checkpoint_add_apart(&c, "a", PLUME_F32, 1, (size_t[]){3}, NULL), 0);
    assert_int_equal(pl_checkpoint_add_apart(&c, "a", PLUME_F32, 1, (size_t[]){3}, NULL), -EEXIST);
    assert_int_equal(pl_checkpoint_add_apart(&c, "", PLUME_F32, 1, (size_t[]){3}, NULL), -EINVAL);
    assert_int_equal(pl_checkpoint_count_apart(&c), 1);
    pl_checkpoint_finish(&c);
}

static void test_a_failure_leaves_no_file(void **state)
{
    _cleanup_free_ char *path = in_dir("parts.ckpt"), *nowhere = in_dir("none/parts.ckpt");
    _cleanup_free_ char *temp = NULL, *gone = in_dir("gone");
    struct pl_ckpt_job job = {0};
    struct pl_error err = {0};
    uint64_t places[TENSORS];
    struct pl_rng rng;
    struct pl_checkpoint whole, apart;
    int before = files(), status;

    pl_rng_init(&rng, 1, 2);
    make(&rng, &whole, &apart);
    assert_int_equal(pl_checkpoint_begin(&apart, nowhere, &temp, places, &err), -ENOENT);
    assert_non_null(strstr(err.text, nowhere));
    assert_null(temp);
    assert_int_equal(pl_checkpoint_seal(gone, path, &err), -ENOENT);
    assert_int_equal(pl_checkpoint_copy(gone, path, &err), -ENOENT);
    /* A run that gives up in between drops its job. */
    assert_int_equal(pl_checkpoint_begin(&apart, path, &job.temp, places, NULL), 0);
    assert_int_equal(files(), before + 1);
    pl_ckpt_job_finish(&job);
    assert_int_equal(files(), before);
    /* No room for the header. */
    fflush(NULL);
    if (fork() == 0) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){100, 100});
        _exit(pl_checkpoint_begin(&apart, path, &temp, places, &err) == -EFBIG && !temp ? 7 : 8);
    }
    assert_true(wait(&status) > 0);
    assert_int_equal(WEXITSTATUS(status), 7);
    assert_int_equal(files(), before);
    pl_checkpoint_finish(&whole);
    pl_checkpoint_finish(&apart);
}

static int make_dir(void **state)
{
    return tmpdir_make(dir, sizeof(dir));
}

static int remove_dir(void **state)
{
    return tmpdir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_make_the_file_of_one_process),
        cmocka_unit_test(test_names_are_new),
        cmocka_unit_test(test_a_failure_leaves_no_file),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
