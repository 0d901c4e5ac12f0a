/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/metrics_csv.h"
#include "common/base/buf.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/parse.h"

#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

#define PART_SHOWN 200 /* bytes of a row that is removed */

struct pl_metrics_csv {
    char *path;
    char **columns; /* without step */
    size_t n;
    int fd; /* positioned at the end of the file */
};

static int
add_column(struct pl_metrics_csv *csv, const char *name, size_t len, struct pl_error *err)
{
    char **columns;

    if (!pl_name_valid(name, len))
        return pl_error_set(err, -EINVAL, "'%.*s' is not a valid metric name",
                            (int)PL_MIN(len, (size_t)64), name);
    if (csv->n == PL_CSV_COLUMNS_MAX)
        return pl_error_set(err, -E2BIG, "'%s' has %d columns already", csv->path,
                            PL_CSV_COLUMNS_MAX);
    columns = reallocarray(csv->columns, csv->n + 1, sizeof(*columns));
    if (!columns)
        return pl_error_nomem(err);
    csv->columns = columns;
    columns[csv->n] = strndup(name, len);
    if (!columns[csv->n])
        return pl_error_nomem(err);
    csv->n++;
    return 0;
}

static int read_header(struct pl_metrics_csv *csv, const char *line, struct pl_error *err)
{
    size_t len = strcspn(line, ",\n");
    int r = 0;

    if (len != 4 || strncmp(line, "step", 4) != 0)
        return pl_error_set(
            err, -EINVAL,
            "'%s' is not a metrics file of this kind (its first column is not 'step'): "
            "move it away",
            csv->path);
    for (line += len; *line == ',' && r == 0; line += len) {
        line++;
        len = strcspn(line, ",\n");
        r = add_column(csv, line, len, err);
    }
    return r < 0 ? pl_error_wrap(err, r, "header of '%s'", csv->path) : 0;
}

static int open_end(struct pl_metrics_csv *csv, struct pl_error *err)
{
    csv->fd = open(csv->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return csv->fd < 0 ? pl_error_errno(err, -errno, "cannot open '%s'", csv->path) : 0;
}

/* A writer that was killed, or whose disk was full, may have left a part of a row: its last number
 * may lack digits, and look whole. A whole row, but for the newline, looks the same; the warning
 * has it. */
static int
remove_part(const struct pl_metrics_csv *csv, const char *text, size_t len, struct pl_error *err)
{
    const char *newline = len ? memrchr(text, '\n', len) : NULL;
    int r = 0;

    if (newline && newline + 1 < text + len) {
        r = ftruncate(csv->fd, newline + 1 - text) < 0 ? -errno : 0;
        if (r == 0)
            pl_log_warn("train", "'%s' ended inside a row, which is removed: %.*s", csv->path,
                        (int)PL_MIN(text + len - newline - 1, (ptrdiff_t)PART_SHOWN), newline + 1);
    } else if (len && !newline) /* a header alone */
        r = pl_write_all(csv->fd, "\n", 1);
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", csv->path) : 0;
}

int pl_metrics_csv_open(const char *path, struct pl_metrics_csv **ret, struct pl_error *err)
{
    _cleanup_(pl_metrics_csv_closep) struct pl_metrics_csv *csv = calloc(1, sizeof(*csv));
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    int r;

    if (!csv || !(csv->path = strdup(path))) {
        if (csv)
            csv->fd = -EBADF;
        return pl_error_nomem(err);
    }
    csv->fd = -EBADF;
    r = pl_file_read(path, PL_CSV_BYTES_MAX, &text, &len, err);
    if (r < 0 && r != -ENOENT)
        return r;
    if (r == 0 && len && (r = read_header(csv, text, err)) < 0)
        return r;
    r = open_end(csv, err);
    if (r == 0)
        r = remove_part(csv, text, len, err);
    if (r < 0)
        return r;
    *ret = PL_TAKE(csv);
    return 0;
}

int pl_metrics_csv_sync(const struct pl_metrics_csv *csv, struct pl_error *err)
{
    int r = pl_fd_sync(csv->fd);

    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", csv->path) : 0;
}

void pl_metrics_csv_close(struct pl_metrics_csv *csv)
{
    if (!csv)
        return;
    for (size_t i = 0; i < csv->n; i++)
        free(csv->columns[i]);
    free(csv->columns);
    free(csv->path);
    if (csv->fd >= 0)
        close(csv->fd);
    free(csv);
}

static size_t find_column(const struct pl_metrics_csv *csv, const char *name)
{
    size_t i = 0;

    while (i < csv->n && strcmp(csv->columns[i], name) != 0)
        i++;
    return i;
}

static size_t count_commas(const char *line, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += line[i] == ',';
    return n;
}

static int add_header(struct pl_buf *out, const struct pl_metrics_csv *csv)
{
    int r = pl_buf_adds(out, "step");

    for (size_t i = 0; i < csv->n && r >= 0; i++)
        r = pl_buf_addf(out, ",%s", csv->columns[i]);
    return r < 0 ? r : pl_buf_addc(out, '\n');
}

/* Rewrites the file with the current header; older rows are padded. */
static int widen(struct pl_metrics_csv *csv, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    _cleanup_free_ char *text = NULL;
    size_t len = 0;
    const char *at;
    int r = pl_file_read(csv->path, PL_CSV_BYTES_MAX, &text, &len, err);

    if (r < 0)
        return r;
    r = add_header(&out, csv);
    at = text + strcspn(text, "\n");
    for (at += *at == '\n'; *at && r >= 0; at += *at == '\n') {
        size_t n = strcspn(at, "\n"), have = count_commas(at, n);

        r = pl_buf_add(&out, at, n);
        for (; have < csv->n && r >= 0; have++)
            r = pl_buf_addc(&out, ',');
        if (r >= 0)
            r = pl_buf_addc(&out, '\n');
        at += n;
    }
    if (r < 0)
        return pl_error_set(err, -ENOMEM, "out of memory for '%s'", csv->path);
    r = pl_file_replace(csv->path, out.data, out.len, 0644, err);
    if (r < 0)
        return r;
    close(csv->fd);
    csv->fd = -EBADF;
    return open_end(csv, err);
}

/* Nine digits are a float's, and 17 a double's: as few as read back as the value. A module may have
 * set a locale with a decimal comma. */
static int add_number(struct pl_buf *out, double value)
{
    bool is_float = (double)(float)value == value;
    char text[40], *comma;
    int digits = 9;

    do
        snprintf(text, sizeof(text), isnan(value) ? "nan" : "%.*g", digits, value);
    while (isfinite(value) && !is_float && strtod(text, NULL) != value && ++digits <= 17);
    comma = strchr(text, ',');
    if (comma)
        *comma = '.';
    return pl_buf_adds(out, text);
}

int pl_metrics_csv_row(struct pl_metrics_csv *csv,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf out = {0};
    size_t before = csv->n;
    off_t end;
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++)
        if (find_column(csv, names[i]) == csv->n)
            r = add_column(csv, names[i], strlen(names[i]), err);
    if (r == 0 && csv->n != before)
        r = widen(csv, err);
    if (r < 0) {
        while (csv->n > before)
            free(csv->columns[--csv->n]);
        return r;
    }
    r = pl_buf_addf(&out, "%lld", (long long)step);
    for (size_t c = 0; c < csv->n && r >= 0; c++) {
        r = pl_buf_addc(&out, ',');
        for (size_t i = 0; i < n && r >= 0; i++)
            if (strcmp(csv->columns[c], names[i]) == 0) {
                r = add_number(&out, values[i]);
                break;
            }
    }
    if (r < 0 || pl_buf_addc(&out, '\n') < 0)
        return pl_error_set(err, -ENOMEM, "out of memory for '%s'", csv->path);
    end = lseek(csv->fd, 0, SEEK_END);
    r = pl_write_all(csv->fd, out.data, out.len);
    if (r < 0 && end >= 0 && ftruncate(csv->fd, end) < 0)
        (void)0; /* the next writer removes the part of a row */
    return r < 0 ? pl_error_errno(err, r, "cannot write '%s'", csv->path) : 0;
}
