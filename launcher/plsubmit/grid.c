/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/grid.h"
#include "common/base/parse.h"
#include "common/base/utf8.h"
#include "common/run/run_folder.h"
#include "launcher/plsubmit/range.h"

#include <string.h>

static void axis_finish(struct pl_axis *axis)
{
    for (size_t i = 0; i < axis->n_values; i++)
        free(axis->values[i]);
    free(axis->values);
    free(axis->name);
    *axis = (struct pl_axis){0};
}

void pl_grid_finish(struct pl_grid *grid)
{
    for (size_t i = 0; i < grid->n_axes; i++)
        axis_finish(&grid->axes[i]);
    free(grid->axes);
    free(grid->kept);
    *grid = (struct pl_grid){0};
}

/* True if the comma after these len bytes is inside of brackets, as in [1,2]. */
static bool is_cut(const char *s, size_t len)
{
    int depth = 0;

    for (size_t i = 0; i < len; i++)
        depth += (strchr("([{", s[i]) != NULL) - (strchr(")]}", s[i]) != NULL);
    return depth > 0 && s[len] == ',' && strpbrk(s + len, ")]}");
}

/* True for a function of another tool: "uniform(0,1)". */
static bool is_call(const char *s)
{
    size_t len = strspn(s, "abcdefghijklmnopqrstuvwxyz_");

    return len > 0 && s[len] == '(';
}

/* Reads one value from *text on and moves *text to the byte after it. */
static int read_value(const char **text, char **ret, const char *name, struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf value = {0};
    const char *s = *text;
    int r = 0;

    if (*s != '"') {
        size_t len = strcspn(s, ",");

        if (pl_range_begins(s))
            return pl_error_set(err, -EINVAL,
                                "axis '%s': range(...) and log(...) have no other values beside "
                                "them; write \"range(...)\" for the text itself",
                                name);

        if (is_cut(s, len) && is_call(s))
            return pl_error_set(err, -EINVAL,
                                "axis '%s' has no function '%.*s': write range(LO,HI,N) or "
                                "log(LO,HI,N), or --random N --sample %s=float(LO,HI) for random "
                                "draws; quote a value that has brackets, \"f(1,2)\"",
                                name, (int)strcspn(s, "("), s, name);
        if (is_cut(s, len))
            return pl_error_set(
                err, -EINVAL,
                "axis '%s': brackets do not keep values together, and each comma begins "
                "another value: write V1,V2 without brackets, or quote each value that has "
                "brackets, \"[1,2]\"",
                name);
        if (len == 0)
            return pl_error_set(err, -EINVAL,
                                "axis '%s' has an empty value: write \"\" for the empty value, and "
                                "no blank after a comma",
                                name);
        r = pl_buf_add(&value, s, len);
        s += len;
    } else {
        for (s++; r == 0; s++) {
            if (*s == '\0')
                return pl_error_set(err, -EINVAL, "axis '%s' has a value without a closing \"",
                                    name);
            if (*s == '"' && *++s != '"')
                break;
            r = pl_buf_addc(&value, *s);
        }
        if (r == 0 && *s != ',' && *s != '\0')
            return pl_error_set(err, -EINVAL,
                                "axis '%s' has text after a closing \": write \"\" for a quote "
                                "inside a quoted value",
                                name);
    }
    *ret = r == 0 ? pl_buf_take(&value) : NULL;
    if (!*ret)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *text = s;
    return 0;
}

static int read_range(struct pl_axis *axis, const char *text, struct pl_error *err)
{
    long n = pl_range_values(axis->name, text, &axis->values, err);

    if (n < 0)
        return (int)n;
    axis->n_values = (size_t)n;
    return 0;
}

static int read_values(struct pl_axis *axis, const char *text, struct pl_error *err)
{
    size_t cap = 0;
    int r;

    if (pl_range_is(text))
        return read_range(axis, text, err);

    for (;;) {
        if (axis->n_values == cap) {
            char **more = realloc(axis->values, (cap = cap ? cap * 2 : 8) * sizeof(*more));

            if (!more)
                return pl_error_set(err, -ENOMEM, "out of memory");
            axis->values = more;
        }
        axis->quoted |= *text == '"';
        r = read_value(&text, &axis->values[axis->n_values], axis->name, err);
        if (r < 0)
            return r;
        axis->n_values++;
        if (*text == '\0')
            return 0;
        text++;
    }
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_duplicates(const struct pl_axis *axis, struct pl_error *err)
{
    size_t size = axis->n_values * sizeof(*axis->values);
    _cleanup_free_ char **sorted = malloc(size);

    if (!sorted)
        return pl_error_set(err, -ENOMEM, "out of memory");
    memcpy(sorted, axis->values, size);
    qsort(sorted, axis->n_values, sizeof(*sorted), compare);
    for (size_t i = 1; i < axis->n_values; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            return pl_error_set(err, -EINVAL, "axis '%s' has the value '%.200s' twice", axis->name,
                                sorted[i]);
    return 0;
}

/* True if two different names have the same variable PLUME_PARAM_NAME. */
static bool names_clash(const char *a, const char *b)
{
    for (; *a && *b; a++, b++) {
        char x = *a == '.' || *a == '-' ? '_' : *a, y = *b == '.' || *b == '-' ? '_' : *b;

        if (x != y)
            return false;
    }
    return *a == *b;
}

static int check_names(const struct pl_grid *grid, const char *name, struct pl_error *err)
{
    for (size_t i = 0; i < grid->n_axes; i++) {
        const char *other = grid->axes[i].name;

        if (strcmp(other, name) == 0)
            return pl_error_set(err, -EINVAL, "axis '%s' is given twice", name);
        if (names_clash(other, name))
            return pl_error_set(err, -EINVAL,
                                "axes '%s' and '%s' have the same variable PLUME_PARAM_... ('_' "
                                "replaces '.' and '-'): rename one",
                                other, name);
    }
    return 0;
}

/* The most bytes that the axis needs in PLUME_PARAMS, including name and punctuation. */
static size_t params_bytes(const struct pl_axis *axis)
{
    size_t longest = 0;

    for (size_t i = 0; i < axis->n_values; i++) {
        size_t bytes = 0;

        for (const char *p = axis->values[i]; *p; p++)
            bytes += (unsigned char)*p < 0x20 || *p == '"' || *p == '\\' ? 6 : 1;
        longest = PL_MAX(longest, bytes);
    }
    return strlen(axis->name) + longest + 6;
}

static int check_size(const struct pl_grid *grid, const struct pl_axis *axis, struct pl_error *err)
{
    size_t bytes = params_bytes(axis);

    for (size_t i = 0; i < grid->n_axes; i++)
        bytes += params_bytes(&grid->axes[i]);
    if (bytes > PL_GRID_PARAMS_MAX)
        return pl_error_set(err, -E2BIG,
                            "the values of one trial are longer than %u KiB: put them in files",
                            PL_GRID_PARAMS_MAX / 1024);
    return 0;
}

static int
read_axis(const struct pl_grid *grid, struct pl_axis *axis, const char *text, struct pl_error *err)
{
    const char *equals = strchr(text, '=');
    size_t len = equals ? (size_t)(equals - text) : 0;
    int r;

    if (!pl_utf8_valid(text, strlen(text)))
        return pl_error_set(err, -EINVAL, "axis '%.200s' is not valid UTF-8", text);
    if (!equals || !pl_name_valid(text, len))
        return pl_error_set(err, -EINVAL,
                            "bad axis '%.200s': write NAME=V1,V2,...; NAME has letters, digits "
                            "and _.- and starts with a letter or _",
                            text);
    axis->name = strndup(text, len);
    if (!axis->name)
        return pl_error_set(err, -ENOMEM, "out of memory");
    r = check_names(grid, axis->name, err);
    if (r == 0)
        r = read_values(axis, equals + 1, err);
    if (r == 0)
        r = check_duplicates(axis, err);
    if (r == 0)
        r = check_size(grid, axis, err);
    return r;
}

/* Takes over the axis. */
static int append(struct pl_grid *grid, struct pl_axis *axis, struct pl_error *err)
{
    struct pl_axis *axes = realloc(grid->axes, (grid->n_axes + 1) * sizeof(*axes));

    if (!axes)
        return pl_error_nomem(err);
    grid->axes = axes;
    grid->axes[grid->n_axes++] = *axis;
    *axis = (struct pl_axis){0};
    return 0;
}

int pl_grid_add(struct pl_grid *grid, const char *text, struct pl_error *err)
{
    _cleanup_(axis_finish) struct pl_axis axis = {.leader = grid->n_axes};
    int r = read_axis(grid, &axis, text, err);

    return r == 0 ? append(grid, &axis, err) : r;
}

int pl_grid_add_values(struct pl_grid *grid,
                       const char *name,
                       char *const *values,
                       size_t n,
                       size_t leader,
                       struct pl_error *err)
{
    _cleanup_(axis_finish) struct pl_axis axis = {.leader = leader, .zipped = true};
    int r;

    if (!pl_name_valid(name, strlen(name)))
        return pl_error_set(err, -EINVAL,
                            "bad axis '%.200s': NAME has letters, digits and _.- and starts with a "
                            "letter or _",
                            name);
    axis.name = strdup(name);
    axis.values = calloc(n + 1, sizeof(*axis.values));
    if (!axis.name || !axis.values)
        return pl_error_nomem(err);
    for (; axis.n_values < n; axis.n_values++)
        if (!(axis.values[axis.n_values] = strdup(values[axis.n_values])))
            return pl_error_nomem(err);
    r = check_names(grid, axis.name, err);
    if (r == 0)
        r = check_size(grid, &axis, err);
    return r == 0 ? append(grid, &axis, err) : r;
}

/* The axis with this name; n_axes: none. */
static size_t find_axis(const struct pl_grid *grid, const char *name)
{
    size_t i = 0;

    while (i < grid->n_axes && strcmp(grid->axes[i].name, name) != 0)
        i++;
    return i;
}

static int zip_with(struct pl_grid *grid, size_t leader, size_t axis, struct pl_error *err)
{
    struct pl_axis *a = &grid->axes[leader], *b = &grid->axes[axis];

    if (a->n_values != b->n_values)
        return pl_error_set(err, -EINVAL,
                            "zipped axes need equally many values: '%s' has %zu, '%s' has %zu",
                            a->name, a->n_values, b->name, b->n_values);
    b->leader = leader;
    return 0;
}

int pl_grid_zip(struct pl_grid *grid, const char *text, struct pl_error *err)
{
    _cleanup_free_ char *copy = strdup(text);
    char *rest = copy, *word;
    size_t axes[2] = {0}, n = 0;
    int r = 0;

    if (!copy)
        return pl_error_nomem(err);
    while (r == 0 && (word = strsep(&rest, ","))) {
        size_t axis = find_axis(grid, word);

        if (axis == grid->n_axes)
            return pl_error_set(err, -EINVAL, "'%s': '%s' is not an axis of --grid", text, word);
        if (grid->axes[axis].zipped)
            return pl_error_set(err, -EINVAL, "'%s': axis '%s' is zipped already", text, word);
        grid->axes[axis].zipped = true;
        /* The first axis of the grid leads, whatever the order here. */
        axes[1] = axis;
        if (n++ == 0)
            axes[0] = axis;
        else if (axis > axes[0])
            r = zip_with(grid, axes[0], axis, err);
        else
            return pl_error_set(err, -EINVAL, "'%s': name the axes in the order of --grid", text);
    }
    if (r == 0 && n < 2)
        return pl_error_set(err, -EINVAL, "'%s' is not A,B: name two axes or more", text);
    return r;
}

size_t pl_grid_n_points(const struct pl_grid *grid)
{
    size_t n = 1;

    for (size_t i = 0; i < grid->n_axes; i++)
        if (grid->axes[i].leader == i)
            n = n > SIZE_MAX / 2 / grid->axes[i].n_values ? SIZE_MAX / 2
                                                          : n * grid->axes[i].n_values;
    return n;
}

static size_t n_chosen(const struct pl_grid *grid)
{
    return grid->kept ? grid->n_kept : pl_grid_n_points(grid);
}

int pl_grid_check(const struct pl_grid *grid, struct pl_error *err)
{
    if (grid->most == 0 && n_chosen(grid) > PL_RUN_TRIAL_LIMIT)
        return pl_error_set(err, -E2BIG, "the grid has more than %u trials", PL_RUN_TRIAL_LIMIT);
    return 0;
}

unsigned pl_grid_n_trials(const struct pl_grid *grid)
{
    size_t n = n_chosen(grid);

    return (unsigned)PL_MIN(grid->most ? PL_MIN(n, (size_t)grid->most) : n,
                            (size_t)PL_RUN_TRIAL_LIMIT);
}

const char *pl_grid_value(const struct pl_grid *grid, unsigned trial, size_t axis)
{
    size_t leader = grid->axes[axis].leader, index = grid->kept ? grid->kept[trial] : trial;

    for (size_t i = grid->n_axes - 1; i > leader; i--)
        if (grid->axes[i].leader == i)
            index /= grid->axes[i].n_values;
    return grid->axes[axis].values[index % grid->axes[axis].n_values];
}

int pl_grid_format(const struct pl_axis *axis, struct pl_buf *out)
{
    int r = pl_buf_addf(out, "%s=", axis->name);

    for (size_t i = 0; i < axis->n_values && r == 0; i++) {
        const char *value = axis->values[i];
        bool quote = !*value || *value == '"' || strpbrk(value, ",([{");

        if (i)
            r = pl_buf_addc(out, ',');
        if (r == 0 && !quote)
            r = pl_buf_adds(out, value);
        if (r < 0 || !quote)
            continue;
        r = pl_buf_addc(out, '"');
        for (; *value && r == 0; value++)
            r = *value == '"' ? pl_buf_adds(out, "\"\"") : pl_buf_addc(out, *value);
        if (r == 0)
            r = pl_buf_addc(out, '"');
    }
    return r;
}
