/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/extend.h"
#include "common/base/parse.h"
#include "common/proto/json.h"

#include <string.h>

/* For each axis of the sweep the index of the grid's. */
static int
map_axes(const struct pl_run *run, const struct pl_grid *grid, size_t *map, struct pl_error *err)
{
    size_t n = pl_run_n_axes(run);

    if (n == 0)
        return pl_error_set(err, -EINVAL, "sweep %s has no axes, so it has all its trials",
                            pl_run_sweep(run));
    for (size_t i = 0; i < grid->n_axes; i++) {
        size_t k = 0;

        while (k < n && strcmp(pl_run_axis(run, k), grid->axes[i].name) != 0)
            k++;
        if (k == n)
            return pl_error_set(err, -EINVAL, "sweep %s has no axis '%s'", pl_run_sweep(run),
                                grid->axes[i].name);
        map[k] = i + 1;
    }
    for (size_t k = 0; k < n; k++)
        if (map[k]-- == 0)
            return pl_error_set(err, -EINVAL,
                                "a new trial needs a value of axis '%s' of sweep %s: add --grid "
                                "%s=VALUE",
                                pl_run_axis(run, k), pl_run_sweep(run), pl_run_axis(run, k));
    return 0;
}

/* A set of trials: each one's parameters as text. */
static int add_known(struct pl_run *run, json_t *known, struct pl_error *err)
{
    for (unsigned trial = 0; trial < pl_run_n_trials(run); trial++) {
        _cleanup_(json_decrefp) json_t *params = NULL;
        _cleanup_free_ char *text = NULL;
        int r = pl_run_trial_params(run, trial, &params, err);

        if (r < 0)
            return r;
        text = pl_json_dumps(params, JSON_COMPACT);
        if (!text || json_object_set_new(known, text, json_true()) < 0)
            return pl_error_nomem(err);
    }
    return 0;
}

/* The parameters as in add_known(). NULL: out of memory. */
static char *params_text(const struct pl_run *run, const char *const *values)
{
    _cleanup_(json_decrefp) json_t *params = json_object();

    for (size_t k = 0; params && k < pl_run_n_axes(run); k++)
        if (json_object_set_new(params, pl_run_axis(run, k), json_string(values[k])) < 0)
            return NULL;
    return params ? pl_json_dumps(params, JSON_COMPACT) : NULL;
}

int pl_extend_lines(struct pl_run *run,
                    const struct pl_grid *grid,
                    struct pl_buf *ret_lines,
                    unsigned *ret_new,
                    unsigned *ret_known,
                    struct pl_error *err)
{
    size_t n = pl_run_n_axes(run);
    _cleanup_free_ size_t *map = calloc(n + 1, sizeof(*map));
    _cleanup_free_ const char **names = calloc(n + 1, sizeof(*names));
    _cleanup_free_ const char **values = calloc(n + 1, sizeof(*values));
    _cleanup_(json_decrefp) json_t *known = json_object();
    unsigned n_new = 0, n_known = 0;
    int r = map && names && values && known ? 0 : pl_error_nomem(err);

    if (r == 0)
        r = map_axes(run, grid, map, err);
    if (r == 0)
        r = add_known(run, known, err);
    if (r < 0)
        return r;
    for (size_t k = 0; k < n; k++)
        names[k] = pl_run_axis(run, k);
    for (unsigned trial = 0; trial < pl_grid_n_trials(grid); trial++) {
        _cleanup_free_ char *text = NULL;

        for (size_t k = 0; k < n; k++)
            values[k] = pl_grid_value(grid, trial, map[k]);
        text = params_text(run, values);
        if (!text)
            return pl_error_nomem(err);
        if (json_object_get(known, text)) {
            n_known++;
            continue;
        }
        if (pl_run_add_trial_line(ret_lines, names, pl_run_n_trials(run) + n_new++, values) < 0)
            return pl_error_nomem(err);
    }
    *ret_new = n_new;
    *ret_known = n_known;
    return 0;
}

int pl_extend_run(struct pl_run *run,
                  const struct pl_grid *grid,
                  unsigned *ret_new,
                  unsigned *ret_known,
                  struct pl_error *err)
{
    _cleanup_(pl_buf_finish) struct pl_buf lines = {0};
    int r = pl_extend_lines(run, grid, &lines, ret_new, ret_known, err);

    return r < 0 || *ret_new == 0 ? r : pl_run_extend(run, pl_buf_str(&lines), *ret_new, err);
}

/* The axis' value that is the number of `text` in another spelling; NULL: none is. */
static const char *spelt_otherwise(const struct pl_axis *axis, const char *text)
{
    double number, value;

    if (pl_parse_double(text, &number, NULL) < 0)
        return NULL;
    for (size_t i = 0; i < axis->n_values; i++)
        if (strcmp(axis->values[i], text) != 0 &&
            pl_parse_double(axis->values[i], &value, NULL) == 0 && value == number)
            return axis->values[i];
    return NULL;
}

int pl_extend_hints(struct pl_run *run, struct pl_spec *spec, struct pl_error *err)
{
    const struct pl_grid *grid = &spec->grid;
    _cleanup_free_ bool *told = calloc(grid->n_axes + 1, sizeof(*told));

    if (!told)
        return pl_error_nomem(err);
    for (unsigned trial = 0; trial < pl_run_n_trials(run); trial++) {
        _cleanup_(json_decrefp) json_t *params = NULL;
        int r = pl_run_trial_params(run, trial, &params, err);

        for (size_t i = 0; i < grid->n_axes && r == 0; i++) {
            const struct pl_axis *axis = &grid->axes[i];
            const char *old = json_string_value(json_object_get(params, axis->name));
            const char *new = old && !told[i] && !axis->quoted && !axis->zipped
                                  ? spelt_otherwise(axis, old)
                                  : NULL;

            if (!new)
                continue;
            told[i] = true;
            if (pl_spec_warn(spec,
                             "--grid: axis '%s': '%.100s' is the number '%.100s', which the sweep "
                             "has: trials with one may repeat those with the other",
                             axis->name, new, old) < 0)
                r = pl_error_nomem(err);
        }
        if (r < 0)
            return r;
    }
    return 0;
}
