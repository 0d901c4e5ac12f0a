/* SPDX-License-Identifier: MIT */
/* The nodes that have not come, by their names. */
#include "common/base/hostlist.h"
#include "runtime/plrund/hub/hub_private.h"

#include <string.h>

#define NAMED_MAX 8

/* The name of a node that may never have said one; NULL: not known. Caller frees. */
static char *find_name(const struct pl_hub *hub, unsigned node_id)
{
    const char *list = hub->step->nodelist;
    _cleanup_free_ char *more = NULL;
    char *name = NULL;

    if (hub->nodes[node_id].name)
        return strdup(hub->nodes[node_id].name);
    /* A list of another length is none of this step's. */
    if (pl_hostlist_nth(list, hub->step->nnodes, &more) != -ENOENT ||
        pl_hostlist_nth(list, hub->step->nnodes - 1, &more) < 0 ||
        pl_hostlist_nth(list, node_id, &name) < 0)
        return NULL;
    return name;
}

unsigned pl_hub_missing(const struct pl_hub *hub, struct pl_buf *ret, char **ret_first)
{
    unsigned n = 0;

    for (unsigned i = 0; i < hub->step->nnodes; i++) {
        _cleanup_free_ char *name = NULL;

        if ((hub->nodes[i].joined && !hub->nodes[i].lost) || n++ >= NAMED_MAX)
            continue;
        name = find_name(hub, i);
        if (name)
            pl_buf_addf(ret, "%s%s", n > 1 ? ", " : "", name);
        else
            pl_buf_addf(ret, "%snode %u of 0-%u", n > 1 ? ", " : "", i, hub->step->nnodes - 1);
        if (n == 1)
            *ret_first = PL_TAKE(name);
    }
    if (n > NAMED_MAX)
        pl_buf_addf(ret, " and %u more", n - NAMED_MAX);
    return n;
}
