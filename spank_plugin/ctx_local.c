/* SPDX-License-Identifier: MIT */
/* In srun: options, and a look at the environment. */
#include "common/base/env.h"
#include "spank_plugin/options.h"
#include "spank_plugin/values.h"

#include <unistd.h>

static int init(spank_t spank)
{
    struct pl_error err = {0};

    if (pl_spank_options_register(spank, &err) < 0)
        slurm_error("plume: %s", pl_error_text(&err));
    return 0;
}

/* srun runs once per step and has the user's stderr; the daemon's is /dev/null. */
static void warn_of_variables(void)
{
    char name[128], line[512];
    char *const *entry = environ;
    enum pl_env_id id = PL_ENV_NONE;
    const char *near;

    while (pl_env_next_no_seconds(&id, line, sizeof(line))) {
        pl_values_make_printable(line);
        slurm_spank_log("plume: %s", line);
    }
    while (pl_env_next_unknown(&entry, name, sizeof(name), &near)) {
        pl_env_explain_unknown(name, near, line, sizeof(line));
        pl_values_make_printable(line);
        slurm_spank_log("plume: %s", line);
    }
}

static void init_post_opt(void)
{
    if (pl_options()->enabled) {
        pl_spank_options_export();
        warn_of_variables();
    } else if (pl_spank_options_without_plume()) {
        slurm_error("plume: options --plume-* do nothing without --plume");
    }
}

const struct pl_spank_client pl_spank_local = {
    .init = init,
    .init_post_opt = init_post_opt,
};
