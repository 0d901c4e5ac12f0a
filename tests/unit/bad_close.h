/* SPDX-License-Identifier: MIT */
/* close(2) in place of libc's, in the test that includes this: a network file system may find no
 * room only then. */
#ifndef PL_TESTS_UNIT_BAD_CLOSE_H
#define PL_TESTS_UNIT_BAD_CLOSE_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *bad_close; /* fails for files whose path ends so; NULL: for none */

int close(int fd)
{
    char link[32], path[PATH_MAX];
    ssize_t n = -1, len = bad_close ? (ssize_t)strlen(bad_close) : 0;
    int r;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (bad_close)
        n = readlink(link, path, sizeof(path));
    r = (int)syscall(SYS_close, fd);
    if (r < 0 || n < len || memcmp(path + n - len, bad_close, (size_t)len) != 0)
        return r;
    errno = EDQUOT;
    return -1;
}

#endif
