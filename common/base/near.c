/* SPDX-License-Identifier: MIT */
#include "common/base/near.h"
#include "common/base/macros.h"

#include <ctype.h>
#include <limits.h>
#include <stdbool.h>
#include <string.h>

#define NAME_MAX_BYTES 64

static int fold(char c)
{
    return c == '_' || c == '.' ? '-' : tolower((unsigned char)c);
}

/* The distance of Damerau and Levenshtein with adjacent swaps ("optimal string alignment"), by rows
 * of the table. */
unsigned pl_near_distance(const char *a, const char *b)
{
    unsigned rows[3][NAME_MAX_BYTES + 1], *before = rows[0], *last = rows[1], *row = rows[2];
    size_t n = strlen(b), m = strlen(a);

    if (n > NAME_MAX_BYTES || m > NAME_MAX_BYTES)
        return UINT_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= m; i++) {
        unsigned *free_row = before;

        before = last;
        last = row;
        row = free_row;
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            bool same = fold(a[i - 1]) == fold(b[j - 1]);

            row[j] = PL_MIN(last[j - 1] + !same, PL_MIN(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                row[j] = PL_MIN(row[j], before[j - 2] + 1);
        }
    }
    return row[n];
}

void pl_near_offer(struct pl_near *near, const char *name)
{
    size_t len = strlen(near->word);
    unsigned limit = len >= 3 ? (unsigned)len / 3 : len == 2;
    unsigned distance = pl_near_distance(near->word, name);

    if (distance > limit || (near->best && distance >= near->distance))
        return;
    near->best = name;
    near->distance = distance;
}
