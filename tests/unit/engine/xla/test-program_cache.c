/* SPDX-License-Identifier: MIT */
/* Files of compiled programs: what is damaged counts as missing, and the oldest ones go. */
#include "common/base/fs.h"
#include "runtime/engine/xla/program_cache.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char home[] = "/tmp/plume-programs-XXXXXX";

static void key_of(unsigned number, uint8_t key[PL_SHA256_BYTES])
{
    struct pl_sha256 sha;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, &number, sizeof(number));
    pl_sha256_final(&sha, key);
}

static void put(unsigned number, const char *text)
{
    uint8_t key[PL_SHA256_BYTES];

    key_of(number, key);
    assert_int_equal(pl_program_cache_put(key, text, strlen(text), NULL), 0);
}

static int get(unsigned number, const char *want)
{
    _cleanup_free_ char *file = NULL;
    uint8_t key[PL_SHA256_BYTES];
    const char *data;
    size_t len;
    int r;

    key_of(number, key);
    r = pl_program_cache_get(key, &file, &data, &len, NULL);
    if (r == 0) {
        assert_int_equal(len, strlen(want));
        assert_memory_equal(data, want, len);
    }
    return r;
}

/* Calls for each program's file; returns their number. */
static unsigned each(void (*call)(const char *path))
{
    _cleanup_free_ char *folder = pl_strf("%s/programs", home);
    DIR *dir = opendir(folder);
    struct dirent *entry;
    unsigned n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir))) {
        _cleanup_free_ char *path = pl_path_join(folder, entry->d_name);

        if (entry->d_name[0] == '.')
            continue;
        if (call)
            call(path);
        n++;
    }
    closedir(dir);
    return n;
}

static void drop(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

/* The file with the byte `at` changed; SIZE_MAX: as it is. */
static size_t changed_at;

static void change(const char *path)
{
    FILE *f = fopen(path, "r+");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, (long)changed_at, SEEK_SET), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, (long)changed_at, SEEK_SET), 0);
    fputc(c ^ 0x40, f);
    assert_int_equal(fclose(f), 0);
}

static size_t size;

static void shorten(const char *path)
{
    assert_int_equal(truncate(path, (off_t)size), 0);
}

static void test_each_damage_is_seen(void **state)
{
    static const char text[] = "a program";
    size_t all = 8 + 2 * PL_SHA256_BYTES + strlen(text);

    (void)state;
    assert_int_equal(get(1, text), -ENOENT);
    put(1, text);
    assert_int_equal(get(1, text), 0);
    assert_int_equal(get(2, text), -ENOENT);
    for (changed_at = 0; changed_at < all; changed_at++) {
        each(change);
        assert_int_equal(get(1, text), -EBADMSG);
        each(change);
    }
    assert_int_equal(get(1, text), 0);
    for (size = all; size-- > 0;) {
        each(shorten);
        assert_int_equal(get(1, text), -EBADMSG);
    }
    put(1, text);
    assert_int_equal(get(1, text), 0);
    put(1, "");
    assert_int_equal(get(1, ""), 0);
    each(drop);
}

static void test_the_oldest_go(void **state)
{
    (void)state;
    for (unsigned i = 0; i < PL_PROGRAMS_MAX + 5; i++) {
        put(i, "x");
        assert_int_equal(get(0, "x"), 0); /* used, and so it stays */
    }
    assert_int_equal(each(NULL), PL_PROGRAMS_MAX);
    assert_int_equal(get(PL_PROGRAMS_MAX + 4, "x"), 0);
    assert_int_equal(get(1, "x"), -ENOENT);
    each(drop);
}

static int begin(void **state)
{
    (void)state;
    return mkdtemp(home) ? setenv("PLUME_HOME", home, 1) : -1;
}

static int end(void **state)
{
    _cleanup_free_ char *folder = pl_strf("%s/programs", home);

    (void)state;
    return rmdir(folder) | rmdir(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_damage_is_seen),
        cmocka_unit_test(test_the_oldest_go),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
