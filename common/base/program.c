/* SPDX-License-Identifier: MIT */
#include "common/base/program.h"
#include "common/base/env.h"
#include "common/base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINE_BYTES 256 /* of a #! line; the kernel reads as many */

bool pl_program_is(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

int pl_program_search(const char *name, char **ret)
{
    const char *path = pl_env(PL_ENV_PATH);

    *ret = NULL;
    if (!path || !*path)
        path = "/usr/local/bin:/usr/bin:/bin";
    for (;;) {
        size_t len = strcspn(path, ":");
        _cleanup_free_ char *dir = len ? strndup(path, len) : strdup(".");
        _cleanup_free_ char *candidate = dir ? pl_path_join(dir, name) : NULL;

        if (!candidate)
            return -ENOMEM;
        if (pl_program_is(candidate)) {
            _cleanup_free_ char *full = realpath(dir, NULL);

            *ret = full ? pl_path_join(dir[0] == '/' ? dir : full, name) : NULL;
            return *ret ? 0 : -ENOMEM;
        }
        if (path[len] == '\0')
            return 0;
        path += len + 1;
    }
}

bool pl_program_interpreter(const char *path, char *ret, size_t size, bool *ret_cr)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char line[LINE_BYTES + 1];
    ssize_t n = fd >= 0 ? read(fd, line, LINE_BYTES) : -1;
    const char *word = line + 2;
    size_t len = 0;

    if (n < 2 || memcmp(line, "#!", 2) != 0)
        return false;
    line[n] = '\0';
    word += strspn(word, " \t");
    while (word[len] > ' ' && word[len] < 0x7f)
        len++;
    snprintf(ret, size, "%.*s", (int)len, word);
    word += strcspn(word, "\r\n");
    *ret_cr = word[0] == '\r' && word[1] == '\n';
    return true;
}

/* Of a file that exists and names another one that does not. */
static void why_missing(const char *path, char *ret, size_t size)
{
    char interpreter[LINE_BYTES];
    bool cr;

    if (!pl_program_interpreter(path, interpreter, sizeof(interpreter), &cr))
        snprintf(ret, size, "it was built for another system, whose loader is not here");
    else if (cr)
        snprintf(
            ret, size,
            "its #! line ends as on Windows (CR LF): convert the file, for example by dos2unix");
    else
        snprintf(ret, size, "its #! line names '%s', which is not here", interpreter);
}

void pl_program_why(const char *name, int error, char *ret, size_t size)
{
    _cleanup_free_ char *found = NULL;
    const char *path = strchr(name, '/') ? name : NULL;
    struct stat st;

    if (!path && pl_program_search(name, &found) == 0)
        path = found;
    if (path && error == ENOENT && pl_program_is(path))
        why_missing(path, ret, size);
    else if (path && error == EACCES && stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
             !(st.st_mode & 0111))
        snprintf(ret, size, "%s: chmod +x it, or name its interpreter", strerror(error));
    else
        snprintf(ret, size, "%s", strerror(error));
}
