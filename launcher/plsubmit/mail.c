/* SPDX-License-Identifier: MIT */
#include "launcher/plsubmit/mail.h"
#include "common/base/fs.h"
#include "common/base/near.h"

#include <string.h>

/* Of sbatch(1). The first is no event: it says which jobs mail. */
static const char *const types[] = {"ARRAY_TASKS",   "NONE",          "BEGIN",
                                    "END",           "FAIL",          "REQUEUE",
                                    "ALL",           "TIME_LIMIT_90", "TIME_LIMIT_80",
                                    "TIME_LIMIT_50", "TIME_LIMIT",    "INVALID_DEPEND",
                                    "STAGE_OUT"};

int pl_mail_check(const char *value, struct pl_error *err)
{
    bool any = false;

    for (const char *p = value; *p;) {
        size_t len = strcspn(p, ","), i = 0;
        _cleanup_free_ char *word = strndup(p, len);
        struct pl_near near = {.word = word};

        if (!word)
            return pl_error_nomem(err);
        for (; i < PL_COUNT(types) && strcasecmp(types[i], word) != 0; i++)
            if (i > 1) /* with NONE no mail would come */
                pl_near_offer(&near, types[i]);
        if (i == PL_COUNT(types))
            return near.best
                       ? pl_error_set(err, -EINVAL, "'%.100s' is not an event: did you mean %s?",
                                      word, near.best)
                       : pl_error_set(
                             err, -EINVAL,
                             "'%.100s' is not an event of Slurm's mails: BEGIN, END, FAIL, "
                             "REQUEUE, ALL, TIME_LIMIT, TIME_LIMIT_50, TIME_LIMIT_80, "
                             "TIME_LIMIT_90, INVALID_DEPEND, STAGE_OUT, NONE",
                             word);
        any |= i > 0;
        p += len + (p[len] == ',');
    }
    return any ? 0
               : pl_error_set(err, -EINVAL, "'%.100s' has no event, such as END or FAIL", value);
}
