/* SPDX-License-Identifier: MIT */
#include "common/proto/key.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <sodium.h>

int pl_key_load(const char *dir, unsigned char ret[PL_KEY_SIZE], struct pl_error *err)
{
    const char *given = pl_env(PL_ENV_PLUME_KEY_FILE);
    _cleanup_free_ char *home_dir = NULL, *path = NULL;
    unsigned char fresh[PL_KEY_SIZE];
    int r;

    if (given && *given) {
        r = pl_secret_read(given, ret, PL_KEY_SIZE, err);
        return r < 0 ? pl_error_wrap(err, r, "PLUME_KEY_FILE") : 0;
    }
    if (dir) {
        path = pl_path_join(dir, "key");
        return path ? pl_secret_read(path, ret, PL_KEY_SIZE, err) : -ENOMEM;
    }
    home_dir = pl_home_dir(err);
    if (!home_dir)
        return err ? err->code : -ENOENT;
    path = pl_path_join(home_dir, "key");
    if (!path)
        return pl_error_set(err, -ENOMEM, "out of memory");
    if (sodium_init() < 0)
        return pl_error_set(err, -ENOSYS, "cannot start libsodium");
    randombytes_buf(fresh, sizeof(fresh));
    r = pl_secret_create(path, fresh, sizeof(fresh), err);
    if (r == 0)
        r = pl_secret_read(path, ret, PL_KEY_SIZE, err);
    return r < 0 ? pl_error_wrap(err, r, "no shared key (see PLUME_KEY_FILE)") : 0;
}
