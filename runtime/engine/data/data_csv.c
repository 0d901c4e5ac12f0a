/* SPDX-License-Identifier: MIT */
/* Tables of numbers: lines of comma-separated fields (RFC 4180, without line breaks in quotes). */
#include "common/base/parse.h"
#include "runtime/engine/data/array.h"
#include "runtime/engine/device/tensor.h"

#include <math.h>
#include <string.h>

#define COLUMNS_MAX 4096
#define FIELD_MAX 255 /* bytes */

struct table {
    const char *p, *end; /* the rest */
    size_t line;         /* of the next line, from 1 */
    size_t columns;
    uint16_t place[COLUMNS_MAX]; /* column in a row of values, from 1; 0 = unused */
    size_t n_chosen;
    double *values;
    size_t rows, cap; /* rows of values */
};

/* The line at t->p without its end; false at the end of the file. Empty lines are skipped. */
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

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static void add_char(char buf[FIELD_MAX + 1], size_t *n, char c)
{
    if (*n < FIELD_MAX)
        buf[*n] = c;
    ++*n;
}

/* Copies the field at *p, without surrounding blanks and quotes, into buf. *p moves to the next
 * field, or becomes NULL after the last one. -E2BIG if it is too long: buf has its beginning.
 * -EINVAL if its quotes are wrong or it has a zero byte. */
static int next_field(const char **p, const char *end, char buf[FIELD_MAX + 1])
{
    const char *s = *p;
    size_t n = 0;

    while (s < end && is_blank(*s))
        s++;
    if (s < end && *s == '"') {
        for (s++; s < end && (*s != '"' || (s + 1 < end && s[1] == '"')); s++) {
            s += *s == '"'; /* two quotes stand for one */
            add_char(buf, &n, *s);
        }
        if (s == end)
            return -EINVAL;
        for (s++; s < end && is_blank(*s); s++)
            ;
        if (s < end && *s != ',')
            return -EINVAL;
    } else {
        for (; s < end && *s != ','; s++)
            add_char(buf, &n, *s);
        for (const char *back = s; n > 0 && is_blank(back[-1]); back--)
            n--;
    }
    *p = s < end ? s + 1 : NULL;
    buf[PL_MIN(n, (size_t)FIELD_MAX)] = '\0';
    if (n > FIELD_MAX)
        return -E2BIG;
    return strlen(buf) == n ? 0 : -EINVAL;
}

/* Formats the error of next_field(). */
static int bad_field(int r, size_t line, size_t column, struct pl_error *err)
{
    if (r == -E2BIG)
        return pl_error_set(err, -EINVAL, "line %zu, column %zu is longer than %d bytes", line,
                            column, FIELD_MAX);
    return pl_error_set(err, -EINVAL,
                        "line %zu, column %zu: its quotes are wrong, or it has a zero byte", line,
                        column);
}

/* Counts the columns of the first line, and those that are numbers. */
static int
look(struct table *t, const char *p, const char *end, size_t *ret_numbers, struct pl_error *err)
{
    char field[FIELD_MAX + 1];
    double value;

    *ret_numbers = 0;
    while (p) {
        int r = next_field(&p, end, field);

        if (r < 0)
            return bad_field(r, t->line, t->columns, err);
        if (++t->columns > COLUMNS_MAX)
            return pl_error_set(err, -EINVAL, "line %zu has more than %d columns", t->line,
                                COLUMNS_MAX);
        *ret_numbers += pl_parse_double(field, &value, NULL) == 0;
    }
    return 0;
}

/* Finds a column by its name in the first line, or by its number; -ENOENT, -EEXIST if two have the
 * name. */
static int find_column(const struct table *t,
                       const char *p,
                       const char *end,
                       bool header,
                       const char *name,
                       size_t *ret)
{
    char field[FIELD_MAX + 1];
    bool found = false;
    int64_t number;

    for (size_t i = 0; header && p; i++) {
        if (next_field(&p, end, field) < 0 || strcmp(field, name) != 0)
            continue;
        if (found)
            return -EEXIST;
        found = true;
        *ret = i;
    }
    if (found)
        return 0;
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
    int r;

    for (size_t i = 0; !columns && i < t->columns; i++)
        t->place[i] = (uint16_t)++t->n_chosen;
    while (columns) {
        if (next_field(&columns, list_end, name) < 0)
            return pl_error_set(err, -EINVAL, "the list of columns is malformed");
        r = find_column(t, p, end, header, name, &column);
        if (r == -EEXIST)
            return pl_error_set(err, -EINVAL, "two columns have the name '%s': choose by number",
                                name);
        if (r < 0)
            return pl_error_set(err, -EINVAL, "no column '%s'", name);
        if (t->place[column])
            return pl_error_set(err, -EINVAL, "column '%s' is chosen twice", name);
        t->place[column] = (uint16_t)++t->n_chosen;
    }
    return 0;
}

static int read_row(struct table *t, const char *p, const char *end, struct pl_error *err)
{
    char field[FIELD_MAX + 1];
    double *values, *row;
    size_t column = 0;

    if (t->rows == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        values = reallocarray(t->values, t->cap, t->n_chosen * sizeof(*values));
        if (!values)
            return pl_error_set(err, -ENOMEM, "out of memory for %zu lines", t->cap);
        t->values = values;
    }
    row = t->values + t->rows * t->n_chosen;
    for (; p; column++) {
        int r = next_field(&p, end, field);

        if (column == t->columns)
            return pl_error_set(err, -EINVAL, "line %zu has more than %zu columns", t->line,
                                t->columns);
        if (r == -EINVAL || (r < 0 && t->place[column]))
            return bad_field(r, t->line, column, err);
        if (t->place[column] && pl_parse_double(field, &row[t->place[column] - 1], NULL) < 0)
            return pl_error_set(err, -EINVAL, "line %zu, column %zu: '%.60s' is not a number",
                                t->line, column, field);
    }
    if (column != t->columns)
        return pl_error_set(err, -EINVAL, "line %zu has %zu columns, not %zu", t->line, column,
                            t->columns);
    t->rows++;
    return 0;
}

/* Converts the values to int32 in place if all are integers in range. */
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
    size_t numbers;
    bool header;
    int r;

    if (!next_line(t, &begin, &end))
        return pl_error_set(err, -EINVAL, "the table is empty");
    r = look(t, begin, end, &numbers, err);
    /* A sample with a text or a gap in it would be lost as names. */
    if (r == 0 && source->header == 0 && numbers > 0 && numbers < t->columns)
        return pl_error_set(err, -EINVAL,
                            "line %zu has %zu numbers and %zu other texts: set the source's "
                            "'header' to 1 if these are names, to -1 if this is a sample",
                            t->line, numbers, t->columns - numbers);
    header = source->header > 0 || (source->header == 0 && numbers == 0);
    if (r == 0)
        r = choose(t, source->columns, begin, end, header, err);
    if (r == 0 && !header)
        r = read_row(t, begin, end, err);
    while (r == 0 && next_line(t, &begin, &end))
        r = read_row(t, begin, end, err);
    if (r == 0 && t->rows == 0)
        return pl_error_set(err, -EINVAL, "the table has a line of names and no rows");
    return r;
}

int pl_csv_read(const void *bytes,
                size_t len,
                const struct plume_source *source,
                struct plume_array *ret,
                struct pl_error *err)
{
    struct table t = {.p = bytes, .end = (const char *)bytes + len};
    int r;

    if (len >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        t.p += 3; /* a byte order mark */
    r = read_table(&t, source, err);

    ret->own = t.values;
    if (r < 0)
        return r;
    ret->data = t.values;
    ret->dtype = make_integers(t.values, t.rows * t.n_chosen) ? PLUME_I32 : PLUME_F64;
    return pl_array_set_shape(ret, t.n_chosen == 1 ? 1 : 2, (size_t[]){t.rows, t.n_chosen}, err);
}
