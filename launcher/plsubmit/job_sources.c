/* SPDX-License-Identifier: MIT */
/* The sources of options in one precedence. */
#include "common/base/env.h"
#include "common/base/fs.h"
#include "common/base/site.h"
#include "common/base/term.h"
#include "launcher/plsubmit/job_file.h"
#include "launcher/plsubmit/shape.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

#define SITE_FILE "/etc/plume/plsubmit.yaml"

/* Options that say the same in different ways: those of a higher source replace all of a lower one.
 * 0 ends a row. */
#define GROUP_MAX 5
static const int groups[][GROUP_MAX] = {
    {PL_SPEC_MEM, PL_SPEC_MEM_PER_CPU, PL_SPEC_MEM_PER_GPU},
    {PL_SPEC_GPUS, PL_SPEC_GPUS_PER_NODE, PL_SPEC_GPUS_PER_TASK, PL_SPEC_GRES},
    {PL_SPEC_NTASKS, PL_SPEC_NTASKS_PER_NODE},
    {PL_SPEC_CPUS_PER_TASK, PL_SPEC_CPUS_PER_GPU},
    {PL_SPEC_MAIL_TYPE, PL_SPEC_MAIL},
    {PL_SPEC_VENV, PL_SPEC_CONDA},
};

static bool is_in(const int *group, int key)
{
    for (size_t i = 0; i < GROUP_MAX && group[i]; i++)
        if (group[i] == key)
            return true;
    return false;
}

/* --gres may be for something else than GPUs. */
static bool is_other_gres(int key, const char *text)
{
    return key == PL_SPEC_GRES && text && pl_shape_count_gres(text) == 0;
}

bool pl_spec_excludes(const struct pl_spec *spec,
                      enum pl_spec_key by,
                      enum pl_spec_key key,
                      const char *text)
{
    if (by == key || !spec->values[by].text || is_other_gres((int)by, spec->values[by].text) ||
        is_other_gres((int)key, text))
        return false;
    for (size_t i = 0; i < PL_COUNT(groups); i++)
        if (is_in(groups[i], (int)by) && is_in(groups[i], (int)key))
            return true;
    return false;
}

int pl_spec_note_file(struct pl_spec *spec,
                      enum pl_origin origin,
                      const char *name,
                      const char *value)
{
    _cleanup_free_ char *line = pl_strf("%s\t%s\t%s (overridden)", pl_origin_name(origin), name,
                                        value ? value : "(removed)");

    return line ? pl_strv_append(&spec->file_notes, line) : -ENOMEM;
}

bool pl_spec_names(char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

/* True if a file says that the option without a value does not hold. */
static bool is_declined(const struct pl_spec *spec, const char *name)
{
    for (int origin = 0; origin < PL_ORIGIN_COUNT; origin++)
        if (pl_spec_names(spec->declined[origin], name))
            return true;
    return false;
}

/* True if a file says that the option is not removed. */
static bool keeps(const struct pl_spec *spec, enum pl_spec_key key)
{
    for (const struct pl_option *o = pl_spec_command.options; o->name; o++)
        if (pl_spec_option_form(o) == PL_SPEC_FORM_REMOVE && o->target.key == (int)key)
            return is_declined(spec, o->name);
    return false;
}

static int merge_value(struct pl_spec *spec, struct pl_spec *lower, enum pl_spec_key key)
{
    struct pl_spec_value *from = &lower->values[key];
    bool taken = spec->values[key].origin != PL_ORIGIN_NONE;

    if (from->origin == PL_ORIGIN_NONE)
        return 0;
    taken |= !from->text && keeps(spec, key);
    for (int by = 0; by < PL_SPEC_N_KEYS && !taken; by++)
        /* Not those that come from `lower` itself. */
        taken = spec->values[by].origin > from->origin &&
                pl_spec_excludes(spec, (enum pl_spec_key)by, key, from->text);
    if (taken)
        return pl_spec_note_file(spec, from->origin, pl_spec_option(key)->name, from->text);
    spec->values[key] = *from;
    *from = (struct pl_spec_value){0};
    return 0;
}

/* Items "NAME=..." of these lists are one value; a later one of the others adds to them, or sbatch
 * and the shell take the last. */
static bool has_names(int list)
{
    return list == PL_SPEC_METRIC || list == PL_SPEC_SAMPLE;
}

static bool is_named(char *const *items, const char *item)
{
    size_t len = strcspn(item, "=");

    for (; items && *items; items++)
        if (strcspn(*items, "=") == len && strncmp(*items, item, len) == 0)
            return true;
    return false;
}

/* Puts the items of `lower` in front. */
static int merge_list(struct pl_spec *spec, struct pl_spec *lower, int list)
{
    _cleanup_(pl_strv_freep) char **all = NULL;
    enum pl_origin origin = lower->source;
    size_t n = 0;
    int r = 0;

    for (char **item = lower->lists[list]; item && *item && r == 0; item++) {
        if (has_names(list) && is_named(spec->lists[list], *item)) {
            r = pl_spec_note_file(spec, origin, pl_spec_list_name((enum pl_spec_list)list), *item);
            continue;
        }
        r = pl_strv_append(&all, *item);
        n++;
    }
    for (char **item = spec->lists[list]; item && *item && r == 0; item++)
        r = pl_strv_append(&all, *item);
    if (r < 0)
        return r;
    pl_strv_free(spec->lists[list]);
    spec->lists[list] = PL_TAKE(all);
    spec->n_of_file[list][origin] = n;
    return 0;
}

static void swap_axes(struct pl_axis *a, struct pl_axis *b)
{
    struct pl_axis c = *a;

    *a = *b;
    *b = c;
}

/* The axes of `lower`, then those that only `spec` has. One that both have has the values of `spec`
 * and the place of `lower`. */
static int merge_grid(struct pl_spec *spec, struct pl_spec *lower)
{
    struct pl_grid *high = &spec->grid, *low = &lower->grid;
    struct pl_axis *axes;
    size_t n = low->n_axes;
    int r = 0;

    if (n == 0)
        return 0;
    axes = realloc(low->axes, (n + high->n_axes) * sizeof(*axes));
    if (!axes)
        return -ENOMEM;
    low->axes = axes;
    for (size_t i = 0; i < high->n_axes; i++) {
        size_t same = 0;

        while (same < n && strcmp(axes[same].name, high->axes[i].name) != 0)
            same++;
        if (same < n) {
            swap_axes(&axes[same], &high->axes[i]);
            continue;
        }
        axes[low->n_axes++] = high->axes[i];
        high->axes[i] = (struct pl_axis){0};
    }
    for (size_t i = 0; i < high->n_axes && r == 0; i++) {
        _cleanup_(pl_buf_finish) struct pl_buf text = {0};

        if (!high->axes[i].name)
            continue;
        r = pl_grid_format(&high->axes[i], &text);
        if (r == 0)
            r = pl_spec_note_file(spec, lower->source, "grid", pl_buf_str(&text));
    }
    for (size_t i = 0; i < low->n_axes; i++)
        axes[i].leader = i;
    pl_grid_finish(high);
    *high = *low;
    *low = (struct pl_grid){0};
    return r;
}

static int merge_flag(struct pl_spec *spec, const struct pl_spec *lower, const struct pl_option *o)
{
    bool *to = (bool *)((char *)spec + o->target.at);

    if (*to || !*(const bool *)((const char *)lower + o->target.at) || is_declined(spec, o->name))
        return 0;
    *to = true;
    return lower->source == PL_ORIGIN_JOB_FILE ? 0
                                               : pl_strv_append(&spec->flags_of_defaults, o->name);
}

int pl_job_file_merge(struct pl_spec *spec, struct pl_spec *lower)
{
    enum pl_origin source = lower->source;
    int r = 0;

    for (int key = 0; key < PL_SPEC_N_KEYS && r == 0; key++)
        r = merge_value(spec, lower, (enum pl_spec_key)key);
    for (int list = 0; list < PL_SPEC_N_LISTS && r == 0; list++)
        if (lower->lists[list])
            r = merge_list(spec, lower, list);
    for (const struct pl_option *o = pl_spec_command.options; o->name && r == 0; o++)
        if (pl_spec_option_form(o) == PL_SPEC_FORM_FLAG)
            r = merge_flag(spec, lower, o);
    if (r == 0 && !spec->declined[source])
        spec->declined[source] = PL_TAKE(lower->declined[source]);
    if (!spec->command)
        spec->command = PL_TAKE(lower->command);
    for (char **line = lower->warnings; line && *line && r == 0; line++)
        r = pl_strv_append(&spec->warnings, *line);
    if (r == 0)
        r = merge_grid(spec, lower);
    pl_spec_finish(lower);
    return r;
}

/* Merges one file. optional: it need not be there. */
static int apply(struct pl_spec *spec,
                 const char *path,
                 enum pl_origin origin,
                 bool optional,
                 struct pl_error *err)
{
    _cleanup_(pl_spec_finish) struct pl_spec lower = {0};
    int r;

    if (optional && (!*path || (access(path, F_OK) < 0 && (errno == ENOENT || errno == ENOTDIR))))
        return 0;
    r = pl_job_file_read(path, origin, &lower, err);
    if (r < 0)
        return r;
    return pl_job_file_merge(spec, &lower) < 0 ? pl_error_nomem(err) : 0;
}

int pl_job_files_apply(struct pl_spec *spec, struct pl_error *err)
{
    const char *home = pl_env_text(PL_ENV_PLUME_HOME), *site = pl_env(PL_ENV_PLUME_SITE_FILE);
    const char *user_home = pl_env_text(PL_ENV_HOME);
    _cleanup_free_ char *user = home        ? pl_path_join(home, "plsubmit.yaml")
                                : user_home ? pl_path_join(user_home, ".plume/plsubmit.yaml")
                                            : strdup("");
    int r = user ? 0 : pl_error_nomem(err);

    if (r == 0 && spec->job_file)
        r = apply(spec, spec->job_file, PL_ORIGIN_JOB_FILE, false, err);
    if (r == 0)
        r = apply(spec, user, PL_ORIGIN_USER_FILE, true, err);
    if (r == 0 && !site) /* its lines, such as `setup`, run as the user */
        r = pl_site_check_file(SITE_FILE, err);
    if (r == 0)
        r = apply(spec, site ? site : SITE_FILE, PL_ORIGIN_SITE_FILE, true, err);
    return r;
}

enum pl_origin pl_spec_item_origin(const struct pl_spec *spec, enum pl_spec_list list, size_t item)
{
    for (int origin = 0; origin < PL_ORIGIN_COUNT; origin++) {
        if (item < spec->n_of_file[list][origin])
            return (enum pl_origin)origin;
        item -= spec->n_of_file[list][origin];
    }
    return PL_ORIGIN_COMMAND_LINE;
}
