/* SPDX-License-Identifier: MIT */
#include "common/base/site.h"
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/parse.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#define SIZE_MAX_BYTES 65536

static mode_t folder_mask;
static bool nccl_ras_off;

/* ---- the keys ---- */

static int check_text(const char *value, struct pl_error *err)
{
    return strpbrk(value, " \t") ? pl_error_set(err, -EINVAL, "has blanks in it") : 0;
}

static int check_ports(const char *value, struct pl_error *err)
{
    uint16_t low, high;

    return pl_parse_port_range(value, &low, &high, err);
}

static int check_require(const char *value, struct pl_error *err)
{
    static const char *const words[] = {"auto", "off", "require"};

    for (size_t i = 0; i < PL_COUNT(words); i++)
        if (strcmp(value, words[i]) == 0)
            return 0;
    return pl_error_set(err, -EINVAL, "use auto, off or require");
}

/* Octal, as for umask(1). */
static int take_mask(const char *value, struct pl_error *err)
{
    mode_t mask = 0;

    for (const char *p = value; *p; p++) {
        if (*p < '0' || *p > '7' || p - value > 4)
            return pl_error_set(err, -EINVAL, "use a number as for umask(1), such as 027 or 077");
        mask = mask * 8 + (mode_t)(*p - '0');
    }
    if (mask & ~(mode_t)077)
        return pl_error_set(err, -EINVAL, "takes bits from the owner: use 077 at most");
    folder_mask = mask;
    return 0;
}

static int take_nccl_ras(const char *value, struct pl_error *err)
{
    nccl_ras_off = strcmp(value, "off") == 0;
    return nccl_ras_off || strcmp(value, "auto") == 0
               ? 0
               : pl_error_set(err, -EINVAL, "use auto or off");
}

static const struct {
    const char *key;
    enum pl_env_id id; /* the variable it stands for, or PL_ENV_NONE */
    int (*take)(const char *value, struct pl_error *err);
} table[] = {
    {"hub_bind", PL_ENV_PLUME_HUB_BIND, check_text},
    {"hub_ports", PL_ENV_PLUME_HUB_PORTS, check_ports},
    {"master_ports", PL_ENV_PLUME_MASTER_PORT_RANGE, check_ports},
    {"engine_ports", PL_ENV_PLUME_TCP_PORTS, check_ports},
    {"encrypt", PL_ENV_PLUME_ENCRYPT, check_require},
    {"confine", PL_ENV_PLUME_CONFINE, check_require},
    {"folder_mask", PL_ENV_NONE, take_mask},
    {"nccl_ras", PL_ENV_NONE, take_nccl_ras},
};

/* ---- the file ---- */

static int take_line(char *line, unsigned *seen, struct pl_error *err)
{
    char *value, *end;

    line += strspn(line, " \t");
    end = line + strlen(line);
    while (end > line && strchr(" \t\r", end[-1]))
        *--end = '\0';
    if (!*line || *line == '#')
        return 0;
    value = strchr(line, '=');
    if (!value)
        return pl_error_set(err, -EINVAL, "'%s' is not of the form KEY = VALUE", line);
    for (end = value; end > line && strchr(" \t", end[-1]); end--)
        ;
    *end = '\0';
    value += 1 + strspn(value + 1, " \t");
    if (!*value)
        return pl_error_set(err, -EINVAL, "'%s' has no value", line);
    for (unsigned i = 0; i < PL_COUNT(table); i++) {
        int r;

        if (strcmp(table[i].key, line) != 0)
            continue;
        if (*seen & 1u << i)
            return pl_error_set(err, -EINVAL, "'%s' occurs twice", line);
        *seen |= 1u << i;
        r = table[i].take(value, err);
        if (r < 0)
            return pl_error_wrap(err, r, "%s = %s", line, value);
        r = table[i].id == PL_ENV_NONE ? 0 : pl_env_set(table[i].id, value);
        return r < 0 ? pl_error_nomem(err) : 0;
    }
    return pl_error_set(err, -EINVAL, "unknown key '%s': see plume.conf(5)", line);
}

static int check_owner(const char *path, const struct stat *st, uid_t owner, struct pl_error *err)
{
    if ((st->st_uid == 0 || st->st_uid == owner) && !(st->st_mode & (S_IWGRP | S_IWOTH)))
        return 0;
    return pl_error_set(
        err, -EPERM,
        "'%s' belongs to user %u and has mode %04o: it must be root's, and nobody else "
        "may write to it",
        path, (unsigned)st->st_uid, (unsigned)st->st_mode & 07777);
}

/* Whoever may write to the folder can take the file away, or put one of root's in its place. */
static int check_folder(const char *path, uid_t owner, struct pl_error *err)
{
    const char *slash = strrchr(path, '/');
    _cleanup_free_ char *folder =
        slash ? pl_strf("%.*s", (int)PL_MAX(slash - path, 1), path) : strdup(".");
    struct stat st;

    if (!folder)
        return pl_error_nomem(err);
    if (stat(folder, &st) < 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? -ENOENT
                   : pl_error_errno(err, errno, "cannot look at '%s'", folder);
    return check_owner(folder, &st, owner, err);
}

static int read_file(const char *path, uid_t owner, char **ret, struct pl_error *err)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    struct stat st;
    int code = fd < 0 ? errno : 0, r;

    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > SIZE_MAX_BYTES))
        return pl_error_set(err, -EINVAL, "'%s' is not a regular file of at most 64 KiB", path);
    r = fd >= 0 ? check_owner(path, &st, owner, err) : 0;
    if (r == 0) /* also where there is no file: it may have been taken away */
        r = check_folder(path, owner, err);
    if (r < 0)
        return r;
    if (fd < 0)
        return code == ENOENT || code == ENOTDIR
                   ? -ENOENT
                   : pl_error_errno(err, code, "cannot open '%s'", path);
    text = calloc(1, SIZE_MAX_BYTES + 1);
    if (!text)
        return pl_error_nomem(err);
    while (len < SIZE_MAX_BYTES) {
        ssize_t n = read(fd, text + len, SIZE_MAX_BYTES - len);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return pl_error_errno(err, errno, "cannot read '%s'", path);
        if (n == 0)
            break;
        len += (size_t)n;
    }
    if (strlen(text) != len)
        return pl_error_set(err, -EINVAL, "'%s' has a byte NUL in it", path);
    *ret = PL_TAKE(text);
    return 0;
}

int pl_site_load_from(const char *path, uid_t owner, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    unsigned seen = 0, number = 0;
    int r = read_file(path, owner, &text, err);

    if (r < 0)
        return r == -ENOENT ? 0 : r;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        number++;
        r = take_line(line, &seen, err);
        if (r < 0)
            return pl_error_wrap(err, r, "%s, line %u", path, number);
    }
    return 0;
}

int pl_site_check_file(const char *path, struct pl_error *err)
{
    _cleanup_free_ char *text = NULL;
    int r = read_file(path, 0, &text, err);

    return r == -ENOENT ? 0 : r;
}

int pl_site_load(struct pl_error *err)
{
#ifdef PL_TEST_BUILD
    const char *path = pl_env_text(PL_ENV_PLUME_SITE_CONF);

    if (path)
        return pl_site_load_from(path, geteuid(), err);
#endif
    return pl_site_load_from(PL_SITE_FILE, 0, err);
}

mode_t pl_site_folder_mask(void)
{
    return folder_mask;
}

bool pl_site_nccl_ras_off(void)
{
    return nccl_ras_off;
}
