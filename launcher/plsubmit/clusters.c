/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/clusters.h"
#include "common/base/macros.h"
#include "launcher/slurm/slurm_cluster.h"
#include "launcher/slurm/slurm_conf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The value of the last "PREFIX..." in a list; NULL: none. */
static const char *last_of(const char *const *list, const char *prefix)
{
    const char *found = NULL;

    for (; list && *list; list++)
        if (strncmp(*list, prefix, strlen(prefix)) == 0)
            found = *list + strlen(prefix);
    return found;
}

const char *pl_clusters_chosen(const char *const *sbatch_args, char *const *env)
{
    const char *const *variables = (const char *const *)env;
    const char *found = last_of(sbatch_args, "--clusters=");

    if (!found)
        found = last_of(sbatch_args, "--cluster=");
    if (!found)
        found = last_of(variables, "SLURM_CLUSTERS=");
    return found ? found : last_of(variables, "SBATCH_CLUSTERS=");
}

char *pl_clusters_answer(const struct pl_buf *out)
{
    const char *text = pl_buf_str(out), *name = strrchr(text, ';');
    size_t len = name ? strcspn(name + 1, " \n") : 0;

    /* A site's wrapper may print lines before it. */
    if (len == 0 || name[1 + len + strspn(name + 1 + len, " \n")])
        return NULL;
    return strndup(name + 1, len);
}

int pl_clusters_set(struct pl_run *run, const char *cluster)
{
    _cleanup_free_ char *here = cluster || pl_run_cluster(run) ? NULL : pl_slurm_cluster();

    if (here && pl_run_set_cluster(run, here) < 0)
        return -ENOMEM;
    if (!cluster)
        return 0;
    return pl_run_set_cluster(run, cluster) < 0 || pl_run_set_sbatch(run, "clusters", cluster) < 0
               ? -ENOMEM
               : 0;
}

void pl_clusters_stay(const struct pl_run *run)
{
    /* The first array goes, or has gone, where they choose. Without a slurm.conf the commands alone
     * know the cluster. */
    if (!pl_run_cluster(run) && (pl_run_n_submissions(run) == 0 || !pl_slurm_conf_readable()))
        return;
    unsetenv("SLURM_CLUSTERS");
    if (pl_run_cluster(run))
        unsetenv("SBATCH_CLUSTERS");
}
