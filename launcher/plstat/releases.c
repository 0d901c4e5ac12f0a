/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/releases.h"
#include "common/proto/json.h"

#include <string.h>

static const char *node_name(const json_t *node)
{
    const char *name = pl_json_string(node, "node");

    return name ? name : "?";
}

static int compare(struct pl_plstat *ps, const json_t *nodes, const char *key, const char *what)
{
    const json_t *first = NULL, *node;
    size_t i;

    json_array_foreach (nodes, i, node) {
        const char *release = pl_json_string(node, key);

        if (!release)
            continue;
        if (!first)
            first = node;
        else if (strcmp(release, pl_json_string(first, key)) != 0)
            return pl_plstat_line(ps, PL_TERM_YELLOW, "! %s differs: %s on %s, %s on %s", what,
                                  pl_json_string(first, key), node_name(first), release,
                                  node_name(node));
    }
    return 0;
}

int pl_releases_print(struct pl_plstat *ps, const json_t *doc)
{
    const json_t *nodes = json_object_get(doc, "nodes");
    int r = compare(ps, nodes, "driver", "NVIDIA's driver");

    if (r == 0)
        r = compare(ps, nodes, "nccl", "NCCL of the system");
    return r == 0 ? compare(ps, nodes, "mpi", "MPI") : r;
}
