/* SPDX-License-Identifier: MIT */
#include "common/proto/rank/minijson.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <string.h>

static const char *blanks(const char *p)
{
    while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')
        p++;
    return p;
}

/* Each scan_*() takes the first byte of a value and returns the byte after it, or NULL. */
static const char *scan_value(const char *p, int depth, struct pl_mini_value *ret);

static const char *scan_string(const char *p)
{
    for (p++; *p != '"'; p++) {
        if ((unsigned char)*p < 0x20)
            return NULL; /* NUL too: the text ended */
        if (*p != '\\')
            continue;
        p++;
        if (*p == 'u') {
            for (int i = 1; i <= 4; i++)
                if (!isxdigit((unsigned char)p[i]))
                    return NULL;
            p += 4;
        } else if (!*p || !strchr("\"\\/bfnrt", *p)) {
            return NULL;
        }
    }
    return p + 1;
}

static const char *scan_number(const char *p)
{
    if (*p == '-')
        p++;
    if (*p == '0')
        p++;
    else if (isdigit((unsigned char)*p))
        while (isdigit((unsigned char)*p))
            p++;
    else
        return NULL;
    if (*p == '.') {
        if (!isdigit((unsigned char)*++p))
            return NULL;
        while (isdigit((unsigned char)*p))
            p++;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-')
            p++;
        if (!isdigit((unsigned char)*p))
            return NULL;
        while (isdigit((unsigned char)*p))
            p++;
    }
    return p;
}

static const char *scan_container(const char *p, int depth, bool object)
{
    char close = object ? '}' : ']';
    struct pl_mini_value unused;

    if (depth >= PL_JSON_DEPTH_MAX)
        return NULL;
    p = blanks(p + 1);
    if (*p == close)
        return p + 1;
    for (;;) {
        if (object) {
            if (*p != '"' || !(p = scan_string(p)))
                return NULL;
            p = blanks(p);
            if (*p != ':')
                return NULL;
            p = blanks(p + 1);
        }
        p = scan_value(p, depth + 1, &unused);
        if (!p)
            return NULL;
        p = blanks(p);
        if (*p == close)
            return p + 1;
        if (*p != ',')
            return NULL;
        p = blanks(p + 1);
    }
}

static const char *scan_word(const char *p, const char *word)
{
    size_t len = strlen(word);

    return strncmp(p, word, len) == 0 ? p + len : NULL;
}

static const char *scan_value(const char *p, int depth, struct pl_mini_value *ret)
{
    const char *start = p, *end;

    switch (*p) {
    case '"':
        ret->type = PL_MINI_STRING;
        end = scan_string(p);
        break;
    case '{':
        ret->type = PL_MINI_OBJECT;
        end = scan_container(p, depth, true);
        break;
    case '[':
        ret->type = PL_MINI_ARRAY;
        end = scan_container(p, depth, false);
        break;
    case 't':
        ret->type = PL_MINI_BOOL;
        end = scan_word(p, "true");
        break;
    case 'f':
        ret->type = PL_MINI_BOOL;
        end = scan_word(p, "false");
        break;
    case 'n':
        ret->type = PL_MINI_NULL;
        end = scan_word(p, "null");
        break;
    default:
        ret->type = PL_MINI_NUMBER;
        end = scan_number(p);
    }
    ret->start = start;
    ret->len = end ? (size_t)(end - start) : 0;
    return end;
}

/* True if this string is the text. Only one with escapes wants memory, and the writers of this
 * project write none into names. */
static bool string_is(const struct pl_mini_value *string, const char *text)
{
    _cleanup_free_ char *decoded = NULL;
    size_t len = strlen(text);

    if (string->type != PL_MINI_STRING || string->len < 2)
        return false;
    if (!memchr(string->start, '\\', string->len))
        return string->len == len + 2 && memcmp(string->start + 1, text, len) == 0;
    return pl_mini_string(string, &decoded) == 0 && strcmp(decoded, text) == 0;
}

int pl_mini_find(const char *text, const char *key, struct pl_mini_value *ret)
{
    struct pl_mini_value value, name = {.type = PL_MINI_STRING};
    const char *p = blanks(text);
    int found = -ENOENT;

    if (*p != '{')
        return -EINVAL;
    p = blanks(p + 1);
    if (*p == '}')
        return *blanks(p + 1) ? -EINVAL : -ENOENT;
    for (;;) {
        name.start = p;
        if (*p != '"' || !(p = scan_string(p)))
            return -EINVAL;
        name.len = (size_t)(p - name.start);
        p = blanks(p);
        if (*p != ':')
            return -EINVAL;
        p = scan_value(blanks(p + 1), 1, &value);
        if (!p)
            return -EINVAL;
        if (found < 0 && string_is(&name, key)) {
            *ret = value;
            found = 0;
        }
        p = blanks(p);
        if (*p == '}')
            return *blanks(p + 1) ? -EINVAL : found;
        if (*p != ',')
            return -EINVAL;
        p = blanks(p + 1);
    }
}

int pl_mini_next(const struct pl_mini_value *array, size_t *pos, struct pl_mini_value *ret)
{
    const char *p, *end = array->start + array->len - 1;

    if (array->type != PL_MINI_ARRAY)
        return -EINVAL;
    p = blanks(array->start + (*pos ? *pos : 1));
    if (p >= end)
        return 0;
    p = scan_value(p, 1, ret);
    if (!p)
        return -EINVAL;
    p = blanks(p);
    if (*p == ',')
        p++;
    *pos = (size_t)(p - array->start);
    return 1;
}

int pl_mini_parse(const char *text, struct pl_mini_value *ret)
{
    const char *p = scan_value(blanks(text), 0, ret);

    return p && !*blanks(p) ? 0 : -EINVAL;
}

int pl_mini_member(const struct pl_mini_value *object,
                   size_t *pos,
                   struct pl_mini_value *ret_key,
                   struct pl_mini_value *ret)
{
    const char *p, *end = object->start + object->len - 1;

    if (object->type != PL_MINI_OBJECT)
        return -EINVAL;
    p = blanks(object->start + (*pos ? *pos : 1));
    if (p >= end)
        return 0;
    *ret_key = (struct pl_mini_value){.type = PL_MINI_STRING, .start = p};
    if (*p != '"' || !(p = scan_string(p)))
        return -EINVAL;
    ret_key->len = (size_t)(p - ret_key->start);
    p = blanks(p);
    if (*p != ':' || !(p = scan_value(blanks(p + 1), 1, ret)))
        return -EINVAL;
    p = blanks(p);
    if (*p == ',')
        p++;
    *pos = (size_t)(p - object->start);
    return 1;
}

static unsigned hex4(const char *p)
{
    unsigned v = 0;

    for (int i = 0; i < 4; i++)
        v = v << 4 |
            (unsigned)(isdigit((unsigned char)p[i]) ? p[i] - '0'
                                                    : tolower((unsigned char)p[i]) - 'a' + 10);
    return v;
}

/* Appends a character as UTF-8; the caller made room for 4 bytes. */
static char *put_utf8(char *d, unsigned c)
{
    if (c < 0x80) {
        *d++ = (char)c;
    } else if (c < 0x800) {
        *d++ = (char)(0xc0 | c >> 6);
        *d++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *d++ = (char)(0xe0 | c >> 12);
        *d++ = (char)(0x80 | (c >> 6 & 0x3f));
        *d++ = (char)(0x80 | (c & 0x3f));
    } else {
        *d++ = (char)(0xf0 | c >> 18);
        *d++ = (char)(0x80 | (c >> 12 & 0x3f));
        *d++ = (char)(0x80 | (c >> 6 & 0x3f));
        *d++ = (char)(0x80 | (c & 0x3f));
    }
    return d;
}

/* Reads \uXXXX (and the second half of a pair) at p, after the backslash. */
static const char *unescape_unicode(const char *p, unsigned *ret)
{
    unsigned c = hex4(p + 1), low;

    p += 5;
    if (c >= 0xd800 && c < 0xdc00 && p[0] == '\\' && p[1] == 'u') {
        low = hex4(p + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            *ret = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
            return p + 6;
        }
    }
    *ret = c >= 0xd800 && c < 0xe000 ? 0xfffd : c;
    return p;
}

int pl_mini_string(const struct pl_mini_value *value, char **ret)
{
    static const char names[] = "bfnrt", bytes[] = "\b\f\n\r\t";
    _cleanup_free_ char *out = NULL;
    const char *p, *end;
    unsigned c;
    char *d;

    if (value->type != PL_MINI_STRING || value->len < 2)
        return -EINVAL;
    out = malloc(value->len + 4);
    if (!out)
        return -ENOMEM;
    d = out;
    end = value->start + value->len - 1;
    for (p = value->start + 1; p < end;) {
        if (*p != '\\') {
            *d++ = *p++;
            continue;
        }
        p++;
        if (*p == 'u') {
            p = unescape_unicode(p, &c);
            if (c == 0)
                return -EINVAL;
            d = put_utf8(d, c);
        } else {
            const char *n = strchr(names, *p);

            *d++ = n ? bytes[n - names] : *p;
            p++;
        }
    }
    *d = '\0';
    *ret = PL_TAKE(out);
    return 0;
}

int pl_mini_int(const struct pl_mini_value *value, int64_t *ret)
{
    char text[24];

    if (value->type != PL_MINI_NUMBER || value->len >= sizeof(text))
        return -EINVAL;
    memcpy(text, value->start, value->len);
    text[value->len] = '\0';
    return pl_parse_int(text, INT64_MIN, INT64_MAX, ret, NULL) < 0 ? -EINVAL : 0;
}

int pl_mini_get_string(const char *text, const char *key, char **ret)
{
    struct pl_mini_value value;
    int r = pl_mini_find(text, key, &value);

    return r < 0 ? r : pl_mini_string(&value, ret);
}

int pl_mini_get_int(const char *text, const char *key, int64_t *ret)
{
    struct pl_mini_value value;
    int r = pl_mini_find(text, key, &value);

    return r < 0 ? r : pl_mini_int(&value, ret);
}

bool pl_mini_is(const char *text, const char *type)
{
    struct pl_mini_value value;

    return pl_mini_find(text, "type", &value) == 0 && string_is(&value, type);
}

/* The bytes at the start of s that are written as they are, without a look at UTF-8. */
static size_t plain(const char *s)
{
    size_t n = 0;

    while (s[n] >= 0x20 && s[n] < 0x7f && s[n] != '"' && s[n] != '\\')
        n++;
    return n;
}

int pl_mini_quote(struct pl_buf *buf, const char *s)
{
    size_t len = strlen(s), mark = buf->len;
    uint32_t c;
    int r = pl_buf_addc(buf, '"');

    for (size_t i = 0; i < len && r == 0;) {
        int n = (int)PL_MIN(plain(s + i), (size_t)INT_MAX);

        if (n > 0) {
            r = pl_buf_add(buf, s + i, (size_t)n);
        } else if ((n = pl_utf8_decode(s + i, len - i, &c)) < 0) {
            r = pl_buf_adds(buf, "\xef\xbf\xbd");
            n = 1;
        } else if (c == '"' || c == '\\') {
            r = pl_buf_addf(buf, "\\%c", (int)c);
        } else if (c < 0x20 || c == 0x7f) {
            r = pl_buf_addf(buf, "\\u%04x", c);
        } else {
            r = pl_buf_add(buf, s + i, (size_t)n);
        }
        i += (size_t)n;
    }
    if (r == 0)
        r = pl_buf_addc(buf, '"');
    if (r < 0)
        buf->len = mark;
    return r;
}

/* ---- the writer ---- */

/* A comma, unless the value is the first of its container or of the line; then the key. */
static void begin_value(struct pl_mini_writer *w, const char *key)
{
    char last = w->buf->len ? w->buf->data[w->buf->len - 1] : '\n';

    if (w->error == 0 && !strchr("{[ \n", last))
        w->error = pl_buf_addc(w->buf, ',');
    if (w->error == 0 && key)
        w->error = pl_mini_quote(w->buf, key);
    if (w->error == 0 && key)
        w->error = pl_buf_addc(w->buf, ':');
}

static void put_text(struct pl_mini_writer *w, const char *key, const char *text)
{
    begin_value(w, key);
    if (w->error == 0)
        w->error = pl_buf_adds(w->buf, text);
}

void pl_mini_open(struct pl_mini_writer *w, const char *key, char bracket)
{
    const char text[] = {bracket, '\0'};

    put_text(w, key, text);
}

int pl_mini_close(struct pl_mini_writer *w, char bracket)
{
    if (w->error == 0)
        w->error = pl_buf_addc(w->buf, bracket);
    return w->error;
}

void pl_mini_put_string(struct pl_mini_writer *w, const char *key, const char *value)
{
    begin_value(w, key);
    if (w->error == 0)
        w->error = pl_mini_quote(w->buf, value);
}

void pl_mini_put_int(struct pl_mini_writer *w, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%lld", (long long)value);
    put_text(w, key, text);
}

void pl_mini_put_bool(struct pl_mini_writer *w, const char *key, bool value)
{
    put_text(w, key, value ? "true" : "false");
}

void pl_mini_put_double(struct pl_mini_writer *w, const char *key, double value)
{
    char text[40];

    if (!isfinite(value)) {
        put_text(w, key, isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
        return;
    }
    snprintf(text, sizeof(text), "%.9g", value);
    if (strchr(text, ',')) /* the program's locale may write 0,5 */
        *strchr(text, ',') = '.';
    put_text(w, key, text);
}
