/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/plugin.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <dlfcn.h>

#ifndef PL_PLUGIN_DIR
#define PL_PLUGIN_DIR "/usr/lib/plume"
#endif

int pl_plugin_load(const char *file, int flags, void **ret, struct pl_error *err)
{
    _cleanup_free_ char *program = pl_program_folder();
    const char *dirs[] = {pl_env(PL_ENV_PLUME_PLUGIN_DIR), program, PL_PLUGIN_DIR};
    int r = pl_error_set(err, -ENOTSUP, "%s is not installed", file);

    for (size_t i = 0; i < PL_COUNT(dirs); i++) {
        _cleanup_free_ char *path = dirs[i] ? pl_path_join(dirs[i], file) : NULL;
        void *handle;

        if (!path || access(path, F_OK) < 0)
            continue;
        handle = dlopen(path, flags);
        if (handle) {
            *ret = handle;
            return 0;
        }
        r = pl_error_set(err, -ENOTSUP, "%s", dlerror());
    }
    return r;
}
