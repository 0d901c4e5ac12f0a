/* SPDX-License-Identifier: MIT */
#include "common/run/output_ranks.h"
#include "common/run/run_tasks.h"

#include <string.h>

int pl_output_ranks_check(const char *text, int64_t n, struct pl_error *err)
{
    if (strcmp(text, PL_OUTPUT_RANKS_ALL) == 0)
        return 0;
    if (pl_tasks_check(text, INT64_MAX, NULL) < 0)
        return pl_error_set(err, -EINVAL,
                            "'%.200s' is neither 'all' nor a list of ranks like 0,4-7", text);
    if (n > 0 && pl_tasks_check(text, n, NULL) < 0)
        return pl_error_set(err, -EINVAL,
                            "'%.200s' has a rank that is not there: the ranks are 0 to %lld", text,
                            (long long)n - 1);
    return 0;
}

bool pl_output_ranks_contain(const char *text, unsigned rank)
{
    return strcmp(text, PL_OUTPUT_RANKS_ALL) == 0 || pl_tasks_contain(text, rank);
}
