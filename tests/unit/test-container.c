/* SPDX-License-Identifier: MIT */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/strv.h"
#include "runtime/plrun/container.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The bind of a working directory of this name: releases before 2022 have --bind alone, which can
 * write all names but a few. */
static void bound_by(const char *name, const char *option)
{
    char *argv[] = {(char *)"true", NULL};
    _cleanup_(pl_strv_freep) char **words = NULL;
    struct pl_error err = {0};
    char dir[128], path[256], search[512];

    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    snprintf(path, sizeof(path), "%s/apptainer", dir);
    assert_int_equal(pl_file_write_atomic(path, "", 0, 0755, NULL), 0);
    snprintf(search, sizeof(search), "%s:%s", dir, getenv("PATH"));
    setenv("PATH", search, 1);
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(chdir(path), 0);
    pl_env_set(PL_ENV_PLUME_CONTAINER, "image.sif");
    if (pl_container_words(argv, &words, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    assert_string_equal(words[1], "exec");
    for (size_t i = 2; strcmp(words[i], option) != 0; i++)
        if (!words[i + 1])
            fail_msg("'%s' is not bound by %s", name, option);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(tmpdir_remove(dir), 0);
}

static void test_binds(void **state)
{
    static const char *const plain[] = {"a", "a b", "m\xc3\xbcller", "a(1)#{}$`'"};
    static const char *const others[] = {"a,b", "a:b", "a^b", "a\"b", "a\\b", "a\nb"};

    unsetenv("PLUME_RUN_DIR");
    unsetenv("PLUME_SOCKET");
    for (size_t i = 0; i < PL_COUNT(plain); i++)
        bound_by(plain[i], "--bind");
    for (size_t i = 0; i < PL_COUNT(others); i++)
        bound_by(others[i], "--mount");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_binds)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
