/* SPDX-License-Identifier: MIT */
#include "common/base/hostlist.h"
#include "common/base/buf.h"
#include "common/base/macros.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS_MAX 9   /* of a number; a list of Slurm's has at most as many hosts */
#define BRACKETS_MAX 8 /* of one name */

/* A bracket such as "[1-3,07]". */
struct bracket {
    const char *text; /* after the '[' */
    uint64_t n;       /* names */
};

/* Reads "7" or "07-12" at *p, and moves *p to the character after it. */
static int read_range(const char **p, uint64_t *ret_low, uint64_t *ret_high, int *ret_width)
{
    uint64_t number[2] = {0, 0};

    for (int i = 0; i < 2; i++) {
        size_t len = strspn(*p, "0123456789");

        if (len == 0 || len > DIGITS_MAX)
            return -EINVAL;
        if (i == 0)
            *ret_width = (int)len;
        for (size_t k = 0; k < len; k++)
            number[i] = number[i] * 10 + (uint64_t)((*p)[k] - '0');
        *p += len;
        if (i == 0 && **p != '-') {
            number[1] = number[0];
            break;
        }
        *p += i == 0;
    }
    *ret_low = number[0];
    *ret_high = number[1];
    return number[0] <= number[1] ? 0 : -EINVAL;
}

/* Reads a bracket. *p is after its '[' before the call, and after its ']' when it returns 0. */
static int read_bracket(const char **p, struct bracket *ret)
{
    uint64_t low, high;
    int width;

    *ret = (struct bracket){.text = *p};
    for (;; ++*p) {
        int r = read_range(p, &low, &high, &width);

        if (r < 0)
            return r;
        ret->n += high - low + 1;
        if (**p == ']')
            break;
        if (**p != ',')
            return -EINVAL;
    }
    ++*p;
    return ret->n > UINT32_MAX ? -EINVAL : 0;
}

/* Appends the number at `index` of a bracket, which read_bracket() has read. */
static int add_number(struct pl_buf *name, const struct bracket *bracket, uint64_t index)
{
    const char *p = bracket->text;
    uint64_t low = 0, high;
    int width = 0;

    while (read_range(&p, &low, &high, &width) == 0 && index > high - low) {
        index -= high - low + 1;
        p++;
    }
    return pl_buf_addf(name, "%0*llu", width, (unsigned long long)(low + index));
}

/* The brackets and the number of names of the item at *p, which moves to its end. */
static int read_item(const char **p, struct bracket brackets[BRACKETS_MAX], uint64_t *ret_n)
{
    size_t n = 0;
    int r = 0;

    *ret_n = 1;
    if (**p == ',' || !**p)
        return -EINVAL;
    while (r == 0 && **p && **p != ',') {
        if (**p == ']' || (**p == '[' && n == BRACKETS_MAX))
            return -EINVAL;
        if (*(*p)++ != '[')
            continue;
        r = read_bracket(p, &brackets[n]);
        if (r == 0)
            *ret_n *= brackets[n].n;
        if (*ret_n > UINT32_MAX)
            return -EINVAL;
        n++;
    }
    return r;
}

/* The name at `index` of the item that begins at `item` and has n names. */
static int
make_name(const char *item, const struct bracket *brackets, uint64_t n, uint64_t index, char **ret)
{
    _cleanup_(pl_buf_finish) struct pl_buf name = {0};
    int r = 0;

    for (const char *p = item; r == 0 && *p && *p != ','; p++) {
        if (*p != '[') {
            r = pl_buf_addc(&name, *p);
            continue;
        }
        n /= brackets->n;
        r = add_number(&name, brackets++, index / n);
        index %= n;
        p = strchr(p, ']');
    }
    if (r == 0)
        *ret = pl_buf_take(&name);
    return r;
}

int pl_hostlist_nth(const char *list, unsigned index, char **ret)
{
    struct bracket brackets[BRACKETS_MAX];
    const char *p = list, *item;
    uint64_t left = index, n;

    for (;; p++) {
        int r;

        item = p;
        r = read_item(&p, brackets, &n);
        if (r < 0)
            return r;
        if (left < n)
            return make_name(item, brackets, n, left, ret);
        left -= n;
        if (!*p)
            return -ENOENT;
    }
}
