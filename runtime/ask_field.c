/* SPDX-License-Identifier: MIT */
#include "runtime/ask.h"

#include <string.h>

char *pl_ask_field(const char *output, const char *key)
{
    size_t len = strlen(key);

    for (const char *p = output; (p = strstr(p, key)); p += len)
        if ((p == output || strchr(" \n\t", p[-1])) && p[len] == '=')
            return strndup(p + len + 1, strcspn(p + len + 1, " \n"));
    return NULL;
}
