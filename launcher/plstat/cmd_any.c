/* SPDX-License-Identifier: MIT */
#include "common/base/macros.h"
#include "launcher/plstat/find.h"
#include "launcher/plstat/plstat.h"

int pl_cmd_any(struct pl_plstat *ps, const char **ret_name, struct pl_error *err)
{
    _cleanup_(pl_target_finish) struct pl_target t = {.trial = -1, .job = -1, .task = -1};
    int r = pl_target_find(ps->word, &t, err);
    bool sweep = r == 0 && t.run && t.trial < 0 && pl_run_n_trials(t.run) > 1;

    if (r < 0)
        return r;
    *ret_name = sweep ? "sweep" : "show";
    return sweep ? pl_cmd_sweep(ps, err) : pl_cmd_show(ps, err);
}
