/* SPDX-License-Identifier: MIT */
/* A growable byte buffer; a NUL always follows its last byte. Zeroed memory is an empty buffer. */
#ifndef PL_COMMON_BASE_BUF_H
#define PL_COMMON_BASE_BUF_H

#include "common/base/macros.h"

struct pl_buf {
    char *data; /* NULL while nothing was ever added; else a NUL at data[len] */
    size_t len, cap;
};

void pl_buf_finish(struct pl_buf *buf);

/* All return 0 or -ENOMEM and leave the buffer as it was on failure. */
int pl_buf_reserve(struct pl_buf *buf, size_t extra);
int pl_buf_add(struct pl_buf *buf, const void *data, size_t len);
int pl_buf_adds(struct pl_buf *buf, const char *s);
int pl_buf_addc(struct pl_buf *buf, char c);
int pl_buf_addf(struct pl_buf *buf, const char *fmt, ...) PL_PRINTF(2, 3);

/* Appends text of unknown origin as UTF-8: each byte that is none, and NUL, becomes U+FFFD. */
int pl_buf_add_text(struct pl_buf *buf, const char *s, size_t len);
/* Such text as a new string; caller frees. NULL when out of memory. */
char *pl_buf_dup_text(const char *s);

/* Removes len bytes at the front. */
void pl_buf_consume(struct pl_buf *buf, size_t len);

/* The text, "" when empty; borrowed until the next change. */
const char *pl_buf_str(const struct pl_buf *buf);

/* Hands the text over (caller frees; never NULL but for out of memory) and empties the buffer. */
char *pl_buf_take(struct pl_buf *buf);

#endif
