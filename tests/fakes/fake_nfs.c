/* SPDX-License-Identifier: MIT */
/* To preload: names as the client of a network file system sees them. In a folder with FAKE_NFS in
 * its path, a name that was looked for and not found stays missing for this process, whoever makes
 * the file, until the folder of the name is opened: see nfs(5), "Directory entry caching". What the
 * process makes itself, it sees. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAMES_MAX 1000
#define PATH_SIZE 4096
#define VISIBLE __attribute__((visibility("default")))
#define REAL(name) *(void **)&real = real ? (void *)real : dlsym(RTLD_NEXT, name)

static char *missing[NAMES_MAX];

static void forget(size_t i)
{
    free(missing[i]);
    missing[i] = NULL;
}

/* False: not of our concern. */
static bool full_path(int dir, const char *name, char ret[PATH_SIZE])
{
    const char *ours = getenv("FAKE_NFS");
    char link[32], folder[PATH_SIZE / 2] = "";
    int error = errno;
    ssize_t n = 0;

    if (!ours || !name)
        return false;
    if (name[0] != '/') {
        snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
        if (dir == AT_FDCWD)
            snprintf(link, sizeof(link), "/proc/self/cwd");
        n = readlink(link, folder, sizeof(folder) - 1);
        folder[n > 0 ? n : 0] = '\0';
    }
    snprintf(ret, PATH_SIZE, "%s%s%s", folder, name[0] == '/' ? "" : "/", name);
    errno = error;
    return strstr(ret, ours) != NULL;
}

static bool is_at(const char *path, const char *name, size_t len)
{
    return strncmp(path, name, len) == 0 && (path[len] == '\0' || path[len] == '/');
}

/* Notes the first name of the path that does not exist. */
static void note(const char *path)
{
    struct stat st;
    char name[PATH_SIZE];

    for (const char *end = strchr(path + 1, '/');; end = strchr(end + 1, '/')) {
        snprintf(name, sizeof(name), "%.*s", end ? (int)(end - path) : PATH_SIZE - 1, path);
        if (syscall(SYS_newfstatat, AT_FDCWD, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
            for (size_t i = 0; i < NAMES_MAX && strstr(name, getenv("FAKE_NFS")); i++)
                if (!missing[i]) {
                    missing[i] = strdup(name);
                    break;
                }
            return;
        }
        if (!end)
            return;
    }
}

/* True, with ENOENT, if the client has looked for the path in vain before. */
static bool hides(int dir, const char *name)
{
    char path[PATH_SIZE];
    int error = errno;

    if (!full_path(dir, name, path))
        return false;
    for (size_t i = 0; i < NAMES_MAX; i++)
        if (missing[i] && is_at(path, missing[i], strlen(missing[i]))) {
            errno = ENOENT;
            return true;
        }
    note(path);
    errno = error;
    return false;
}

/* The process has opened a folder. */
static void renew(int dir, const char *name)
{
    char path[PATH_SIZE];
    size_t len;

    if (!full_path(dir, name, path))
        return;
    len = strlen(path);
    for (size_t i = 0; i < NAMES_MAX; i++)
        if (missing[i] && is_at(missing[i], path, len) && !strchr(missing[i] + len + 1, '/'))
            forget(i);
}

/* The process makes the name. */
static void made(int dir, const char *name)
{
    char path[PATH_SIZE];

    if (!full_path(dir, name, path))
        return;
    for (size_t i = 0; i < NAMES_MAX; i++)
        if (missing[i] && strcmp(missing[i], path) == 0)
            forget(i);
}

static int open_at(const char *symbol, int dir, const char *name, int flags, unsigned mode)
{
    static int (*real)(int, const char *, int, ...);
    int fd;

    REAL(symbol);
    if (flags & O_CREAT)
        made(dir, name);
    if (hides(dir, name))
        return -1;
    fd = real(dir, name, flags, mode);
    if (fd >= 0 && (flags & O_DIRECTORY))
        renew(dir, name);
    return fd;
}

#define OPEN_AT(symbol)                                                                            \
    VISIBLE int symbol(int dir, const char *name, int flags, ...)                                  \
    {                                                                                              \
        va_list ap;                                                                                \
        unsigned mode;                                                                             \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        mode = va_arg(ap, unsigned);                                                               \
        va_end(ap);                                                                                \
        return open_at(#symbol, dir, name, flags, mode);                                           \
    }

#define OPEN(symbol, at)                                                                           \
    VISIBLE int symbol(const char *name, int flags, ...)                                           \
    {                                                                                              \
        va_list ap;                                                                                \
        unsigned mode;                                                                             \
                                                                                                   \
        va_start(ap, flags);                                                                       \
        mode = va_arg(ap, unsigned);                                                               \
        va_end(ap);                                                                                \
        return open_at(at, AT_FDCWD, name, flags, mode);                                           \
    }

OPEN_AT(openat)
OPEN_AT(openat64)
OPEN(open, "openat")
OPEN(open64, "openat64")

/* RESULT NAME(...) of a path that the client may not see. */
#define LOOK(result, name, dir, path, args, ...)                                                   \
    VISIBLE result name(__VA_ARGS__)                                                               \
    {                                                                                              \
        static result (*real)(__VA_ARGS__);                                                        \
                                                                                                   \
        REAL(#name);                                                                               \
        return hides(dir, path) ? -1 : real args;                                                  \
    }

LOOK(int, access, AT_FDCWD, path, (path, how), const char *path, int how)
LOOK(int, faccessat, dir, path, (dir, path, how, f), int dir, const char *path, int how, int f)
LOOK(int, stat, AT_FDCWD, path, (path, st), const char *path, struct stat *st)
LOOK(int, stat64, AT_FDCWD, path, (path, st), const char *path, struct stat64 *st)
LOOK(int, lstat, AT_FDCWD, path, (path, st), const char *path, struct stat *st)
LOOK(int, lstat64, AT_FDCWD, path, (path, st), const char *path, struct stat64 *st)

/* RESULT NAME(...) that makes a path. */
#define MAKE(name, dir, path, args, ...)                                                           \
    VISIBLE int name(__VA_ARGS__)                                                                  \
    {                                                                                              \
        static int (*real)(__VA_ARGS__);                                                           \
                                                                                                   \
        REAL(#name);                                                                               \
        made(dir, path);                                                                           \
        return real args;                                                                          \
    }

MAKE(mkdir, AT_FDCWD, path, (path, mode), const char *path, mode_t mode)
MAKE(mkdirat, dir, path, (dir, path, mode), int dir, const char *path, mode_t mode)
MAKE(rename, AT_FDCWD, path, (from, path), const char *from, const char *path)
MAKE(renameat,
     dir,
     path,
     (from, old, dir, path),
     int from,
     const char *old,
     int dir,
     const char *path)
MAKE(link, AT_FDCWD, path, (from, path), const char *from, const char *path)

VISIBLE DIR *opendir(const char *name)
{
    static DIR *(*real)(const char *);
    DIR *dir;

    REAL("opendir");
    if (hides(AT_FDCWD, name))
        return NULL;
    dir = real(name);
    if (dir)
        renew(AT_FDCWD, name);
    return dir;
}
