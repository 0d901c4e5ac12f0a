/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/rank_facts.h"
#include "common/proto/json.h"

static int print(struct pl_plstat *ps, const json_t *doc, const char *key, const char *so)
{
    const char *first = NULL;
    unsigned n = 0;
    const json_t *rank;
    size_t i;

    json_array_foreach (json_object_get(doc, "ranks"), i, rank) {
        const char *text = pl_json_string(json_object_get(rank, "facts"), key);

        if (text && n++ == 0)
            first = text;
    }
    if (n > 1)
        return pl_plstat_line(ps, PL_TERM_YELLOW, "! %s; so do %s of %u more node%s", first, so,
                              n - 1, n == 2 ? "" : "s");
    return n ? pl_plstat_line(ps, PL_TERM_YELLOW, "! %s", first) : 0;
}

int pl_rank_facts_print(struct pl_plstat *ps, const json_t *doc)
{
    int r = print(ps, doc, "changed_env", "ranks");

    if (r == 0)
        r = print(ps, doc, "output_cut", "files");
    return r < 0 ? r : print(ps, doc, "slurm_file_cut", "those");
}
