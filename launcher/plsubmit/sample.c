/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/sample.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "launcher/plsubmit/range.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Draws that were drawn before are drawn again, at most this many times for each one wanted. */
#define ATTEMPTS 64

enum kind { KIND_INT, KIND_FLOAT, KIND_LOG, KIND_CHOICE };

static const char *const kinds[] = {"int(", "float(", "log(", "choice("};

struct sample {
    char *name;
    enum kind kind;
    int64_t low, high; /* int */
    double from, to;   /* float, log */
    struct pl_grid choices;
    char **values; /* n of them */
};

struct samples {
    struct sample *list;
    size_t n_list;
    unsigned n;      /* draws so far */
    uint32_t *table; /* of draws by their hash, + 1; 0: free */
    size_t mask;
};

static void finish(struct samples *s)
{
    for (size_t i = 0; i < s->n_list; i++) {
        for (unsigned k = 0; s->list[i].values && k < s->n; k++)
            free(s->list[i].values[k]);
        free(s->list[i].values);
        free(s->list[i].name);
        pl_grid_finish(&s->list[i].choices);
    }
    free(s->list);
    free(s->table);
}

/* ---- the text ---- */

static int refuse(const char *text, const char *why, struct pl_error *err)
{
    return pl_error_set(err, -EINVAL, "'%.200s': %s", text, why);
}

/* LO,HI in `inside`, which is changed. */
static int read_limits(struct sample *s, const char *text, char *inside, struct pl_error *err)
{
    char *comma = strchr(inside, ',');

    if (!comma)
        return refuse(text, "two numbers are needed, LO,HI", err);
    *comma++ = '\0';
    if (s->kind == KIND_INT) {
        if (pl_parse_int(inside, INT64_MIN / 2, INT64_MAX / 2, &s->low, NULL) < 0 ||
            pl_parse_int(comma, INT64_MIN / 2, INT64_MAX / 2, &s->high, NULL) < 0)
            return refuse(text, "LO and HI are whole numbers", err);
        return s->low <= s->high ? 0 : refuse(text, "LO is above HI", err);
    }
    if (pl_parse_double(inside, &s->from, NULL) < 0 || pl_parse_double(comma, &s->to, NULL) < 0 ||
        !isfinite(s->from) || !isfinite(s->to))
        return refuse(text, "LO and HI are numbers", err);
    if (!(s->from < s->to))
        return refuse(text, "LO must be below HI", err);
    return s->kind == KIND_LOG && s->from <= 0 ? refuse(text, "LO of log is above 0", err) : 0;
}

static int read_sample(struct sample *s, const char *text, struct pl_error *err)
{
    const char *equals = strchr(text, '='), *value = equals ? equals + 1 : "";
    size_t len = strlen(value), kind = 0;
    _cleanup_free_ char *inside = NULL, *axis = NULL;
    int r;

    while (kind < PL_COUNT(kinds) && strncmp(value, kinds[kind], strlen(kinds[kind])) != 0)
        kind++;
    if (kind == PL_COUNT(kinds) || value[len - 1] != ')')
        return refuse(text,
                      "write NAME=int(LO,HI), NAME=float(LO,HI), NAME=log(LO,HI) or "
                      "NAME=choice(A,B,...)",
                      err);
    s->kind = (enum kind)kind;
    s->name = strndup(text, (size_t)(equals - text));
    inside = strndup(value + strlen(kinds[kind]), len - strlen(kinds[kind]) - 1);
    if (!s->name || !inside)
        return pl_error_nomem(err);
    if (s->kind != KIND_CHOICE)
        return read_limits(s, text, inside, err);
    axis = pl_strf("choices=%s", inside);
    if (!axis)
        return pl_error_nomem(err);
    r = pl_grid_add(&s->choices, axis, err);
    return r < 0 ? pl_error_wrap(err, r, "'%.200s'", text) : 0;
}

/* The number of different draws; UINT64_MAX: more than can be asked for. */
static uint64_t different(const struct samples *s)
{
    uint64_t all = 1;

    for (size_t i = 0; i < s->n_list; i++) {
        const struct sample *x = &s->list[i];
        uint64_t n = x->kind == KIND_INT      ? (uint64_t)(x->high - x->low) + 1
                     : x->kind == KIND_CHOICE ? x->choices.axes[0].n_values
                                              : UINT64_MAX;

        all = n > UINT64_MAX / all ? UINT64_MAX : all * n;
    }
    return all;
}

/* ---- the numbers ---- */

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* A number below n: the high half of a product, without the few that would favour some (Lemire
 * 2019, doi 10.1145/3230636). */
static uint64_t below(uint64_t *state, uint64_t n)
{
    for (;;) {
        unsigned __int128 product = (unsigned __int128)splitmix(state) * n;

        if ((uint64_t)product >= -n % n)
            return (uint64_t)(product >> 64);
    }
}

static char *draw(const struct sample *s, uint64_t *state)
{
    double u;

    if (s->kind == KIND_INT)
        return pl_strf("%" PRId64,
                       s->low + (int64_t)below(state, (uint64_t)(s->high - s->low) + 1));
    if (s->kind == KIND_CHOICE) {
        const struct pl_axis *axis = &s->choices.axes[0];

        return strdup(axis->values[below(state, axis->n_values)]);
    }
    u = (double)(splitmix(state) >> 11) * 0x1p-53;
    return pl_range_number(s->kind == KIND_LOG ? exp(log(s->from) * (1 - u) + log(s->to) * u)
                                               : s->from * (1 - u) + s->to * u);
}

/* ---- no draw twice ---- */

static size_t hash_of(const struct samples *s, unsigned draw)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */

    for (size_t i = 0; i < s->n_list; i++)
        for (const char *p = s->list[i].values[draw]; p; p = *p ? p + 1 : NULL)
            hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    return (size_t)hash;
}

static bool are_equal(const struct samples *s, unsigned a, unsigned b)
{
    for (size_t i = 0; i < s->n_list; i++)
        if (strcmp(s->list[i].values[a], s->list[i].values[b]) != 0)
            return false;
    return true;
}

/* Enters the newest draw. False: there is an equal one. */
static bool is_new(struct samples *s)
{
    size_t at = hash_of(s, s->n) & s->mask;

    for (; s->table[at]; at = (at + 1) & s->mask)
        if (are_equal(s, s->table[at] - 1, s->n))
            return false;
    s->table[at] = s->n + 1;
    return true;
}

/* Makes draw s->n of all axes. Each attempt has its own part of the sequence of numbers. */
static int attempt(struct samples *s, uint64_t seed, uint64_t number)
{
    uint64_t start = seed, state;
    int r = 0;

    start = splitmix(&start) + number * 0xd1342543de82ef95u;
    state = splitmix(&start);
    for (size_t i = 0; i < s->n_list; i++)
        if (!(s->list[i].values[s->n] = draw(&s->list[i], &state)))
            r = -ENOMEM;
    if (r == 0 && is_new(s)) {
        s->n++;
        return 1;
    }
    for (size_t i = 0; i < s->n_list; i++)
        free(PL_TAKE(s->list[i].values[s->n]));
    return r;
}

static int draw_all(struct samples *s, unsigned n, uint64_t seed, struct pl_error *err)
{
    size_t size = 16;
    int r = 0;

    if (different(s) < n)
        return pl_error_set(err, -EINVAL, "there are only %" PRIu64 " different draws, not %u",
                            different(s), n);
    while (size < 2 * (size_t)n)
        size *= 2;
    s->mask = size - 1;
    s->table = calloc(size, sizeof(*s->table));
    for (size_t i = 0; i < s->n_list; i++)
        if (!(s->list[i].values = calloc((size_t)n + 1, sizeof(char *))))
            return pl_error_nomem(err);
    if (!s->table)
        return pl_error_nomem(err);
    for (uint64_t i = 0; i < (uint64_t)n * ATTEMPTS && s->n < n && r >= 0; i++)
        r = attempt(s, seed, i);
    if (r < 0)
        return pl_error_nomem(err);
    return s->n == n ? 0
                     : pl_error_set(err, -EINVAL,
                                    "%u different draws were found, not %u: ask for fewer, or for "
                                    "a grid",
                                    s->n, n);
}

int pl_sample_add(
    struct pl_grid *grid, char *const *list, unsigned n, uint64_t seed, struct pl_error *err)
{
    _cleanup_(finish) struct samples s = {0};
    size_t leader = grid->n_axes;
    int r = 0;

    while (list[s.n_list])
        s.n_list++;
    s.list = calloc(s.n_list, sizeof(*s.list));
    if (!s.list)
        return pl_error_nomem(err);
    for (size_t i = 0; i < s.n_list && r == 0; i++)
        r = read_sample(&s.list[i], list[i], err);
    if (r == 0)
        r = draw_all(&s, n, seed, err);
    for (size_t i = 0; i < s.n_list && r == 0; i++)
        r = pl_grid_add_values(grid, s.list[i].name, s.list[i].values, n, leader, err);
    return r;
}
