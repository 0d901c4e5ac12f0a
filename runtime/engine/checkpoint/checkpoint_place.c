/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/checkpoint_place.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

char *pl_checkpoint_temp(const char *path)
{
    uint64_t number = 0;

    if (getrandom(&number, sizeof(number), GRND_NONBLOCK) != sizeof(number))
        number = pl_now_ns() ^ (uint64_t)getpid() << 40;
    return pl_strf("%s.tmp-%016llx", path, (unsigned long long)number);
}

static int sync_folder(const char *path, struct pl_error *err)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *dir =
        slash ? strndup(path, PL_MAX((size_t)(slash - path), (size_t)1)) : strdup(".");

    return dir ? pl_dir_sync(dir, NULL, 0, err) : pl_error_nomem(err);
}

int pl_checkpoint_place(const char *temp, const char *path, struct pl_error *err)
{
    int r = pl_file_place(AT_FDCWD, temp, path);

    if (r < 0) {
        unlink(temp);
        return pl_error_errno(err, r, "cannot write checkpoint '%s'", path);
    }
    return sync_folder(path, err);
}
