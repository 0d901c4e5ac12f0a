/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/range.h"
#include "common/base/buf.h"
#include "common/base/parse.h"
#include "common/run/run_folder.h"

#include <math.h>
#include <string.h>

#define PARTS 3 /* LO, HI, N */

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

bool pl_range_begins(const char *text)
{
    return begins(text, "range(") || begins(text, "log(");
}

bool pl_range_is(const char *text)
{
    return pl_range_begins(text) && text[strlen(text) - 1] == ')';
}

/* The shortest decimal of a number; whole numbers as programs expect them: 10, not 1e+01. */
static char *shortest(double value)
{
    char text[32];
    double again = 0;

    if (value == rint(value) && fabs(value) < 1e15) {
        snprintf(text, sizeof(text), "%.0f", value == 0 ? 0 : value);
        return strdup(text);
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (pl_parse_double(text, &again, NULL) == 0 && again == value)
            break;
    }
    return strdup(text);
}

/* Rounds to 15 digits: binary fractions and the C library's logarithm make 0.30000000000000004 of
 * the 0.3 that is meant. */
static double rounded(double value)
{
    char text[32];
    double ret = value;

    snprintf(text, sizeof(text), "%.15g", value);
    pl_parse_double(text, &ret, NULL);
    return ret;
}

char *pl_range_number(double value)
{
    return shortest(rounded(value));
}

static double value_at(bool is_log, double lo, double hi, int64_t i, int64_t n)
{
    double last = (double)(n - 1), at = (double)i;

    if (i == 0 || i == n - 1)
        return i ? hi : lo;
    if (is_log)
        return rounded(exp((log(lo) * (last - at) + log(hi) * at) / last));
    return rounded((lo * (last - at) + hi * at) / last);
}

static int refuse(const char *axis, const char *text, const char *why, struct pl_error *err)
{
    return pl_error_set(err, -EINVAL,
                        "axis '%s': '%.200s': %s (quoted, \"%.200s\" is the text itself)", axis,
                        text, why, text);
}

static int split(char *text, char *ret[PARTS])
{
    char *rest = strchr(text, '(') + 1;

    rest[strlen(rest) - 1] = '\0';
    for (int i = 0; i < PARTS; i++)
        ret[i] = strsep(&rest, ",");
    return rest || !ret[PARTS - 1] ? -EINVAL : 0;
}

long pl_range_values(const char *axis, const char *text, char ***ret, struct pl_error *err)
{
    _cleanup_free_ char *copy = strdup(text);
    bool is_log = begins(text, "log(");
    char *part[PARTS], **list;
    double lo, hi;
    int64_t n;

    if (!copy)
        return pl_error_nomem(err);
    if (split(copy, part) < 0)
        return refuse(axis, text, "write range(LO,HI,N) or log(LO,HI,N)", err);
    if (pl_parse_double(part[0], &lo, NULL) < 0 || pl_parse_double(part[1], &hi, NULL) < 0 ||
        !isfinite(lo) || !isfinite(hi))
        return refuse(axis, text, "LO and HI must be numbers", err);
    if (pl_parse_int(part[2], 2, PL_RUN_TRIAL_LIMIT, &n, NULL) < 0)
        return refuse(axis, text, "N must be a whole number from 2 to 1000000", err);
    if (is_log && (lo <= 0 || hi <= 0))
        return refuse(axis, text, "LO and HI of log must be above 0", err);
    if (lo == hi)
        return refuse(axis, text, "LO and HI must differ", err);
    list = calloc((size_t)n + 1, sizeof(*list));
    for (int64_t i = 0; list && i < n; i++)
        if (!(list[i] = shortest(value_at(is_log, lo, hi, i, n)))) {
            while (i)
                free(list[--i]);
            free(list);
            list = NULL;
        }
    if (!list)
        return pl_error_nomem(err);
    *ret = list;
    return (long)n;
}
