/* SPDX-License-Identifier: MIT */
#include "common/base/tail.h"
#include "common/base/buf.h"
#include "common/base/fs.h"

#include <fcntl.h>
#include <sys/stat.h>

char *pl_tail_text(const char *data, size_t len)
{
    struct pl_buf out = {0};
    size_t from, lines = 0;

    while (len && (data[len - 1] == '\n' || data[len - 1] == '\r'))
        len--;
    for (from = len; from > 0 && len - from < PL_TAIL_BYTES; from--)
        if (data[from - 1] == '\n' && ++lines == PL_TAIL_LINES)
            break;
    if (pl_buf_add_text(&out, data + from, len - from) < 0) {
        pl_buf_finish(&out);
        return NULL;
    }
    return pl_buf_take(&out);
}

char *pl_tail_file(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    char data[PL_TAIL_BYTES];
    struct stat st;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return NULL;
    n = pread(fd, data, sizeof(data), PL_MAX(st.st_size - (off_t)sizeof(data), (off_t)0));
    return n < 0 ? NULL : pl_tail_text(data, (size_t)n);
}
