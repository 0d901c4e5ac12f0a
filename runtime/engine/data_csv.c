/* SPDX-License-Identifier: MIT */
/* Tables of numbers: lines of fields with commas between (RFC 4180 without line breaks in quotes;
 * quotes around names and numbers are taken off). */
#include "common/base/parse.h"
#include "runtime/engine/array.h"
#include "runtime/engine/tensor.h"

#include <math.h>
#include <string.h>

#define COLUMNS_MAX 4096
#define FIELD_MAX 255 /* bytes */

struct table {
    const char *p, *end; /* what is left */
    size_t line;         /* of the next one, from 1 */
    size_t columns;
    bool chosen[COLUMNS_MAX];
    size_t n_chosen;
    double *values;
    size_t rows, cap; /* of values, in rows */
};

/* The line at t->p without its end; false where there is none left. Empty lines are passed over. */
static bool next_line(struct table *t, const char **ret_begin, const char **ret_end)
{
    while (t->p < t->end) {
        const char *newline = memchr(t->p, '\n', (size_t)(t->end - t->p));
        const char *end = newline ? newline : t->end, *begin = t->p;

        t->p = newline ? newline + 1 : t->end;
        t->line++;
        if (end > begin && end[-1] == '\r')
            end--;
        if (end > begin) {
            *ret_begin = begin;
            *ret_end = end;
            return true;
        }
    }
    return false;
}

/* The field at *p, without blanks and quotes around it, into buf; *p goes behind its comma, or to
 * NULL behind the last one. False where the field is too long. */
static bool next_field(const char **p, const char *end, char buf[FIELD_MAX + 1])
{
    const char *begin = *p, *comma = memchr(begin, ',', (size_t)(end - begin));
    const char *stop = comma ? comma : end;

    *p = comma ? comma + 1 : NULL;
    while (begin < stop && (*begin == ' ' || *begin == '\t'))
        begin++;
    while (stop > begin && (stop[-1] == ' ' || stop[-1] == '\t'))
        stop--;
    if (stop - begin >= 2 && *begin == '"' && stop[-1] == '"') {
        begin++;
        stop--;
    }
    if (stop - begin > FIELD_MAX)
        return false;
    memcpy(buf, begin, (size_t)(stop - begin));
    buf[stop - begin] = '\0';
    return true;
}

/* Columns of the first line; whether all of them are numbers. */
static int
look(struct table *t, const char *p, const char *end, bool *ret_numbers, struct pl_error *err)
{
    char field[FIELD_MAX + 1];
    double value;

    *ret_numbers = true;
    while (p) {
        if (!next_field(&p, end, field))
            return pl_error_set(err, -EINVAL, "line 1: a field is longer than %d bytes", FIELD_MAX);
        if (++t->columns > COLUMNS_MAX)
            return pl_error_set(err, -EINVAL, "line 1 has more than %d columns", COLUMNS_MAX);
        *ret_numbers = *ret_numbers && pl_parse_double(field, &value, NULL) == 0;
    }
    return 0;
}

/* The number of a column by its name in the first line, or by its number; -ENOENT. */
static int find_column(const struct table *t,
                       const char *p,
                       const char *end,
                       bool header,
                       const char *name,
                       size_t *ret)
{
    char field[FIELD_MAX + 1];
    int64_t number;

    for (size_t i = 0; header && p; i++) {
        if (next_field(&p, end, field) && strcmp(field, name) == 0) {
            *ret = i;
            return 0;
        }
    }
    if (pl_parse_int(name, 0, (int64_t)t->columns - 1, &number, NULL) < 0)
        return -ENOENT;
    *ret = (size_t)number;
    return 0;
}

static int choose(struct table *t,
                  const char *columns,
                  const char *p,
                  const char *end,
                  bool header,
                  struct pl_error *err)
{
    const char *list_end = columns ? columns + strlen(columns) : NULL;
    char name[FIELD_MAX + 1];
    size_t column;

    for (size_t i = 0; !columns && i < t->columns; i++)
        t->chosen[i] = true;
    while (columns) {
        if (!next_field(&columns, list_end, name) ||
            find_column(t, p, end, header, name, &column) < 0)
            return pl_error_set(err, -EINVAL, "there is no column '%s'", name);
        t->chosen[column] = true;
    }
    for (size_t i = 0; i < t->columns; i++)
        t->n_chosen += t->chosen[i];
    return 0;
}

static int read_row(struct table *t, const char *p, const char *end, struct pl_error *err)
{
    char field[FIELD_MAX + 1];
    size_t column = 0, at = t->rows * t->n_chosen;
    double *values;

    if (t->rows == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        values = reallocarray(t->values, t->cap, t->n_chosen * sizeof(*values));
        if (!values)
            return pl_error_set(err, -ENOMEM, "out of memory for %zu lines", t->cap);
        t->values = values;
    }
    for (; p; column++) {
        bool fits = next_field(&p, end, field);

        if (column == t->columns)
            return pl_error_set(err, -EINVAL, "line %zu has more than %zu columns", t->line,
                                t->columns);
        if (!t->chosen[column])
            continue;
        if (!fits || pl_parse_double(field, &t->values[at++], NULL) < 0)
            return pl_error_set(err, -EINVAL, "line %zu, column %zu: '%.60s' is no number", t->line,
                                column, fits ? field : "...");
    }
    if (column != t->columns)
        return pl_error_set(err, -EINVAL, "line %zu has %zu columns, not %zu", t->line, column,
                            t->columns);
    t->rows++;
    return 0;
}

/* Makes int32 of the values, in place, where all are such. */
static bool make_integers(double *values, size_t n)
{
    int32_t *to = (int32_t *)(void *)values;

    for (size_t i = 0; i < n; i++)
        if (!(fabs(values[i]) <= INT32_MAX) || values[i] != floor(values[i]))
            return false;
    for (size_t i = 0; i < n; i++) {
        int32_t value = (int32_t)values[i];

        memcpy(&to[i], &value, sizeof(value));
    }
    return true;
}

static int read_table(struct table *t, const struct plume_source *source, struct pl_error *err)
{
    const char *begin, *end;
    bool numbers, header;
    int r;

    if (!next_line(t, &begin, &end))
        return pl_error_set(err, -EINVAL, "the table is empty");
    r = look(t, begin, end, &numbers, err);
    header = source->header > 0 || (source->header == 0 && !numbers);
    if (r == 0)
        r = choose(t, source->columns, begin, end, header, err);
    if (r == 0 && !header)
        r = read_row(t, begin, end, err);
    while (r == 0 && next_line(t, &begin, &end))
        r = read_row(t, begin, end, err);
    if (r == 0 && t->rows == 0)
        return pl_error_set(err, -EINVAL, "the table has names and no numbers");
    return r;
}

int pl_csv_parse(const void *bytes,
                 size_t len,
                 const struct plume_source *source,
                 struct plume_array *ret,
                 struct pl_error *err)
{
    struct table t = {.p = bytes, .end = (const char *)bytes + len};
    int r = read_table(&t, source, err);

    ret->own = t.values;
    if (r < 0)
        return r;
    ret->data = t.values;
    ret->dtype = make_integers(t.values, t.rows * t.n_chosen) ? PLUME_I32 : PLUME_F64;
    return pl_array_set_shape(ret, t.n_chosen == 1 ? 1 : 2, (size_t[]){t.rows, t.n_chosen}, err);
}
