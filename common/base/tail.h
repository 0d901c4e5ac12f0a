/* SPDX-License-Identifier: MIT */
/* The last lines of a rank's stderr, as they stand in a cause: at most PL_TAIL_LINES lines and
 * PL_TAIL_BYTES bytes, without the line ends after them, as valid UTF-8 (pl_buf_add_text()). */
#ifndef PL_COMMON_BASE_TAIL_H
#define PL_COMMON_BASE_TAIL_H

#include <stddef.h>

#define PL_TAIL_BYTES 4096
#define PL_TAIL_LINES 20

/* Of a text. The caller frees; NULL when out of memory. */
char *pl_tail_text(const char *data, size_t len);

/* Of a regular file. The caller frees; NULL for other files, on read errors and when out of
 * memory. Never blocks. */
char *pl_tail_file(const char *path);

#endif
