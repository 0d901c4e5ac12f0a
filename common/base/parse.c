/* SPDX-License-Identifier: MIT */
#include "common/base/parse.h"

#include <ctype.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <string.h>
#include <strings.h>

/* Reads digits at *p and moves *p past them. */
static int digits(const char **p, uint64_t *ret)
{
    uint64_t v = 0;
    const char *s = *p;

    if (!isdigit((unsigned char)*s))
        return -EINVAL;
    for (; isdigit((unsigned char)*s); s++)
        if (__builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return -ERANGE;
    *p = s;
    *ret = v;
    return 0;
}

int pl_parse_int(const char *s, int64_t min, int64_t max, int64_t *ret, struct pl_error *err)
{
    const char *p = s;
    bool negative = *p == '-';
    uint64_t v;
    int64_t value;
    int r;

    if (negative)
        p++;
    r = digits(&p, &v);
    if (r == -EINVAL || (r == 0 && *p))
        return pl_error_set(err, -EINVAL, "'%s' is not a whole number", s);
    if (r == 0 && v > (uint64_t)INT64_MAX + negative)
        r = -ERANGE;
    value = r == 0 ? (int64_t)(negative ? -v : v) : negative ? INT64_MIN : INT64_MAX;
    if (r < 0 || value < min || value > max) {
        if (max == INT64_MAX && value < min)
            return pl_error_set(err, -ERANGE, "%s is too small: it must be at least %" PRId64, s,
                                min);
        return pl_error_set(err, -ERANGE,
                            "%s is out of range: it must be between %" PRId64 " and %" PRId64, s,
                            min, max);
    }
    *ret = value;
    return 0;
}

int pl_parse_double(const char *s, double *ret, struct pl_error *err)
{
    static locale_t c_locale;
    char *end;
    double v;

    if (!c_locale)
        c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!*s || !(isdigit((unsigned char)*s) || strchr("+-.", *s)) || strpbrk(s, "xX"))
        return pl_error_set(err, -EINVAL, "'%s' is not a number", s);
    errno = 0;
    v = c_locale ? strtod_l(s, &end, c_locale) : strtod(s, &end);
    if (*end || end == s)
        return pl_error_set(err, -EINVAL, "'%s' is not a number", s);
    if (!isfinite(v))
        return pl_error_set(err, -ERANGE, "%s is out of range", s);
    *ret = v;
    return 0;
}

int pl_parse_slurm_time(const char *s, uint64_t *ret_s, struct pl_error *err)
{
    uint64_t part[4], days = 0, total;
    const char *p = s;
    bool has_days = false;
    unsigned n = 0;

    if (strcasecmp(s, "UNLIMITED") == 0 || strcasecmp(s, "INFINITE") == 0) {
        *ret_s = UINT64_MAX;
        return 0;
    }
    for (;;) {
        if (n == 3 || digits(&p, &part[n]) < 0 || part[n] > UINT32_MAX)
            goto bad;
        n++;
        if (*p == '-' && n == 1 && !has_days) {
            has_days = true;
            days = part[0];
            n = 0;
        } else if (*p != ':') {
            break;
        }
        p++;
    }
    if (*p)
        goto bad;
    if (has_days) /* D-H[:M[:S]] */
        total = part[0] * 3600 + (n > 1 ? part[1] * 60 : 0) + (n > 2 ? part[2] : 0);
    else if (n == 1) /* M */
        total = part[0] * 60;
    else if (n == 2) /* M:S */
        total = part[0] * 60 + part[1];
    else
        total = part[0] * 3600 + part[1] * 60 + part[2];
    *ret_s = days * 86400 + total;
    return 0;
bad:
    return pl_error_set(err, -EINVAL,
                        "'%s' is not a time: use MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, "
                        "DAYS-HOURS, DAYS-HOURS:MINUTES or DAYS-HOURS:MINUTES:SECONDS",
                        s);
}

int pl_parse_mem(const char *s, uint64_t *ret_bytes, struct pl_error *err)
{
    static const char units[] = "KMGT";
    const char *p = s, *unit;
    unsigned shift = 20;
    uint64_t v;
    int r = digits(&p, &v);

    if (r == 0 && *p) {
        unit = strchr(units, toupper((unsigned char)*p));
        if (!unit || p[1])
            r = -EINVAL;
        else
            shift = 10 * (unsigned)(unit - units + 1);
    }
    if (r == -EINVAL)
        return pl_error_set(err, r, "'%s' is not a size: use a number with K, M, G or T", s);
    if (r < 0 || v > (UINT64_MAX >> shift))
        return pl_error_set(err, -ERANGE, "size %s is too large", s);
    *ret_bytes = v << shift;
    return 0;
}

int pl_parse_port_range(const char *s, uint16_t *ret_lo, uint16_t *ret_hi, struct pl_error *err)
{
    const char *p = s;
    uint64_t lo, hi;
    int r = digits(&p, &lo);

    hi = lo;
    if (r == 0 && *p == '-') {
        p++;
        r = digits(&p, &hi);
    }
    if (r == -EINVAL || (r == 0 && *p))
        return pl_error_set(err, -EINVAL, "'%.64s' is not a port or a port range LOW-HIGH", s);
    if (r < 0 || lo < 1 || hi > 65535 || lo > hi)
        return pl_error_set(err, -ERANGE,
                            "port range '%.64s' must lie within 1-65535, low end first", s);
    *ret_lo = (uint16_t)lo;
    *ret_hi = (uint16_t)hi;
    return 0;
}

int pl_parse_nccl_level(const char *s, const char **ret, struct pl_error *err)
{
    static const char *const levels[] = {"VERSION", "WARN", "INFO", "ABORT", "TRACE"};

    for (size_t i = 0; i < PL_COUNT(levels); i++)
        if (strcasecmp(s, levels[i]) == 0) {
            *ret = levels[i];
            return 0;
        }
    return pl_error_set(err, -EINVAL,
                        "'%.64s' is not a level of NCCL_DEBUG: use VERSION, WARN, INFO, ABORT or "
                        "TRACE",
                        s);
}

int pl_parse_tasks_per_node(const char *s, unsigned node, unsigned *ret, struct pl_error *err)
{
    const char *p = s;
    uint64_t tasks, repeat, seen = 0;
    bool found = false;
    unsigned value = 0;

    while (*p) {
        if (digits(&p, &tasks) < 0 || tasks > UINT32_MAX)
            goto bad;
        repeat = 1;
        if (p[0] == '(' && p[1] == 'x') {
            p += 2;
            if (digits(&p, &repeat) < 0 || *p++ != ')')
                goto bad;
        }
        if (repeat > UINT32_MAX)
            goto bad;
        seen += repeat;
        if (!found && node < seen) {
            found = true;
            value = (unsigned)tasks;
        }
        if (*p == ',' && p[1])
            p++;
        else if (*p)
            goto bad;
    }
    if (found) {
        *ret = value;
        return 0;
    }
    return pl_error_set(err, -ERANGE, "node %u is not in the task list '%s'", node, s);
bad:
    return pl_error_set(err, -EINVAL, "'%s' is not a list of tasks per node", s);
}

/* Finds the first KEY= between text and end. NULL: there is none. */
static const char *find_key(const char *text, const char *end, const char *key)
{
    size_t len = strlen(key);

    for (const char *p = text; (p = strstr(p, key)) && p < end; p += len)
        if ((p == text || strchr(" \n\t", p[-1])) && p[len] == '=')
            return p;
    return NULL;
}

char *pl_parse_scontrol_field(const char *output, const char *key)
{
    const char *p = find_key(output, output + strlen(output), key);

    if (!p)
        return NULL;
    p += strlen(key) + 1;
    return strndup(p, strcspn(p, " \n"));
}

char *pl_parse_scontrol_job(const char *output, const char *key)
{
    static const char state[] = "JobState", partition[] = "Partition";
    const char *next = strstr(output, "\nJobId="), *last = next ? next : output + strlen(output);
    const char *start = find_key(output, last, state), *end;
    _cleanup_free_ char *fields = NULL;

    if (!start || find_key(start + strlen(state), last, state))
        return NULL;
    end = find_key(start, last, partition);
    fields = strndup(start, (size_t)((end ? end : last) - start));
    return fields ? pl_parse_scontrol_field(fields, key) : NULL;
}

bool pl_name_valid(const char *s, size_t len)
{
    if (len == 0 || !(isalpha((unsigned char)s[0]) || s[0] == '_') || (s[0] & 0x80))
        return false;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0x80) || !(isalnum((unsigned char)s[i]) || strchr("_.-", s[i])) || !s[i])
            return false;
    return true;
}
