/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/json_pairs.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define PAIR_BYTES 12 /* of "\ud83d\ude00" */

/* Reads "\uXXXX". */
static bool read_escape(const char *s, uint32_t *ret)
{
    uint32_t value = 0;

    if (s[0] != '\\' || s[1] != 'u')
        return false;
    for (int i = 2; i < 6; i++) {
        char c = s[i];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint32_t)(c - '0');
        else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
            value = value << 4 | (uint32_t)((c | 0x20) - 'a' + 10);
        else
            return false;
    }
    *ret = value;
    return true;
}

static bool read_pair(const char *s, const char *end, uint32_t *ret)
{
    uint32_t high, low;

    if (end - s < PAIR_BYTES || !read_escape(s, &high) || !read_escape(s + 6, &low) ||
        high < 0xd800 || high > 0xdbff || low < 0xdc00 || low > 0xdfff)
        return false;
    *ret = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static bool has_pair(const char *text, size_t len)
{
    uint32_t c;

    for (const char *p = text; (p = memchr(p, '\\', len - (size_t)(p - text))); p++)
        if (read_pair(p, text + len, &c))
            return true;
    return false;
}

static bool is_json(const char *text, size_t len)
{
    json_t *o = json_loadb(text, len, JSON_ALLOW_NUL, NULL);

    json_decref(o);
    return o != NULL;
}

int pl_json_pairs(const char *text, size_t len, struct pl_buf *out)
{
    const char *end = text + len;
    unsigned spare = 0; /* bytes that the present string has lost */
    bool inside = false;
    uint32_t c;
    int r = 0;

    if (!has_pair(text, len) || !is_json(text, len))
        return 0;
    for (const char *p = text; p < end && r == 0;) {
        size_t n = 1;

        if (inside && read_pair(p, end, &c)) {
            r = pl_buf_addf(out, "\\U%08X", (unsigned)c);
            p += PAIR_BYTES;
            spare += PAIR_BYTES - 10;
            continue;
        }
        n += inside && *p == '\\';
        inside ^= *p == '"';
        r = pl_buf_add(out, p, n);
        p += n;
        for (; !inside && spare > 0 && r == 0; spare--) /* blanks after the string mean nothing */
            r = pl_buf_addc(out, ' ');
    }
    return r;
}
