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
