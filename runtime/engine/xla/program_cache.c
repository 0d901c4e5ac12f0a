/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/program_cache.h"
#include "common/base/buf.h"
#include "common/base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "programs" /* in ~/.plume */
#define SUFFIX ".program"

/* A file begins with it. */
struct header {
    char magic[8];
    uint8_t key[PL_SHA256_BYTES], hash[PL_SHA256_BYTES]; /* hash: of what follows */
};

static const char magic[8] = "plprog1";

static void hash_of(const char *data, size_t len, uint8_t ret[PL_SHA256_BYTES])
{
    struct pl_sha256 sha;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, data, len);
    pl_sha256_final(&sha, ret);
}

static char *folder_path(struct pl_error *err)
{
    _cleanup_free_ char *home = pl_home_dir(err);
    char *path = home ? pl_path_join(home, FOLDER) : NULL;

    if (home && !path)
        pl_error_nomem(err);
    if (path && pl_mkdir_private(path, err) < 0) {
        free(path);
        return NULL;
    }
    return path;
}

/* Half of the key tells files apart; the whole one is in the file. */
static char *file_path(const char *folder, const uint8_t *key)
{
    char name[PL_SHA256_BYTES + sizeof(SUFFIX)];

    for (size_t i = 0; i < PL_SHA256_BYTES / 2; i++)
        snprintf(name + 2 * i, 3, "%02x", key[i]);
    memcpy(name + PL_SHA256_BYTES, SUFFIX, sizeof(SUFFIX));
    return pl_path_join(folder, name);
}

int pl_program_cache_get(const uint8_t key[PL_SHA256_BYTES],
                         char **ret,
                         const char **data,
                         size_t *len,
                         struct pl_error *err)
{
    struct pl_error own = {0};
    _cleanup_free_ char *folder = folder_path(err ? err : &own), *path = NULL, *file = NULL;
    uint8_t hash[PL_SHA256_BYTES];
    struct header header;
    size_t n;
    int r;

    if (!folder)
        return (err ? err : &own)->code;
    path = file_path(folder, key);
    if (!path)
        return pl_error_nomem(err);
    r = pl_file_read(path, PL_PROGRAM_BYTES_MAX + sizeof(header), &file, &n, err);
    if (r < 0)
        return r;
    if (n < sizeof(header))
        return pl_error_set(err, -EBADMSG, "'%s' is truncated", path);
    memcpy(&header, file, sizeof(header));
    hash_of(file + sizeof(header), n - sizeof(header), hash);
    if (memcmp(header.magic, magic, sizeof(magic)) != 0 ||
        memcmp(header.key, key, sizeof(header.key)) != 0 ||
        memcmp(header.hash, hash, sizeof(hash)) != 0)
        return pl_error_set(err, -EBADMSG, "'%s' is damaged", path);
    utimensat(AT_FDCWD, path, NULL, 0); /* used: it stays longer */
    *data = file + sizeof(header);
    *len = n - sizeof(header);
    *ret = file;
    file = NULL;
    return 0;
}

struct found {
    char *name;
    size_t bytes;
    struct timespec time;
};

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct found *)a)->time;
    const struct timespec *y = &((const struct found *)b)->time;

    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? 1 : -1;
    return x->tv_nsec < y->tv_nsec ? 1 : x->tv_nsec > y->tv_nsec ? -1 : 0;
}

/* Removes all but the newest files. What cannot be removed stays. */
static void thin(const char *folder)
{
    DIR *dir = opendir(folder);
    struct found *list = NULL, *more;
    struct dirent *entry;
    size_t n = 0, bytes = 0;
    struct stat st;

    while (dir && (entry = readdir(dir))) {
        if (!strstr(entry->d_name, SUFFIX) || /* a temporary one of a writer that died, too */
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        more = reallocarray(list, n + 1, sizeof(*list));
        if (!more)
            break;
        list = more;
        list[n] = (struct found){strdup(entry->d_name), (size_t)st.st_size, st.st_mtim};
        n += list[n].name != NULL;
    }
    if (n)
        qsort(list, n, sizeof(*list), by_age);
    for (size_t i = 0; i < n; i++) {
        bytes += list[i].bytes;
        if (i >= PL_PROGRAMS_MAX || (i && bytes > PL_PROGRAMS_BYTES_MAX))
            unlinkat(dirfd(dir), list[i].name, 0);
        free(list[i].name);
    }
    free(list);
    if (dir)
        closedir(dir);
}

int pl_program_cache_put(const uint8_t key[PL_SHA256_BYTES],
                         const char *data,
                         size_t len,
                         struct pl_error *err)
{
    struct pl_error own = {0};
    _cleanup_free_ char *folder = folder_path(err ? err : &own), *path = NULL;
    _cleanup_(pl_buf_finish) struct pl_buf file = {0};
    struct header header = {0};
    int r;

    if (!folder)
        return (err ? err : &own)->code;
    if (len > PL_PROGRAM_BYTES_MAX)
        return pl_error_set(err, -EFBIG, "the program has %zu MB, too many to keep", len >> 20);
    memcpy(header.magic, magic, sizeof(magic));
    memcpy(header.key, key, sizeof(header.key));
    hash_of(data, len, header.hash);
    path = file_path(folder, key);
    if (!path || pl_buf_add(&file, &header, sizeof(header)) < 0 || pl_buf_add(&file, data, len) < 0)
        return pl_error_nomem(err);
    r = pl_file_replace(path, file.data, file.len, 0600, err);
    if (r == 0)
        thin(folder);
    return r;
}
