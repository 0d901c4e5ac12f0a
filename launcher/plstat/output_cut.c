/* SPDX-License-Identifier: MIT */
#include "launcher/plstat/output_cut.h"
#include "common/proto/json.h"

int pl_output_cut_print(struct pl_plstat *ps, const json_t *doc)
{
    const char *first = NULL;
    unsigned n = 0;
    const json_t *rank;
    size_t i;

    /* Each node's daemon tells of one file, the first. */
    json_array_foreach (json_object_get(doc, "ranks"), i, rank) {
        const char *text = pl_json_string(json_object_get(rank, "facts"), "output_cut");

        if (text && n++ == 0)
            first = text;
    }
    if (n > 1)
        return pl_plstat_line(ps, PL_TERM_YELLOW, "! %s; so do files of %u more node%s", first,
                              n - 1, n == 2 ? "" : "s");
    return n ? pl_plstat_line(ps, PL_TERM_YELLOW, "! %s", first) : 0;
}
