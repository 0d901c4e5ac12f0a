/* SPDX-License-Identifier: MIT */
#include "common/run/rank_state.h"
#include "common/base/macros.h"

#include <stddef.h>
#include <string.h>

static const char *const names[] = {
    [PL_RANK_STARTING] = "starting", [PL_RANK_RUNNING] = "running", [PL_RANK_DONE] = "done",
    [PL_RANK_FAILED] = "failed",     [PL_RANK_KILLED] = "killed",   [PL_RANK_LOST] = "lost",
    [PL_RANK_UNKNOWN] = "?",
};

const char *pl_rank_state_name(enum pl_rank_state state)
{
    return names[state];
}

enum pl_rank_state pl_rank_state_parse(const char *name)
{
    for (unsigned i = 0; name && i < PL_RANK_UNKNOWN; i++)
        if (strcmp(name, names[i]) == 0)
            return i;
    return PL_RANK_UNKNOWN;
}

bool pl_rank_state_open(enum pl_rank_state state)
{
    return state == PL_RANK_STARTING || state == PL_RANK_RUNNING;
}
