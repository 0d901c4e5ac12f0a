/* SPDX-License-Identifier: MIT */
#include "runtime/engine/module/module.h"
#include "common/base/buf.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>

#ifndef PL_MODULE_DIR
#define PL_MODULE_DIR "/usr/lib/plume/modules"
#endif

/* Looks for dir/name.so. Returns 1 if found. */
static int look_in(const char *dir, size_t len, const char *name, struct pl_buf *looked, char **ret)
{
    char *path = pl_strf("%.*s/%s.so", (int)len, dir, name);

    if (!path || pl_buf_addf(looked, "%s%.*s", looked->len ? ", " : "", (int)len, dir) < 0) {
        free(path);
        return -ENOMEM;
    }
    if (access(path, F_OK) == 0) {
        *ret = path;
        return 1;
    }
    free(path);
    return 0;
}

static int find_module(const char *name, char **ret, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf looked = {0};
    _cleanup_free_ char *program = pl_program_folder(), *beside = NULL;
    const char *list = pl_env(PL_ENV_PLUME_MODULE_PATH);
    int r = 0;

    if (strchr(name, '/')) {
        if (access(name, F_OK) < 0)
            return pl_error_errno(err, errno, "no module at '%s'", name);
        *ret = strdup(name);
        return *ret ? 0 : pl_error_nomem(err);
    }
    while (list && *list && r == 0) {
        size_t len = strcspn(list, ":");

        if (len)
            r = look_in(list, len, name, &looked, ret);
        list += len + (list[len] == ':');
    }
    if (r == 0 && program && (beside = pl_path_join(program, "modules")))
        r = look_in(beside, strlen(beside), name, &looked, ret);
    if (r == 0)
        r = look_in(PL_MODULE_DIR, strlen(PL_MODULE_DIR), name, &looked, ret);
    if (r < 0)
        return pl_error_set(err, r, "out of memory");
    if (r == 0)
        return pl_error_set(err, -ENOENT,
                            "no module '%s' in %s: name one of those there, or give a path with a "
                            "slash",
                            name, pl_buf_str(&looked));
    return 0;
}

int pl_module_check(const struct plume_module *table,
                    const char *path,
                    struct plume_module *ret,
                    struct pl_error *err)
{
    struct plume_module m = {0};
    size_t least = offsetof(struct plume_module, abi) + sizeof(table->abi);

    if (!table)
        return pl_error_set(err, -EINVAL, "module '%s' has no table: %s() returned NULL", path,
                            PLUME_MODULE_ENTRY);
    if (table->struct_size < least || table->abi != PLUME_MODULE_ABI)
        return pl_error_set(err, -EPROTO,
                            "module '%s' is made for module interface %u, this pltrain has %u: "
                            "compile it against this release's plume/module.h",
                            path, table->struct_size < least ? 0 : table->abi, PLUME_MODULE_ABI);
    memcpy(&m, table, PL_MIN(table->struct_size, sizeof(m)));
    if (!m.name)
        return pl_error_set(err, -EINVAL, "module '%s' has no name", path);
    if (!m.configure || !m.data || !m.training_step)
        return pl_error_set(err, -EINVAL, "module '%s' lacks the hook %s", path,
                            !m.configure ? "configure"
                            : !m.data    ? "data"
                                         : "training_step");
    if (m.objective && strncmp(m.objective, "max:", 4) != 0 && strncmp(m.objective, "min:", 4) != 0)
        return pl_error_set(err, -EINVAL,
                            "module '%s' has the objective '%s': must be max:NAME or min:NAME",
                            path, m.objective);
    m.struct_size = sizeof(m);
    *ret = m;
    return 0;
}

/* The loader reports of a source file only that it is too short, or has a wrong header. */
static int refuse_file(const char *path, const char *why, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    const char *dot = strrchr(path, '.');
    char head[4];

    if (fd < 0 || (read(fd, head, sizeof(head)) == sizeof(head) && memcmp(head, "\177ELF", 4) == 0))
        return pl_error_set(err, -ELIBBAD, "cannot load module '%s': %s", path, why);
    if (dot && strcmp(dot, ".py") == 0)
        return pl_error_set(err, -ENOEXEC,
                            "'%s' is a Python program, not a module of pltrain: run it by "
                            "'plsubmit python %s' or 'srun plrun -- python %s'",
                            path, path, path);
    return pl_error_set(err, -ENOEXEC,
                        "'%s' is not a shared object: compile the module as plume-module(7) shows, "
                        "and name the file that the compiler made",
                        path);
}

int pl_module_open(const char *name, struct pl_module *ret, struct pl_error *err)
{
    const struct plume_module *(*entry)(void);
    struct pl_module m = {0};
    int r = find_module(name, &m.path, err);

    if (r < 0)
        return r;
    m.handle = dlopen(m.path, RTLD_NOW | RTLD_LOCAL);
    if (!m.handle) {
        r = refuse_file(m.path, dlerror(), err);
        goto fail;
    }
    entry = (const struct plume_module *(*)(void))dlsym(m.handle, PLUME_MODULE_ENTRY);
    if (!entry) {
        r = pl_error_set(err, -ENOEXEC, "'%s' is not a Plume module: it has no symbol %s", m.path,
                         PLUME_MODULE_ENTRY);
        goto fail;
    }
    r = pl_module_check(entry(), m.path, &m.hooks, err);
    if (r < 0)
        goto fail;
    *ret = m;
    return 0;
fail:
    pl_module_close(&m);
    return r;
}

void pl_module_close(struct pl_module *module)
{
    if (module->handle)
        dlclose(module->handle);
    free(module->path);
    *module = (struct pl_module){0};
}
