/* SPDX-License-Identifier: MIT */
/* Libraries that are opened at their first call, from each place where they may be. */
#include "common/base/fs.h"
#include "runtime/engine/cuda/lazy/lazy.h"
#include "tests/unit/engine/cuda/said.h"

#include <dlfcn.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define FILE_NAME "libplume-fake-lazy.so.3"

static char top[] = "/tmp/plume-lazy.XXXXXX";
static struct pl_lazy lib;

int fake_lazy_number(void);

int fake_lazy_number(void)
{
    PL_LAZY_CALL(&lib, fake_lazy_number, -1);
}

static void clear(void)
{
    lib = (struct pl_lazy){.name = "the fake",
                           .file = FILE_NAME,
                           .advice = "build it",
                           .lock = PTHREAD_MUTEX_INITIALIZER};
    unsetenv("PLUME_CUDA_LIBS");
    unsetenv("CUDA_HOME");
    unsetenv("VIRTUAL_ENV");
    unsetenv("CONDA_PREFIX");
    setenv("HOME", top, 1);
}

/* Puts the library, or what is none, into a folder below top. */
static void put(const char *folder, bool broken)
{
    _cleanup_free_ char *dir = pl_path_join(top, folder), *path = pl_path_join(dir, FILE_NAME);
    _cleanup_free_ char *bytes = NULL;
    size_t n = 0;

    assert_int_equal(pl_mkdir_p(dir, 0700, NULL), 0);
    assert_int_equal(pl_file_read(PL_FAKE_LAZY, 1 << 20, &bytes, &n, NULL), 0);
    assert_int_equal(pl_file_write_atomic(path, bytes, broken ? 40 : n, 0700, NULL), 0);
}

static void drop(const char *folder)
{
    char path[4096];

    snprintf(path, sizeof(path), "%s/%s/" FILE_NAME, top, folder);
    assert_return_code(unlink(path), 0);
}

/* Sets it to before, top and a folder in it. */
static void set(const char *name, const char *before, const char *folder)
{
    _cleanup_free_ char *path = pl_path_join(top, folder), *value = pl_strf("%s%s", before, path);

    assert_return_code(setenv(name, value, 1), 0);
}

/* The library is found by the variable, and nowhere without it. */
static void found_by(const char *folder, const char *name, const char *before, const char *value)
{
    struct pl_error err = {0};
    void *symbol;

    clear();
    put(folder, false);
    assert_int_equal(pl_lazy_open(&lib, NULL), -ENOENT);
    assert_int_equal(pl_lazy_open(&lib, NULL), -ENOENT); /* it is not looked for again */
    clear();
    set(name, before, value);
    if (pl_lazy_open(&lib, &err) < 0)
        fail_msg("%s: %s", name, pl_error_text(&err));
    symbol = pl_lazy_find(&lib, "fake_lazy_number");
    assert_non_null(symbol);
    assert_null(pl_lazy_find(&lib, "no_such_function"));
    assert_int_equal(dlclose(lib.handle), 0); /* else the loader knows it from now on */
    drop(folder);
}

static void test_each_place_is_looked_at(void **state)
{
    found_by("libs", "PLUME_CUDA_LIBS", "/nowhere:", "libs");
    found_by("cuda/lib64", "CUDA_HOME", "", "cuda");
    found_by("cuda/lib", "CUDA_HOME", "", "cuda");
    found_by("venv/lib/python3.11/site-packages/nvidia/cudnn/lib", "VIRTUAL_ENV", "", "venv");
    found_by("conda/lib", "CONDA_PREFIX", "", "conda");
    found_by("conda/lib/python3.12/site-packages/nvidia/cu13/lib", "CONDA_PREFIX", "", "conda");
    found_by("home/.local/lib/python3.9/site-packages/nvidia/nccl/lib", "HOME", "", "home");
}

static void test_what_is_missing_is_named(void **state)
{
    struct pl_error err = {0};

    clear();
    assert_int_equal(pl_lazy_open(&lib, &err), -ENOENT);
    assert_string_equal(pl_error_text(&err),
                        "the fake (" FILE_NAME ") is neither in the loader's folders nor in CUDA's "
                        "or Python's: build it, or name its folder in PLUME_CUDA_LIBS");
    assert_int_equal(fake_lazy_number(), -1);
}

/* One that is there, and cannot be loaded: the loader's words. */
static void test_what_cannot_be_loaded_is_told(void **state)
{
    struct pl_error err = {0};

    clear();
    put("broken", true);
    set("PLUME_CUDA_LIBS", "", "broken");
    assert_int_equal(pl_lazy_open(&lib, &err), -ENOENT);
    assert_non_null(strstr(pl_error_text(&err), "the fake cannot be loaded: "));
    assert_non_null(strstr(pl_error_text(&err), "/broken/" FILE_NAME));
    drop("broken");
}

/* The loader may find one that it cannot load, as where a library that it needs is missing. */
static void test_what_the_loader_cannot_load_is_told(void **state)
{
    struct pl_error err = {0};
    char path[256];

    clear();
    put("broken", true);
    snprintf(path, sizeof(path), "%s/broken/" FILE_NAME, top);
    lib.file = path;
    assert_int_equal(pl_lazy_open(&lib, &err), -ENOENT);
    assert_non_null(strstr(pl_error_text(&err), "the fake cannot be loaded: "));
    assert_non_null(strstr(pl_error_text(&err), path));
    drop("broken");
    clear();
    lib.file = path; /* which is no longer there */
    assert_int_equal(pl_lazy_open(&lib, &err), -ENOENT);
    assert_non_null(strstr(pl_error_text(&err), "is neither in the loader's folders nor"));
}

/* Whoever has named a folder gets its library, or a word. */
static void test_another_one_than_the_first_is_told(void **state)
{
    const char *said;

    clear();
    put("broken", true);
    put("cuda/lib", false);
    set("PLUME_CUDA_LIBS", "", "broken");
    set("CUDA_HOME", "", "cuda");
    listen_to_stderr();
    assert_int_equal(pl_lazy_open(&lib, NULL), 0);
    said = what_was_said();
    if (strstr(said, "plume: warning: the the fake that was found first is not used, but another "
                     "one: ") != said ||
        !strstr(said, "/broken/" FILE_NAME))
        fail_msg("%s", said);
    assert_int_equal(dlclose(lib.handle), 0);
    drop("broken");
    drop("cuda/lib");
}

static void test_calls_reach_it(void **state)
{
    clear();
    put("libs", false);
    set("PLUME_CUDA_LIBS", "", "libs");
    assert_int_equal(fake_lazy_number(), 7);
    assert_int_equal(fake_lazy_number(), 7);
    drop("libs");
}

static int begin(void **state)
{
    return mkdtemp(top) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return remove(path);
}

static int end(void **state)
{
    return nftw(top, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_place_is_looked_at),
        cmocka_unit_test(test_what_is_missing_is_named),
        cmocka_unit_test(test_what_cannot_be_loaded_is_told),
        cmocka_unit_test(test_what_the_loader_cannot_load_is_told),
        cmocka_unit_test(test_another_one_than_the_first_is_told),
        cmocka_unit_test(test_calls_reach_it),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
