/* SPDX-License-Identifier: MIT */
#include "common/base/strv.h"

#include <string.h>

void pl_strv_free(char **list)
{
    for (char **s = list; s && *s; s++)
        free(*s);
    free(list);
}

int pl_strv_append(char ***list, const char *text)
{
    size_t n = 0;
    char **more;

    while (*list && (*list)[n])
        n++;
    more = realloc(*list, (n + 2) * sizeof(*more));
    if (!more)
        return -ENOMEM;
    *list = more;
    more[n] = strdup(text);
    if (!more[n])
        return -ENOMEM;
    more[n + 1] = NULL;
    return 0;
}
