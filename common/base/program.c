/* SPDX-License-Identifier: MIT */
#include "common/base/program.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <string.h>
#include <sys/stat.h>

bool pl_program_is(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int pl_program_search(const char *name, char **ret)
{
    const char *path = pl_env(PL_ENV_PATH);

    *ret = NULL;
    if (!path || !*path)
        path = "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        size_t len = strcspn(path, ":");
        _cleanup_free_ char *dir = len ? strndup(path, len) : strdup(".");
        _cleanup_free_ char *candidate = dir ? pl_path_join(dir, name) : NULL;

        if (!candidate)
            return -ENOMEM;
        if (pl_program_is(candidate)) {
            _cleanup_free_ char *full = realpath(dir, NULL);

            *ret = full ? pl_path_join(dir[0] == '/' ? dir : full, name) : NULL;
            return *ret ? 0 : -ENOMEM;
        }
        if (path[len] == '\0')
            return 0;
        path += len + 1;
    }
}
