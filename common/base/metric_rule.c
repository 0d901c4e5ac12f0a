/* SPDX-License-Identifier: MIT */
#include "common/base/metric_rule.h"
#include "common/base/parse.h"

#include <stdlib.h>
#include <string.h>

/* An expression is measured by one pass without recursion. Where regcomp() reads it differently, it
 * refuses it: only what it accepts must be measured right.
 *
 * A part is solid where it takes a character. For a loop around what can be empty, as in (a*)*, the
 * time of glibc's regcomp() is exponential in the size of what is inside. */
struct level {
    size_t total; /* parts but the last */
    size_t last;  /* what a repetition repeats */
    bool solid;   /* one of this branch's parts but the last is */
    bool last_solid;
    bool empty_branch; /* an earlier branch can be empty */
};

struct measure {
    struct level levels[PL_METRIC_DEPTH_MAX + 1];
    unsigned depth;
    bool too_deep;
    bool too_large;
};

static void add_part(struct measure *m, size_t size, bool solid)
{
    struct level *level = &m->levels[m->depth];

    level->total += level->last;
    level->solid |= level->last_solid;
    level->last = size;
    level->last_solid = solid;
    if (level->total + size > PL_METRIC_RULE_MAX)
        m->too_large = true;
}

/* The last part becomes `times` of it; solid: not none of them; loop: or more. */
static void repeat(struct measure *m, size_t times, bool solid, bool loop)
{
    struct level *level = &m->levels[m->depth];
    bool was_solid = level->last_solid;
    size_t size = level->last * (was_solid ? times : times * times) + 1;

    if (loop && !was_solid)
        size += (size_t)1 << PL_MIN(level->last, 16u);
    level->last = 0;
    level->last_solid = false;
    add_part(m, size, was_solid && solid);
}

static bool can_be_empty(const struct level *level)
{
    return level->empty_branch || !(level->solid || level->last_solid);
}

static void next_branch(struct measure *m)
{
    struct level *level = &m->levels[m->depth];

    add_part(m, 1, false);
    level->empty_branch = can_be_empty(level);
    level->solid = false;
}

static void open_group(struct measure *m)
{
    if (m->depth == PL_METRIC_DEPTH_MAX)
        m->too_deep = true;
    else
        m->levels[++m->depth] = (struct level){0};
}

static void close_group(struct measure *m)
{
    struct level inner = m->levels[m->depth];

    if (m->depth == 0) { /* an ordinary character */
        add_part(m, 1, true);
        return;
    }
    m->depth--;
    add_part(m, inner.total + inner.last + 1, !can_be_empty(&inner));
}

/* Past the bracket expression that begins at p. */
static const char *skip_bracket(const char *p)
{
    p += p[1] == '^' ? 2 : 1;
    if (*p == ']')
        p++;
    for (; *p && *p != ']'; p++) {
        char kind = *p == '[' ? p[1] : '\0';

        if (kind != '.' && kind != ':' && kind != '=')
            continue;
        for (p += 2; *p && !(p[0] == kind && p[1] == ']'); p++)
            ;
        if (!*p)
            return p;
        p++;
    }
    return *p ? p + 1 : p;
}

static const char *number(const char *p, size_t *ret)
{
    for (*ret = 0; *p >= '0' && *p <= '9'; p++)
        *ret = PL_MIN(*ret * 10 + (size_t)(*p - '0'), (size_t)PL_METRIC_RULE_MAX + 1);
    return p;
}

/* Past an interval {N}, {N,}, {,M} or {N,M}; past one character if there is no interval. */
static const char *interval(struct measure *m, const char *p)
{
    size_t low, high;
    const char *end = number(p + 1, &low);

    bool loop = false;

    high = low;
    if (*end == ',') {
        const char *digits = end + 1;

        end = number(digits, &high);
        loop = end == digits; /* {N,} is N of them and one with a star */
        if (loop)
            high = low + 1;
    }
    if (*end != '}') {
        add_part(m, 1, true);
        return p + 1;
    }
    repeat(m, PL_MAX(PL_MAX(low, high), 1), low > 0, loop);
    return end + 1;
}

static const char *measure_one(struct measure *m, const char *p)
{
    switch (*p) {
    case '(':
        open_group(m);
        return p + 1;
    case ')':
        close_group(m);
        return p + 1;
    case '*':
    case '?':
        repeat(m, 1, false, *p == '*');
        return p + 1;
    case '+': /* regcomp() turns a+ into aa* */
        repeat(m, 2, true, true);
        return p + 1;
    case '{':
        return interval(m, p);
    case '|':
        next_branch(m);
        return p + 1;
    case '^':
    case '$':
        add_part(m, 1, false);
        return p + 1;
    case '[':
        add_part(m, 1, true);
        return skip_bracket(p);
    case '\\': /* places and back-references are not solid */
        add_part(m, 1, p[1] && !strchr("bB<>`'123456789", p[1]));
        return p + (p[1] ? 2 : 1);
    default:
        add_part(m, 1, true);
        return p + 1;
    }
}

static int check_size(const char *regex, struct pl_error *err)
{
    struct measure m = {0};

    for (const char *p = regex; *p && !m.too_deep && !m.too_large;)
        p = measure_one(&m, p);
    if (m.too_deep)
        return pl_error_set(err, -E2BIG, "the regular expression '%.40s...' nests deeper than %d",
                            regex, PL_METRIC_DEPTH_MAX);
    if (m.too_large)
        return pl_error_set(err, -E2BIG,
                            "the regular expression '%.200s' is too large: with its repetitions "
                            "written out it has more than %d parts",
                            regex, PL_METRIC_RULE_MAX);
    return 0;
}

/* True for ^([0-9]+),x and not for (x),? or (x).* or (x)(,|$): they match without a comma, too. */
static bool has_comma_after_group(const char *regex)
{
    unsigned depth = 0;

    for (const char *p = regex; *p;) {
        if (*p == ')' && depth && --depth == 0)
            return p[1] == ',' && !(p[2] && strchr("?*{", p[2]));
        depth += *p == '(';
        p = *p == '[' ? skip_bracket(p) : p + (*p == '\\' && p[1] ? 2 : 1);
    }
    return false;
}

int pl_metric_rule_init(struct pl_metric_rule *rule, const char *spec, struct pl_error *err)
{
    size_t len = strnlen(spec, PL_METRIC_RULE_MAX + 1), name_len = strcspn(spec, "=");
    char reason[128];
    int r;

    if (len > PL_METRIC_RULE_MAX)
        return pl_error_set(err, -E2BIG, "'%.40s...' is longer than %d bytes", spec,
                            PL_METRIC_RULE_MAX);
    if (spec[name_len] != '=' || !pl_name_valid(spec, name_len))
        return pl_error_set(err, -EINVAL, "'%.200s' is not of the form NAME=REGEX", spec);
    if (!spec[name_len + 1])
        return pl_error_set(err, -EINVAL, "'%.200s' has an empty expression", spec);
    r = check_size(spec + name_len + 1, err);
    if (r < 0)
        return r;
    rule->name = strndup(spec, name_len);
    if (!rule->name)
        return pl_error_set(err, -ENOMEM, "out of memory");
    rule->comma_after = has_comma_after_group(spec + name_len + 1);
    r = regcomp(&rule->regex, spec + name_len + 1, REG_EXTENDED);
    if (r == 0)
        return 0;
    free(rule->name);
    rule->name = NULL;
    regerror(r, &rule->regex, reason, sizeof(reason));
    return pl_error_set(err, r == REG_ESPACE ? -ENOMEM : -EINVAL,
                        "bad regular expression '%.200s': %s", spec + name_len + 1, reason);
}

void pl_metric_rule_finish(struct pl_metric_rule *rule)
{
    if (rule->name)
        regfree(&rule->regex);
    free(rule->name);
    rule->name = NULL;
}

int pl_metric_rule_check(const char *spec, struct pl_error *err)
{
    struct pl_metric_rule rule;
    int r = pl_metric_rule_init(&rule, spec, err);

    if (r == 0)
        pl_metric_rule_finish(&rule);
    return r;
}

/* True for "0,5" and "1,234": the comma is a decimal point or groups digits, and C reads a 0 or
 * a 1. end: of the number that C reads.
 */
static bool has_comma(const char *number, const char *end)
{
    size_t sign = strspn(number, "+-"), digits = strspn(number + sign, "0123456789");

    return digits > 0 && end == number + sign + digits && end[0] == ',' && end[1] >= '0' &&
           end[1] <= '9';
}

bool pl_metric_rule_find(const struct pl_metric_rule *rule, const char *line, double *ret)
{
    regmatch_t m[2];
    const char *start;
    char number[64], *end;
    bool means_comma = rule->comma_after;
    size_t len;

    if (regexec(&rule->regex, line, 2, m, 0) != 0)
        return false;
    if (m[1].rm_so < 0) {
        m[1] = m[0];
        means_comma = false;
    }
    len = (size_t)(m[1].rm_eo - m[1].rm_so);
    if (len == 0 || len >= sizeof(number))
        return false;
    start = line + m[1].rm_so;
    memcpy(number, start, len);
    number[len] = '\0';
    *ret = strtod(number, &end);
    return end != number && ((!*end && means_comma) || !has_comma(start, start + (end - number)));
}
