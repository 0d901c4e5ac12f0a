/* SPDX-License-Identifier: MIT */
/* A spec as JSON, for sweep.json, and as the lines of --show-config. */
#include "common/base/fs.h"
#include "common/base/term.h"
#include "common/proto/json.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

static json_t *with_origin(json_t *value, enum pl_origin origin)
{
    return json_pack("{soss}", "value", value, "origin", pl_origin_name(origin));
}

/* The values with their origin: one for all, or where they differ one for each. */
static json_t *with_origins(json_t *values, json_t *origins)
{
    json_t *first = json_array_get(origins, 0);

    for (size_t i = 1; i < json_array_size(origins); i++)
        if (!json_equal(first, json_array_get(origins, i)))
            return json_pack("{soso}", "value", values, "origin", origins);
    first = json_pack("{sosO}", "value", values, "origin", first);
    json_decref(origins);
    return first;
}

static int add_item(json_t *values, json_t *origins, const char *value, enum pl_origin origin)
{
    if (json_array_append_new(values, json_string(value)) < 0)
        return -1;
    return json_array_append_new(origins, json_string(pl_origin_name(origin)));
}

static json_t *list_json(const struct pl_spec *spec, enum pl_spec_list list)
{
    _cleanup_(json_decrefp) json_t *values = json_array(), *origins = json_array();

    for (size_t i = 0; spec->lists[list][i]; i++)
        if (add_item(values, origins, spec->lists[list][i], pl_spec_item_origin(spec, list, i)) < 0)
            return NULL;
    return with_origins(PL_TAKE(values), PL_TAKE(origins));
}

static json_t *grid_json(const struct pl_grid *grid)
{
    _cleanup_(json_decrefp) json_t *values = json_array(), *origins = json_array();

    for (size_t i = 0; i < grid->n_axes; i++) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};
        enum pl_origin origin = (enum pl_origin)grid->axes[i].tag;

        if (pl_grid_format(&grid->axes[i], &text) < 0 ||
            add_item(values, origins, pl_buf_str(&text),
                     origin == PL_ORIGIN_NONE ? PL_ORIGIN_COMMAND_LINE : origin) < 0)
            return NULL;
    }
    return with_origins(PL_TAKE(values), PL_TAKE(origins));
}

json_t *pl_spec_json(const struct pl_spec *spec)
{
    _cleanup_(json_decrefp) json_t *o = json_object();
    int r = o ? 0 : -1;

    for (int key = 0; key < PL_SPEC_N_KEYS && r == 0; key++) {
        const struct pl_spec_value *value = &spec->values[key];

        if (value->origin != PL_ORIGIN_NONE)
            r = json_object_set_new(
                o, pl_spec_option(key)->name,
                with_origin(value->text ? json_string(value->text) : json_null(), value->origin));
    }
    for (int list = 0; list < PL_SPEC_N_LISTS && r == 0; list++)
        if (spec->lists[list])
            r = json_object_set_new(o, pl_spec_list_name(list), list_json(spec, list));
    if (spec->grid.n_axes && r == 0)
        r = json_object_set_new(o, "grid", grid_json(&spec->grid));
    if (spec->job_file && r == 0)
        r = json_object_set_new(o, "job-file",
                                with_origin(json_string(spec->job_file), PL_ORIGIN_COMMAND_LINE));
    return r == 0 ? PL_TAKE(o) : NULL;
}

static int show_line(struct pl_buf *out, const char *name, const char *value, const char *origin)
{
    int r = pl_term_cell(out, name, 16, false, false);

    if (r == 0)
        r = pl_buf_addf(out, "  %-12s  ", origin);
    if (r == 0)
        r = pl_term_escape(out, value, strlen(value));
    return r == 0 ? pl_buf_addc(out, '\n') : r;
}

/* "ORIGIN\tNAME\tVALUE" */
static int show_note(struct pl_buf *out, const char *line)
{
    _cleanup_free_ char *copy = strdup(line);
    char *name, *value;

    if (!copy)
        return -ENOMEM;
    name = strchr(copy, '\t');
    *name++ = '\0';
    value = strchr(name, '\t');
    *value++ = '\0';
    return show_line(out, name, value, copy);
}

int pl_spec_show(const struct pl_spec *spec, FILE *out)
{
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    _cleanup_(json_decrefp) json_t *o = pl_spec_json(spec);
    const char *name;
    json_t *entry;
    int r = o ? 0 : -ENOMEM;

    json_object_foreach (o, name, entry) {
        const json_t *value = json_object_get(entry, "value");
        const json_t *origins = json_object_get(entry, "origin");
        const char *origin = json_string_value(origins);

        for (size_t i = 0; i < json_array_size(value) && r == 0; i++)
            r = show_line(&text, name, json_string_value(json_array_get(value, i)),
                          origin ? origin : json_string_value(json_array_get(origins, i)));
        if (!json_is_array(value) && r == 0)
            r = show_line(&text, name, json_is_null(value) ? "(removed)" : json_string_value(value),
                          origin);
    }
    for (char **line = spec->file_notes; line && *line && r == 0; line++)
        r = show_note(&text, *line);
    for (char **line = spec->sbatch_env; line && *line && r == 0; line++) {
        size_t len = strcspn(*line, "=");
        _cleanup_free_ char *key = strndup(*line, len);

        r = key ? show_line(&text, key, *line + len + 1, pl_origin_name(PL_ORIGIN_ENVIRONMENT))
                : -ENOMEM;
    }
    if (r < 0)
        return r;
    return fwrite(pl_buf_str(&text), 1, text.len, out) == text.len ? 0 : -EIO;
}
