/* SPDX-License-Identifier: MIT */
/* The values that a spec holds, whatever has set them. */
#include "launcher/plsubmit/spec_private.h"

#include <stdarg.h>
#include <string.h>

const char *pl_origin_name(enum pl_origin origin)
{
    static const char *const names[] = {"",         "built-in",    "site file",   "user file",
                                        "job file", "environment", "command line"};

    return names[origin];
}

void pl_spec_finish(struct pl_spec *spec)
{
    for (size_t i = 0; i < PL_SPEC_N_KEYS; i++)
        free(spec->values[i].text);
    for (size_t i = 0; i < PL_SPEC_N_LISTS; i++)
        pl_strv_free(spec->lists[i]);
    pl_grid_finish(&spec->grid);
    pl_strv_free(spec->argv);
    free(spec->program);
    free(spec->container_runtime);
    pl_strv_free(spec->metric_names);
    pl_strv_free(spec->metric_regexes);
    free(spec->id_name);
    free(spec->changed);
    pl_strv_free(spec->sbatch_env);
    pl_strv_free(spec->warnings);
    free(spec->last_sbatch);
    free(spec->job_file);
    free(spec->objective_metric);
    free(spec->write_job);
    pl_strv_free(spec->command);
    pl_strv_free(spec->file_notes);
    pl_strv_free(spec->flags_of_defaults);
    for (size_t i = 0; i < PL_COUNT(spec->declined); i++)
        pl_strv_free(spec->declined[i]);
    *spec = (struct pl_spec){0};
}

int pl_spec_put(struct pl_spec *spec, enum pl_spec_key key, const char *text, enum pl_origin origin)
{
    struct pl_spec_value *value;
    char *copy;

    if ((unsigned)key >= PL_SPEC_N_KEYS)
        return -EINVAL;
    copy = text ? strdup(text) : NULL;
    if (text && !copy)
        return -ENOMEM;
    value = &spec->values[key];
    free(value->text);
    value->text = copy;
    value->origin = origin;
    return 0;
}

int pl_spec_warn(struct pl_spec *spec, const char *fmt, ...)
{
    char line[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    return pl_strv_append(&spec->warnings, line);
}

const char *pl_spec_of_sbatch(const struct pl_spec *spec, const char *key)
{
    const char *found = NULL;
    size_t len = strlen(key);

    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item; item++)
        if (strncmp(*item, key, len) == 0 && (!(*item)[len] || (*item)[len] == '='))
            found = (*item)[len] ? *item + len + 1 : "";
    return found;
}
