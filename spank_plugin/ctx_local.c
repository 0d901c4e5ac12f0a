/* SPDX-License-Identifier: MIT */
/* In srun: options, nothing else. */
#include "spank_plugin/options.h"

static int init(spank_t spank)
{
    struct pl_error err = {0};

    if (pl_spank_options_register(spank, &err) < 0)
        slurm_error("plume: %s", pl_error_text(&err));
    return 0;
}

static void init_post_opt(void)
{
    if (pl_options()->enabled)
        pl_spank_options_export();
    else if (pl_spank_options_without_plume())
        slurm_error("plume: options --plume-* do nothing without --plume");
}

const struct pl_spank_client pl_spank_local = {
    .init = init,
    .init_post_opt = init_post_opt,
};
