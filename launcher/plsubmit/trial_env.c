/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/trial_env.h"
#include "common/base/child.h"
#include "common/base/env.h"
#include "common/base/env_file.h"
#include "common/base/fs.h"
#include "common/proto/json.h"

#include <string.h>
#include <strings.h>

#define BASH_MS 5000

/* ---- variables ---- */

/* True if a part of the name, between '_', says so. */
static bool looks_secret(const char *name, size_t len)
{
    static const char *const words[] = {"KEY",      "APIKEY", "TOKEN",      "SECRET",
                                        "PASSWORD", "PASSWD", "CREDENTIALS"};

    for (size_t i = 0; i < len;) {
        size_t part = 0;

        while (i + part < len && name[i + part] != '_')
            part++;
        for (size_t k = 0; k < PL_COUNT(words); k++)
            if (strlen(words[k]) == part && strncasecmp(words[k], name + i, part) == 0)
                return true;
        i += part + 1;
    }
    return false;
}

/* The value of sbatch's --export, which may keep variables from the job; NULL: all go there. */
static const char *export_list(const struct pl_spec *spec)
{
    const char *list = pl_env_named("SBATCH_EXPORT");

    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item; item++)
        if (strncmp(*item, "export=", 7) == 0)
            list = *item + 7;
    return list && *list && strncmp(list, "ALL", 3) != 0 ? list : NULL;
}

static int check_variables(struct pl_spec *spec, struct pl_error *err)
{
    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item; item++) {
        size_t len = strcspn(*item, "=");

        if (!(*item)[len] && export_list(spec))
            return pl_error_set(err, -EINVAL,
                                "--env %s: sbatch's --export=%s keeps it from the job: write "
                                "--sbatch export=ALL, or --env-file",
                                *item, export_list(spec));
        if ((*item)[len] && looks_secret(*item, len) &&
            pl_spec_warn(spec,
                         "the run folder has the value of %.*s in clear: write --env %.*s, whose "
                         "value only Slurm gets, or --env-file FILE",
                         (int)len, *item, (int)len, *item) < 0)
            return pl_error_nomem(err);
    }
    return 0;
}

static int check_files(struct pl_spec *spec, struct pl_error *err)
{
    for (char **item = spec->lists[PL_SPEC_ENV_FILE]; item && *item; item++) {
        _cleanup_(pl_strv_freep) char **list = NULL;
        char *path;
        int r = pl_env_file_read(*item, &list, err);

        for (char **entry = list; entry && *entry; entry++)
            explicit_bzero(*entry, strlen(*entry));
        if (r < 0)
            return pl_error_wrap(err, r, "--env-file");
        path = realpath(*item, NULL);
        if (!path)
            return pl_error_errno(err, errno, "--env-file: cannot find '%s'", *item);
        free(*item);
        *item = path;
    }
    return 0;
}

/* True if an item after `i` sets the variable. */
static bool is_set_later(const json_t *list, size_t i, const char *name)
{
    size_t len = strlen(name);
    const char *later;

    while ((later = json_string_value(json_array_get(list, ++i))))
        if (strncmp(later, name, len) == 0 && later[len] == '=')
            return true;
    return false;
}

int pl_trial_env_add(const struct pl_run *run, char ***env, struct pl_error *err)
{
    const json_t *list = json_object_get(json_object_get(pl_run_options(run), "env"), "value");
    const json_t *item;
    size_t i;

    json_array_foreach (list, i, item) {
        const char *name = json_string_value(item), *value = name ? pl_env_named(name) : NULL;
        _cleanup_free_ char *entry = NULL;

        if (!name || strchr(name, '=') || is_set_later(list, i, name))
            continue;
        if (!value)
            return pl_error_set(err, -EINVAL,
                                "the sweep takes the value of %s from the environment of each "
                                "submission (--env %s), and it is not set",
                                name, name);
        entry = pl_strf(PL_TRIAL_ENV_PREFIX "%s=%s", name, value);
        if (!entry || pl_strv_append(env, entry) < 0)
            return pl_error_nomem(err);
    }
    return 0;
}

/* ---- commands ---- */

/* bash itself checks the form. It only warns of a here-document without an end, and then takes the
 * rest of the text for it. Without bash here nothing is checked. */
static int check_command(const char *option, const char *command, struct pl_error *err)
{
    const char *argv[] = {"bash", "-n", "-c", command, NULL};
    _cleanup_(pl_child_finish) struct pl_child child = {0};
    const char *text, *colon;

    if (pl_child_run(argv, NULL, BASH_MS, &child, NULL) < 0 || child.err.len == 0)
        return 0;
    text = pl_buf_str(&child.err);
    if (child.status == 0 && !strstr(text, "here-document"))
        return 0;
    colon = strstr(text, "line ") ? strchr(strstr(text, "line "), ':') : NULL;
    text = colon ? colon + 2 : text;
    return pl_error_set(err, -EINVAL, "%s '%.400s': bash: %.*s", option, command,
                        (int)strcspn(text, "\n"), text);
}

int pl_trial_env_check(struct pl_spec *spec, struct pl_error *err)
{
    int r = check_variables(spec, err);

    if (r == 0)
        r = check_files(spec, err);
    for (char **item = spec->lists[PL_SPEC_SETUP]; item && *item && r == 0; item++)
        r = check_command("--setup", *item, err);
    for (char **item = spec->lists[PL_SPEC_TEARDOWN]; item && *item && r == 0; item++)
        r = check_command("--teardown", *item, err);
    if (r == 0 && spec->values[PL_SPEC_SAVE_COMMAND].text)
        r = check_command("--save-command", spec->values[PL_SPEC_SAVE_COMMAND].text, err);
    if (r == 0 && spec->values[PL_SPEC_ON_END].text)
        r = check_command("--on-end", spec->values[PL_SPEC_ON_END].text, err);
    return r;
}
