/* SPDX-License-Identifier: MIT */
/* Finding, loading and checking a module (plume/module.h). */
#ifndef PL_RUNTIME_ENGINE_MODULE_MODULE_H
#define PL_RUNTIME_ENGINE_MODULE_MODULE_H

#include "common/base/error.h"
#include "plume/module.h"

struct pl_module {
    struct plume_module
        hooks; /* a copy of the fields that this engine knows; the others are zero */
    void *handle;
    char *path;
};

/* `name` with a slash is a path. Otherwise NAME.so is searched in $PLUME_MODULE_PATH (folders,
 * separated by ':'), in "modules" in the program's folder, and in the installation. -ENOENT (lists
 * the folders searched), -ELIBBAD (a shared object that cannot be loaded here), and for a file that
 * is no module on any machine -ENOEXEC (no shared object, or one that lacks the entry), -EPROTO
 * (another ABI), -EINVAL (a required hook is NULL). */
int pl_module_open(const char *name, struct pl_module *ret, struct pl_error *err);
void pl_module_close(struct pl_module *module);

/* Does the same checks for a table within the program. */
int pl_module_check(const struct plume_module *table,
                    const char *path,
                    struct plume_module *ret,
                    struct pl_error *err);

#endif
