/* SPDX-License-Identifier: MIT */
#include "runtime/engine/cuda/lazy/lazy.h"
#include "common/base/env.h"
#include "common/base/log.h"

#include <dlfcn.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

/* Folders that may have the file, in a glob's pattern; NULL: no such environment variable. */
struct place {
    enum pl_env_id env; /* its value stands before the pattern */
    const char *pattern;
};

static const struct place places[] = {
    {PL_ENV_CUDA_HOME, "/lib64"},
    {PL_ENV_CUDA_HOME, "/lib"},
    {PL_ENV_NONE, "/usr/local/cuda/lib64"},
    {PL_ENV_NONE, "/usr/local/cuda-*/lib64"},
    {PL_ENV_NONE, "/opt/cuda/lib64"},
    {PL_ENV_VIRTUAL_ENV, "/lib/python3*/site-packages/nvidia/*/lib"},
    {PL_ENV_CONDA_PREFIX, "/lib"},
    {PL_ENV_CONDA_PREFIX, "/lib/python3*/site-packages/nvidia/*/lib"},
    {PL_ENV_HOME, "/.local/lib/python3*/site-packages/nvidia/*/lib"},
    {PL_ENV_NONE, "/usr/local/lib/python3*/*-packages/nvidia/*/lib"},
    {PL_ENV_NONE, "/usr/lib/python3*/*-packages/nvidia/*/lib"},
};

/* Opens a file. The loader's words about the first one that is there and cannot be opened are kept.
 */
static void *open_file(const char *path, char *why, size_t size)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *text = handle ? NULL : dlerror();

    if (text && !*why)
        snprintf(why, size, "%s", text);
    return handle;
}

/* Opens what the loader finds by itself. That it has no such file says nothing of one. */
static void *open_known(const char *file, char *why, size_t size)
{
    char text[200] = "";
    void *handle = open_file(file, text, sizeof(text));

    if (!handle && !*why &&
        !(strncmp(text, file, strlen(file)) == 0 && strstr(text, "No such file")))
        snprintf(why, size, "%s", text);
    return handle;
}

static void *open_in(const char *folder, const char *file, char *why, size_t size)
{
    char path[4096];

    if ((size_t)snprintf(path, sizeof(path), "%s/%s", folder, file) >= sizeof(path) ||
        access(path, F_OK) < 0)
        return NULL;
    return open_file(path, why, size);
}

/* In each folder that the pattern names, the last by its name first. */
static void *open_below(const struct place *place, const char *file, char *why, size_t size)
{
    const char *top = place->env == PL_ENV_NONE ? "" : pl_env_text(place->env);
    char pattern[4096];
    void *handle = NULL;
    glob_t found;

    if (!top ||
        (size_t)snprintf(pattern, sizeof(pattern), "%s%s", top, place->pattern) >= sizeof(pattern))
        return NULL;
    if (glob(pattern, 0, NULL, &found) != 0)
        return NULL;
    for (size_t i = found.gl_pathc; i-- > 0 && !handle;)
        handle = open_in(found.gl_pathv[i], file, why, size);
    globfree(&found);
    return handle;
}

/* In the folders of a list with colons. */
static void *open_in_list(const char *list, const char *file, char *why, size_t size)
{
    _cleanup_free_ char *copy = list ? strdup(list) : NULL;
    char *rest = copy, *folder;
    void *handle = NULL;

    while (!handle && rest && (folder = strsep(&rest, ":")))
        if (*folder)
            handle = open_in(folder, file, why, size);
    return handle;
}

/* `why` stays "" if no place has the file. */
static void *look(const char *file, char *why, size_t size)
{
    void *handle = open_in_list(pl_env_text(PL_ENV_PLUME_CUDA_LIBS), file, why, size);

    if (!handle)
        handle = open_known(file, why, size);
    for (size_t i = 0; !handle && i < PL_COUNT(places); i++)
        handle = open_below(&places[i], file, why, size);
    return handle;
}

static void open_once(struct pl_lazy *lib)
{
    char why[200] = "", ignored[200] = "";

    lib->tried = true;
    for (size_t i = 0; lib->before && lib->before[i]; i++)
        (void)look(lib->before[i], ignored, sizeof(ignored)); /* stays open */
    lib->handle = look(lib->file, why, sizeof(why));
    if (lib->handle && *why)
        pl_log_warn("cuda", "the %s that was found first is not used, but another one: %s",
                    lib->name, why);
    if (lib->handle)
        pl_log_debug("cuda", "%s is %s", lib->name, lib->file);
    else if (*why)
        pl_error_set(&lib->why, -ENOENT, "%s cannot be loaded: %s", lib->name, why);
    else
        pl_error_set(&lib->why, -ENOENT,
                     "%s (%s) is neither in the loader's folders nor in CUDA's or Python's: %s, or "
                     "name its folder in PLUME_CUDA_LIBS",
                     lib->name, lib->file, lib->advice);
}

int pl_lazy_open(struct pl_lazy *lib, struct pl_error *err)
{
    int r = 0;

    pthread_mutex_lock(&lib->lock);
    if (!lib->tried)
        open_once(lib);
    if (!lib->handle)
        r = pl_error_set(err, -ENOENT, "%s", pl_error_text(&lib->why));
    pthread_mutex_unlock(&lib->lock);
    return r;
}

void *pl_lazy_find(struct pl_lazy *lib, const char *symbol)
{
    return pl_lazy_open(lib, NULL) < 0 ? NULL : dlsym(lib->handle, symbol);
}
