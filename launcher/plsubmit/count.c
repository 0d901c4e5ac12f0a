/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/count.h"
#include "common/base/parse.h"

#include <string.h>

#define COUNT_MAX 1000000

unsigned pl_count(const char *text, size_t len)
{
    char digits[16];
    int64_t n = 0;

    if (len == 0 || len >= sizeof(digits))
        return 0;
    memcpy(digits, text, len);
    digits[len] = '\0';
    return pl_parse_int(digits, 1, COUNT_MAX, &n, NULL) < 0 ? 0 : (unsigned)n;
}

unsigned pl_count_gpus(const char *value)
{
    unsigned sum = 0;

    for (const char *item = value; item; item = strchr(item, ','), item += item ? 1 : 0) {
        size_t len = strcspn(item, ",");
        const char *colon = memrchr(item, ':', len);
        const char *digits = colon ? colon + 1 : item;
        unsigned n = pl_count(digits, (size_t)(item + len - digits));

        if (n == 0 || colon == item)
            return 0;
        sum += n;
    }
    return sum;
}
