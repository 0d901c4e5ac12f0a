/* SPDX-License-Identifier: MIT */
/* The folder of a test, for checkpoints. */
#ifndef PL_TESTS_UNIT_ENGINE_CHECKPOINT_CHECKPOINT_DIR_H
#define PL_TESTS_UNIT_ENGINE_CHECKPOINT_CHECKPOINT_DIR_H

#include "common/base/fs.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static inline char *in_dir(const char *name)
{
    char *path = pl_path_join(dir, name);

    assert_non_null(path);
    return path;
}

static inline bool is_there(const char *name)
{
    _cleanup_free_ char *path = in_dir(name);

    return access(path, F_OK) == 0;
}

static inline int make_dir(void **state)
{
    return tmpdir_make(dir, sizeof(dir));
}

static inline int remove_dir(void **state)
{
    return tmpdir_remove(dir);
}

#endif
