/* SPDX-License-Identifier: MIT */
#include "common/base/slow_fs.h"
#include "common/base/child.h"
#include "common/base/fs.h"

#include <string.h>
#include <unistd.h>

/* Linux asks whether the file system takes changes before it looks for the name. */
static int remove_nothing(void *ctx, int answer)
{
    _cleanup_free_ char *folder = strdup(ctx), *name = NULL;

    pl_close_from(STDERR_FILENO + 1, &answer, 1); /* locks must not outlive the caller */
    while (folder && access(folder, F_OK) < 0 && strrchr(folder, '/') > folder)
        *strrchr(folder, '/') = '\0';
    name = folder ? pl_path_join(folder, ".plume-of-no-file") : NULL;
    if (name)
        rmdir(name);
    return PL_EXIT_OK;
}

int pl_slow_fs_try(const char *folder, unsigned limit_ms)
{
    struct pl_child child = {0};
    int r = pl_child_call(remove_nothing, (void *)(uintptr_t)folder, limit_ms, &child, NULL);

    pl_child_finish(&child);
    return r == -ETIMEDOUT ? r : 0;
}
