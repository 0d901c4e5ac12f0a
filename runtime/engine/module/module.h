/* SPDX-License-Identifier: MIT */
/* Finding, loading and checking a module (plume/module.h). */
#ifndef PL_RUNTIME_ENGINE_MODULE_MODULE_H
#define PL_RUNTIME_ENGINE_MODULE_MODULE_H

#include "common/base/error.h"
#include "plume/module.h"

struct pl_module {
    struct plume_module hooks; /* a copy, as long as this engine knows it; the rest is zero */
    void *handle;
    char *path;
};

/* `name` with a slash in it is a path; else NAME.so is looked for in $PLUME_MODULE_PATH (folders,
 * split by ':'), in "modules" beside the program, and where Plume is installed.
 * -ENOENT (lists where it looked), -ELIBBAD (cannot be loaded, or lacks the entry),
 * -EPROTO (another ABI), -EINVAL (a needed hook is NULL). */
int pl_module_open(const char *name, struct pl_module *ret, struct pl_error *err);
void pl_module_close(struct pl_module *module);

/* As pl_module_open() for a table that is in the program. */
int pl_module_check(const struct plume_module *table,
                    const char *path,
                    struct plume_module *ret,
                    struct pl_error *err);

#endif
