/* SPDX-License-Identifier: MIT */
/* In sbatch and salloc: options, which Slurm hands to each srun of the job. */
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
}

const struct pl_spank_client pl_spank_allocator = {
    .init = init,
    .init_post_opt = init_post_opt,
};
