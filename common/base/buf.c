/* SPDX-License-Identifier: MIT */
#include "common/base/buf.h"
#include "common/base/fault.h"
#include "common/base/utf8.h"

#include <stdarg.h>
#include <string.h>

void pl_buf_finish(struct pl_buf *buf)
{
    free(buf->data);
    *buf = (struct pl_buf){0};
}

int pl_buf_reserve(struct pl_buf *buf, size_t extra)
{
    size_t need, cap;
    char *data;

    if (__builtin_add_overflow(buf->len, extra, &need) || need > SIZE_MAX / 2)
        return -ENOMEM;
    need++;
    if (need <= buf->cap)
        return 0;
    cap = PL_MAX(need, PL_MAX(buf->cap * 2, (size_t)64));
    data = PL_FAULT("malloc", ENOMEM) ? NULL : realloc(buf->data, cap);
    if (!data)
        return -ENOMEM;
    buf->data = data;
    buf->cap = cap;
    buf->data[buf->len] = '\0';
    return 0;
}

int pl_buf_add(struct pl_buf *buf, const void *data, size_t len)
{
    int r = pl_buf_reserve(buf, len);

    if (r < 0)
        return r;
    if (len)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    buf->data[buf->len] = '\0';
    return 0;
}

int pl_buf_adds(struct pl_buf *buf, const char *s)
{
    return pl_buf_add(buf, s, strlen(s));
}

int pl_buf_addc(struct pl_buf *buf, char c)
{
    int r = pl_buf_reserve(buf, 1);

    if (r < 0)
        return r;
    buf->data[buf->len++] = c;
    buf->data[buf->len] = '\0';
    return 0;
}

int pl_buf_addf(struct pl_buf *buf, const char *fmt, ...)
{
    size_t room = buf->cap - buf->len; /* 0, or with the final '\0' */
    va_list ap;
    int n, r;

    va_start(ap, fmt);
    n = vsnprintf(room ? buf->data + buf->len : NULL, room, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < room) {
        buf->len += (size_t)n;
        return 0;
    }
    if (room)
        buf->data[buf->len] = '\0';
    if (n < 0)
        return -ENOMEM;
    r = pl_buf_reserve(buf, (size_t)n);
    if (r < 0)
        return r;
    va_start(ap, fmt);
    vsnprintf(buf->data + buf->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    buf->len += (size_t)n;
    return 0;
}

int pl_buf_add_text(struct pl_buf *buf, const char *s, size_t len)
{
    size_t mark = buf->len;
    uint32_t c;
    int r = 0;

    for (size_t i = 0; i < len && r == 0;) {
        int n = s[i] ? pl_utf8_decode(s + i, len - i, &c) : -EILSEQ;

        r = n < 0 ? pl_buf_adds(buf, "\xef\xbf\xbd") : pl_buf_add(buf, s + i, (size_t)n);
        i += n < 0 ? 1 : (size_t)n;
    }
    if (r < 0) {
        buf->len = mark;
        if (buf->data)
            buf->data[mark] = '\0';
    }
    return r;
}

char *pl_buf_dup_text(const char *s)
{
    struct pl_buf buf = {0};

    if (pl_buf_add_text(&buf, s, strlen(s)) < 0) {
        pl_buf_finish(&buf);
        return NULL;
    }
    return pl_buf_take(&buf);
}

void pl_buf_consume(struct pl_buf *buf, size_t len)
{
    if (!buf->data)
        return;
    if (len > buf->len)
        len = buf->len;
    memmove(buf->data, buf->data + len, buf->len - len + 1);
    buf->len -= len;
}

const char *pl_buf_str(const struct pl_buf *buf)
{
    return buf->data ? buf->data : "";
}

char *pl_buf_take(struct pl_buf *buf)
{
    char *s;

    if (pl_buf_reserve(buf, 0) < 0)
        return NULL;
    s = buf->data;
    *buf = (struct pl_buf){0};
    return s;
}
