/* SPDX-License-Identifier: MIT */
#include "common/base/utf8.h"

int pl_utf8_decode(const char *s, size_t len, uint32_t *ret)
{
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *p = (const unsigned char *)s;
    uint32_t c;
    int n;

    if (len == 0)
        return -EILSEQ;
    if (p[0] < 0x80) {
        *ret = p[0];
        return 1;
    }
    if ((p[0] & 0xe0) == 0xc0)
        n = 2;
    else if ((p[0] & 0xf0) == 0xe0)
        n = 3;
    else if ((p[0] & 0xf8) == 0xf0)
        n = 4;
    else
        return -EILSEQ;
    if (len < (size_t)n)
        return -EILSEQ;
    c = p[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return -EILSEQ;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < lowest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
        return -EILSEQ;
    *ret = c;
    return n;
}

bool pl_utf8_valid(const char *s, size_t len)
{
    uint32_t c;

    for (size_t i = 0; i < len;) {
        int n = pl_utf8_decode(s + i, len - i, &c);

        if (n < 0)
            return false;
        i += (size_t)n;
    }
    return true;
}

bool pl_utf8_hidden(uint32_t c)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},       {0x34f, 0x34f},
        {0x61c, 0x61c},     {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},
        {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},
        {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},
        {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
    };

    for (size_t i = 0; i < PL_COUNT(ranges); i++)
        if (c >= ranges[i].first && c <= ranges[i].last)
            return true;
    return false;
}
