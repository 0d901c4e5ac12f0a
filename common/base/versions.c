/* SPDX-License-Identifier: MIT */
#include "common/base/versions.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define ASK_MS 1000
#define FILE_MAX 4096u

void pl_versions_release(const char *text, char *ret, size_t size)
{
    *ret = '\0';
    while (*text) {
        size_t len = strcspn(text, " \t\n"), number = strspn(text, "0123456789.");

        if (number == len && len > 0 && memchr(text, '.', len) && text[0] != '.') {
            snprintf(ret, size, "%.*s", (int)len, text);
            return;
        }
        text += len + strspn(text + len, " \t\n");
    }
}

static void read_driver(const char *root, char ret[PL_VERSION_MAX])
{
    _cleanup_free_ char *path = pl_strf("%s/proc/driver/nvidia/version", root), *text = NULL;

    if (path && pl_file_read(path, FILE_MAX, &text, NULL, NULL) == 0)
        pl_versions_release(text, ret, PL_VERSION_MAX);
}

/* Finds the file that a library's link leads to, "libnccl.so.2.18.3" of libnccl.so.2. False: there
 * is no such library in the folder, or it has no release in its name. */
static bool find_library(const char *root, const char *folder, const char *link, char *ret)
{
    _cleanup_free_ char *path = pl_strf("%s%s/%s", root, folder, link);
    _cleanup_free_ char *real = path ? realpath(path, NULL) : NULL;
    const char *name = real ? strrchr(real, '/') + 1 : "";

    if (strncmp(name, link, strlen(link)) != 0 || name[strlen(link)] != '.')
        return false;
    snprintf(ret, PL_VERSION_MAX, "%s", name);
    return true;
}

static void read_folder(const char *root, const char *folder, struct pl_versions *ret)
{
    static const char nccl[] = "libnccl.so.2", *const mpi[] = {"libmpi.so.40", "libmpi.so.12",
                                                               "libmpich.so.12"};
    char name[PL_VERSION_MAX];

    if (!*ret->nccl && find_library(root, folder, nccl, name))
        snprintf(ret->nccl, sizeof(ret->nccl), "%s", name + strlen("libnccl.so."));
    for (size_t i = 0; i < PL_COUNT(mpi) && !*ret->mpi; i++)
        if (find_library(root, folder, mpi[i], name))
            memcpy(ret->mpi, name, sizeof(name));
}

void pl_versions_read(const char *root, const char *library_path, struct pl_versions *ret)
{
    static const char usual[] = "/usr/lib/x86_64-linux-gnu:/usr/lib/aarch64-linux-gnu:/usr/lib64:"
                                "/usr/local/cuda/lib64:/usr/local/lib";
    _cleanup_free_ char *all = pl_strf("%s:%s", library_path ? library_path : "", usual);
    char *next = all, *folder;

    *ret = (struct pl_versions){0};
    read_driver(root, ret->driver);
    while (all && (folder = strsep(&next, ":")))
        if (*folder == '/')
            read_folder(root, folder, ret);
}

static int answer(void *ctx, int fd)
{
    struct pl_versions versions;

    pl_versions_read("", pl_env_named("LD_LIBRARY_PATH"), &versions);
    return pl_write_all(fd, &versions, sizeof(versions)) < 0;
}

void pl_versions_ask(struct pl_versions *ret)
{
    struct pl_child child = {0};

    *ret = (struct pl_versions){0};
    if (pl_child_call(answer, NULL, ASK_MS, &child, NULL) == 0 && child.out.len == sizeof(*ret))
        memcpy(ret, child.out.data, sizeof(*ret));
    pl_child_finish(&child);
}
