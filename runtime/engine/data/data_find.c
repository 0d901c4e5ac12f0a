/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/data_find.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <string.h>

#ifndef PL_DATA_DIR
#define PL_DATA_DIR "/usr/share/plume/data"
#endif

/* The path of an existing file, as a new string; NULL if it does not exist. */
static char *find_one(const char *path, const char *const *dirs, size_t n)
{
    if (path[0] == '/')
        return strdup(path); /* opening it will report the error */
    for (size_t i = 0; i < n; i++) {
        _cleanup_free_ char *full = dirs[i] ? pl_path_join(dirs[i], path) : NULL;

        if (full && access(full, F_OK) == 0)
            return PL_TAKE(full);
    }
    return NULL;
}

int pl_data_find(const char *paths, char **ret, struct pl_error *err)
{
    _cleanup_free_ char *program = pl_program_folder();
    _cleanup_free_ char *beside = program ? pl_path_join(program, "data") : NULL;
    const char *env = pl_env(PL_ENV_PLUME_DATA_DIR);
    const char *const dirs[] = {env && *env ? env : NULL, beside, PL_DATA_DIR};
    _cleanup_(pl_buf_finish) struct pl_buf all = {0};
    _cleanup_free_ char *full = NULL;

    full = find_one(paths, dirs, PL_COUNT(dirs)); /* a ':' may be part of a name */
    if (full && access(full, F_OK) == 0) {
        *ret = PL_TAKE(full);
        return 0;
    }
    for (const char *p = paths;; p++) {
        size_t len = strcspn(p, ":");
        _cleanup_free_ char *one = strndup(p, len);
        _cleanup_free_ char *found = one ? find_one(one, dirs, PL_COUNT(dirs)) : NULL;

        if (!found)
            return pl_error_set(err, -ENOENT, "no data file '%s' in %s%s%s or %s", one ? one : "",
                                dirs[0] ? dirs[0] : "", dirs[0] ? ", " : "", beside ? beside : "",
                                PL_DATA_DIR);
        if (pl_buf_addf(&all, "%s%s", p > paths ? ":" : "", found) < 0)
            return pl_error_nomem(err);
        p += len;
        if (!*p)
            break;
    }
    *ret = pl_buf_take(&all);
    return *ret ? 0 : pl_error_nomem(err);
}
