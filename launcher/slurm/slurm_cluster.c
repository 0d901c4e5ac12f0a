/* SPDX-License-Identifier: MIT */
#include "launcher/slurm/slurm_cluster.h"
#include "common/base/env.h"
#include "launcher/slurm/slurm_conf.h"
#include "launcher/slurm/slurm_site.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

char *pl_slurm_cluster(void)
{
    static struct pl_slurm_site site;
    const char *conf = pl_env(PL_ENV_SLURM_CONF);

    if (pl_slurm_conf_readable())
        return pl_slurm_conf_cluster();
    if ((conf && *conf) || (!*site.cluster && pl_slurm_site_ask(&site, NULL) < 0))
        return NULL;
    return *site.cluster ? strdup(site.cluster) : NULL;
}

int pl_slurm_find_run(const char *word, struct pl_run_ref *ret, struct pl_error *err)
{
    _cleanup_free_ char *here = isdigit((unsigned char)*word) ? pl_slurm_conf_cluster() : NULL;

    return pl_run_index_find(word, here, ret, err);
}

int pl_slurm_check_cluster(const struct pl_run *run, struct pl_error *err)
{
    const char *theirs = pl_run_cluster(run);
    _cleanup_free_ char *ours = theirs ? pl_slurm_cluster() : NULL;

    if (!ours || strcmp(ours, theirs) == 0)
        return 0;
    return pl_error_set(
        err, -EXDEV,
        "sweep %s is on cluster %s, but Slurm here is that of %s: run plsubmit on a "
        "host of %s",
        pl_run_sweep(run), theirs, ours, theirs);
}
