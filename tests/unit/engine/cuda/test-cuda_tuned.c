/* SPDX-License-Identifier: MIT */
/* Choices that were timed, in a file of which several processes are writers. Keys and values are
 * numbers here. */
#include "common/base/fs.h"
#include "common/base/macros.h"
#include "runtime/engine/cuda/util/plan_cache.h"
#include "runtime/engine/cuda/util/tuned.h"
#include "tests/unit/engine/cuda/said.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT ((size_t)4 << 20) /* bytes of a file */
#define LINE ((size_t)49)       /* of it: three numbers of eight bytes, and the end */

static char home[64];

static struct pl_tuned *open_tuned(void)
{
    struct pl_tuned *t = NULL;

    assert_int_equal(
        pl_tuned_open("numbers", "card 1", sizeof(uint64_t), sizeof(uint64_t), &t, NULL), 0);
    return t;
}

static uint64_t find(struct pl_tuned *t, uint64_t key)
{
    const uint64_t *value = pl_tuned_find(t, &key);

    return value ? *value : 0;
}

static void add(struct pl_tuned *t, uint64_t key, uint64_t value, uint64_t instead)
{
    pl_tuned_add(t, &key, &value, instead ? &instead : NULL);
}

/* The choice that the next process finds; 0: none. */
static uint64_t kept(uint64_t key)
{
    struct pl_tuned *t = open_tuned();
    uint64_t value = find(t, key);

    pl_tuned_close(t);
    return value;
}

static void file_of(char ret[192])
{
    char pattern[128];
    glob_t found;

    snprintf(pattern, sizeof(pattern), "%s/gpu-numbers/*", home);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(ret, 192, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static size_t file_bytes(void)
{
    char file[192];
    struct stat st;

    file_of(file);
    assert_int_equal(stat(file, &st), 0);
    return (size_t)st.st_size;
}

static int new_home(void **state)
{
    snprintf(home, sizeof(home), "/tmp/plume-test-XXXXXX");
    assert_non_null(mkdtemp(home));
    return setenv("PLUME_HOME", home, 1);
}

static int end_home(void **state)
{
    char text[192];

    file_of(text);
    assert_int_equal(unlink(text), 0);
    snprintf(text, sizeof(text), "%s/gpu-numbers", home);
    assert_int_equal(rmdir(text), 0);
    return rmdir(home);
}

/* A choice of no use is replaced on disk, in a line of its own, unless another process has done
 * so. */
static void test_a_choice_replaces_one_that_is_of_no_use(void **state)
{
    struct pl_tuned *one = open_tuned(), *other;
    size_t bytes;

    add(one, 1, 10, 0);
    add(one, 2, 20, 0);
    bytes = file_bytes();
    other = open_tuned();
    assert_int_equal(find(one, 1), 10);
    add(one, 1, 11, 10);
    assert_int_equal(find(one, 1), 11);
    assert_int_equal(kept(1), 11);
    assert_int_equal(kept(2), 20);
    assert_int_equal(file_bytes(), bytes);

    assert_int_equal(find(other, 1), 10); /* it has begun before */
    add(other, 1, 12, 10);
    assert_int_equal(find(other, 1), 11);
    assert_int_equal(kept(1), 11);
    add(other, 1, 13, 0); /* a choice that is there stays */
    assert_int_equal(kept(1), 11);
    pl_tuned_close(one);
    pl_tuned_close(other);
}

/* A process that knows the old choice of a key does not bring it back with one of another key. */
static void test_a_replaced_choice_does_not_come_back(void **state)
{
    struct pl_tuned *one = open_tuned(), *other;

    add(one, 1, 10, 0);
    other = open_tuned();
    assert_int_equal(find(other, 1), 10);
    add(one, 1, 11, 10);
    add(other, 2, 20, 0);
    assert_int_equal(kept(1), 11);
    assert_int_equal(kept(2), 20);
    assert_int_equal(find(other, 1), 11);
    pl_tuned_close(one);
    pl_tuned_close(other);
}

static void put_hex(char *to, const uint64_t *of, size_t n)
{
    const unsigned char *p = (const unsigned char *)of;

    for (size_t i = 0; i < n * 8; i++)
        snprintf(to + 2 * i, 3, "%02x", p[i]);
}

/* Fills the file with choices first, first + 1, ... whose values are ten times as large. Returns
 * the key after the last. */
static uint64_t fill_file(uint64_t first)
{
    size_t at = file_bytes();
    char file[192], line[LINE + 1];
    FILE *f;

    file_of(file);
    f = fopen(file, "a");
    assert_non_null(f);
    for (; at + LINE <= LIMIT; at += LINE, first++) {
        uint64_t of[2] = {first, 10 * first};

        put_hex(line, of, 2);
        snprintf(line + 32, sizeof(line) - 32, "%016llx\n",
                 (unsigned long long)pl_plan_hash(of, sizeof(of)));
        assert_int_equal(fwrite(line, 1, LINE, f), LINE);
    }
    assert_int_equal(fclose(f), 0);
    return first;
}

/* The oldest go, but for those that this process has asked for. */
static void test_a_full_file_loses_its_oldest_choices(void **state)
{
    struct pl_tuned *t = open_tuned();
    uint64_t end;

    add(t, 1, 10, 0);
    pl_tuned_close(t);
    end = fill_file(2);
    assert_true(end > 80000);
    t = open_tuned();
    for (uint64_t key = 1; key < end; key += 997)
        assert_int_equal(find(t, key), 10 * key);
    assert_int_equal(find(t, end - 1), 10 * (end - 1));
    add(t, end, 10 * end, 0);
    pl_tuned_close(t);
    assert_true(file_bytes() <= LIMIT - LIMIT / 4 + 2 * LINE);
    assert_true(file_bytes() >= LIMIT - LIMIT / 4 - 2 * LINE);

    t = open_tuned();
    assert_int_equal(find(t, 2), 0);
    assert_int_equal(find(t, end / 5), 0);
    for (uint64_t key = end / 3; key <= end; key++)
        assert_int_equal(find(t, key), 10 * key);
    for (uint64_t key = 1; key < end; key += 997)
        assert_int_equal(find(t, key), 10 * key);
    pl_tuned_close(t);
}

/* One that is larger than any of ours is not read, and is replaced. */
static void test_a_file_that_is_too_large_is_replaced(void **state)
{
    struct pl_tuned *t = open_tuned();
    char file[192];

    add(t, 1, 10, 0);
    pl_tuned_close(t);
    file_of(file);
    assert_int_equal(truncate(file, (off_t)LIMIT + 1), 0);
    listen_to_stderr();
    t = open_tuned();
    assert_non_null(strstr(what_was_said(), "choices of numbers are timed again: "));
    add(t, 2, 20, 0);
    pl_tuned_close(t);
    assert_int_equal(kept(2), 20);
    assert_true(file_bytes() < 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_choice_replaces_one_that_is_of_no_use, new_home,
                                        end_home),
        cmocka_unit_test_setup_teardown(test_a_replaced_choice_does_not_come_back, new_home,
                                        end_home),
        cmocka_unit_test_setup_teardown(test_a_full_file_loses_its_oldest_choices, new_home,
                                        end_home),
        cmocka_unit_test_setup_teardown(test_a_file_that_is_too_large_is_replaced, new_home,
                                        end_home),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
