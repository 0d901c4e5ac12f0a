/* SPDX-License-Identifier: MIT */
/* A resolved spec as sbatch's options and as the variables that the script exports. */
#include "common/base/fs.h"
#include "launcher/plsubmit/spec_private.h"

#include <string.h>

static int add_arg(char ***list, const char *name, const char *value)
{
    _cleanup_free_ char *arg = pl_strf("--%s=%s", name, value);

    return arg ? pl_strv_append(list, arg) : -ENOMEM;
}

/* Adds --output=RUN/slurm-%A_%a.out. A '%' in the folder's name is doubled. */
static int add_output(char ***list, const char *run_dir)
{
    _cleanup_(pl_buf_finish) struct pl_buf path = {0};
    int r = 0;

    for (const char *p = run_dir; *p && r == 0; p++)
        r = *p == '%' ? pl_buf_adds(&path, "%%") : pl_buf_addc(&path, *p);
    if (r == 0)
        r = pl_buf_adds(&path, "/slurm-%A_%a.out");
    return r == 0 ? add_arg(list, "output", pl_buf_str(&path)) : r;
}

int pl_spec_sbatch_args(const struct pl_spec *spec, const char *run_dir, char ***ret)
{
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    int r = list ? 0 : -ENOMEM;

    for (int key = PL_SPEC_NAME; key <= PL_SPEC_SBATCH_LAST && r == 0; key++) {
        const struct pl_spec_value *value = &spec->values[key];

        if (key == PL_SPEC_OUTPUT && value->origin == PL_ORIGIN_NONE)
            r = add_output(&list, run_dir);
        else if (value->text)
            r = add_arg(&list, key == PL_SPEC_NAME ? "job-name" : pl_spec_option(key)->name,
                        value->text);
    }
    if (r == 0 && spec->values[PL_SPEC_MAIL].text) { /* else Slurm sends one mail per array */
        _cleanup_free_ char *types = pl_strf("%s,ARRAY_TASKS", spec->values[PL_SPEC_MAIL].text);

        r = types ? add_arg(&list, "mail-type", types) : -ENOMEM;
    }
    if (r == 0 && (spec->values[PL_SPEC_REQUEUE_ON].text || pl_spec_requeues_hangs(spec)))
        r = pl_strv_append(&list, "--requeue");
    for (char **item = spec->lists[PL_SPEC_SBATCH]; item && *item && r == 0; item++) {
        _cleanup_free_ char *arg = pl_strf("--%s", *item);

        r = arg ? pl_strv_append(&list, arg) : -ENOMEM;
    }
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}

int pl_spec_env(const struct pl_spec *spec, char ***ret)
{
    static const struct {
        enum pl_spec_key key;
        const char *variable;
    } of_options[] = {
        {PL_SPEC_NCCL_DEBUG, "NCCL_DEBUG"},
        {PL_SPEC_NCCL_IFNAME, "NCCL_SOCKET_IFNAME"},
        {PL_SPEC_MASTER_PORT, "PLUME_MASTER_PORT_RANGE"},
        {PL_SPEC_OUTPUT_RANKS, "PLUME_OUTPUT_RANKS"},
    };
    _cleanup_(pl_strv_freep) char **list = calloc(1, sizeof(*list));
    int r = list ? 0 : -ENOMEM;

    for (size_t i = 0; i < PL_COUNT(of_options) && r == 0; i++) {
        const char *value = spec->values[of_options[i].key].text;
        _cleanup_free_ char *entry = NULL;

        if (!value)
            continue;
        entry = pl_strf("%s=%s", of_options[i].variable, value);
        r = entry ? pl_strv_append(&list, entry) : -ENOMEM;
    }
    for (char **item = spec->lists[PL_SPEC_ENV]; item && *item && r == 0; item++)
        r = strchr(*item, '=') ? pl_strv_append(&list, *item) : 0;
    if (r < 0)
        return r;
    *ret = PL_TAKE(list);
    return 0;
}
