/* SPDX-License-Identifier: MIT */
/* The secret of the ranks at the module's own rendezvous. Ranks that have a node daemon get it
 * through that: rank 0's random bytes. Ranks that somebody started by hand share a file, the same
 * that daemons use: PLUME_KEY_FILE, else ~/.plume/key, which is made on first use. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/comm/comm_store.h"

#include <string.h>
#include <sys/random.h>

#define FILE_BYTES 32

static int random_bytes(uint8_t *ret, size_t len, struct pl_error *err)
{
    if (getrandom(ret, len, 0) != (ssize_t)len)
        return pl_error_errno(err, errno, "cannot get random bytes");
    return 0;
}

static int read_hex(const char *hex, uint8_t ret[PL_SHA256_BYTES])
{
    for (size_t i = 0; i < PL_SHA256_BYTES; i++) {
        unsigned byte;
        char two[3] = {hex[2 * i], hex[2 * i] ? hex[2 * i + 1] : '\0', '\0'};
        int used = 0;

        if (sscanf(two, "%2x%n", &byte, &used) != 1 || used != 2)
            return -EPROTO;
        ret[i] = (uint8_t)byte;
    }
    return hex[(size_t)2 * PL_SHA256_BYTES] ? -EPROTO : 0;
}

void pl_store_hex(const uint8_t bytes[PL_SHA256_BYTES], char ret[2 * PL_SHA256_BYTES + 1])
{
    for (size_t i = 0; i < PL_SHA256_BYTES; i++)
        snprintf(ret + 2 * i, 3, "%02x", bytes[i]);
}

static int key_by_link(const struct pl_world *world,
                       struct pl_rank_link *link,
                       unsigned timeout_ms,
                       uint8_t ret[PL_SHA256_BYTES],
                       struct pl_error *err)
{
    char text[2 * PL_SHA256_BYTES + 1] = "-";
    _cleanup_free_ char **texts = NULL;
    size_t n;
    int r = 0;

    if (world->rank == 0) {
        r = random_bytes(ret, PL_SHA256_BYTES, err);
        pl_store_hex(ret, text);
    }
    if (r == 0)
        r = pl_rank_link_exchange(link, "engine-store", text, timeout_ms, &texts, &n, err);
    if (r < 0)
        return r;
    if (n == 0 || read_hex(texts[0], ret) < 0)
        return pl_error_set(err, -EPROTO, "rank 0 runs another version of the engine");
    return 0;
}

static int key_by_file(uint8_t ret[PL_SHA256_BYTES], struct pl_error *err)
{
    static const char context[] = "plume engine store 1";
    const char *given = pl_env_text(PL_ENV_PLUME_KEY_FILE);
    _cleanup_free_ char *home = NULL, *path = NULL;
    uint8_t secret[FILE_BYTES];
    int r;

    if (given) {
        r = pl_secret_read(given, secret, sizeof(secret), err);
        if (r < 0)
            return pl_error_wrap(err, r, "PLUME_KEY_FILE");
    } else {
        home = pl_home_dir(err);
        if (!home)
            return err->code;
        path = pl_path_join(home, "key");
        if (!path)
            return pl_error_nomem(err);
        r = random_bytes(secret, sizeof(secret), err);
        if (r == 0)
            r = pl_secret_create(path, secret, sizeof(secret), err);
        if (r == 0)
            r = pl_secret_read(path, secret, sizeof(secret), err);
        if (r < 0)
            return pl_error_wrap(err, r, "the ranks share no key (see PLUME_KEY_FILE)");
    }
    pl_hmac_sha256(secret, sizeof(secret), context, sizeof(context), ret);
    explicit_bzero(secret, sizeof(secret));
    return 0;
}

int pl_comm_store_key(const struct pl_world *world,
                      struct pl_rank_link *link,
                      unsigned timeout_ms,
                      uint8_t ret[PL_SHA256_BYTES],
                      struct pl_error *err)
{
    return link ? key_by_link(world, link, timeout_ms, ret, err) : key_by_file(ret, err);
}
