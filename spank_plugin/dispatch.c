/* SPDX-License-Identifier: MIT */
/* The entries that Slurm calls. Each hook goes to the file of its context; all other contexts
 * (slurmd, prolog, epilog) get nothing. Never returns anything but 0 inside slurmstepd and slurmd.
 */
#include "spank_plugin/hooks.h"

SPANK_PLUGIN(plume, 1) /* the name is part of Slurm's option variables: never change it */

static const struct pl_spank_client *client(void)
{
    switch (spank_context()) {
    case S_CTX_LOCAL:
        return &pl_spank_local;
    case S_CTX_ALLOCATOR:
        return &pl_spank_allocator;
    default:
        return NULL;
    }
}

static const struct pl_spank_step *step(void)
{
    return spank_context() == S_CTX_REMOTE ? &pl_spank_remote : NULL;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    const struct pl_spank_client *c = client();

    if (c)
        return c->init(spank);
    if (step())
        step()->init(spank, argc, argv);
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
    const struct pl_spank_client *c = client();

    if (c)
        c->init_post_opt();
    return 0;
}

int slurm_spank_user_init(spank_t spank, int argc, char **argv)
{
    if (step())
        step()->user_init(spank);
    return 0;
}

int slurm_spank_task_post_fork(spank_t spank, int argc, char **argv)
{
    if (step())
        step()->task_post_fork(spank);
    return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    if (step())
        step()->task_init(spank);
    return 0;
}

int slurm_spank_task_exit(spank_t spank, int argc, char **argv)
{
    if (step())
        step()->task_exit(spank);
    return 0;
}

int slurm_spank_exit(spank_t spank, int argc, char **argv)
{
    if (step())
        step()->exit();
    return 0;
}
