/* SPDX-License-Identifier: MIT */
#include "common/run/on_hang.h"
#include "common/base/env.h"
#include "common/base/near.h"
#include "common/proto/json.h"

#include <string.h>

static const char *const names[] = {
    [PL_ON_HANG_WARN] = "warn",
    [PL_ON_HANG_KILL] = "kill",
    [PL_ON_HANG_REQUEUE] = "requeue",
};

int pl_on_hang_parse(const char *text, enum pl_on_hang *ret, struct pl_error *err)
{
    struct pl_near near = {.word = text};

    for (unsigned i = 0; i < PL_COUNT(names); i++) {
        pl_near_offer(&near, names[i]);
        if (strcmp(text, names[i]) == 0) {
            *ret = i;
            return 0;
        }
    }
    if (near.best)
        return pl_error_set(err, -EINVAL, "'%s' is unknown: did you mean %s?", text, near.best);
    return pl_error_set(err, -EINVAL, "'%s' is not warn, kill or requeue", text);
}

int pl_on_hang_parse_step(const char *text, enum pl_on_hang *ret, struct pl_error *err)
{
    enum pl_on_hang policy;
    int r = pl_on_hang_parse(text, &policy, err);

    if (r == -EINVAL)
        return pl_error_set(err, r, "'%s' is neither warn nor kill", text);
    if (r == 0 && policy == PL_ON_HANG_REQUEUE)
        return pl_error_set(err, -EINVAL,
                            "'requeue' is for trials of plsubmit, whose job starts again: write "
                            "kill");
    if (r == 0)
        *ret = policy;
    return r;
}

int pl_on_hang_of_run(const struct pl_run *run, enum pl_on_hang *ret, struct pl_error *err)
{
    const char *given = pl_env_text(PL_ENV_PLUME_ON_HANG);
    const char *option =
        run ? pl_json_string(json_object_get(pl_run_options(run), "on-hang"), "value") : NULL;
    int r;

    *ret = PL_ON_HANG_WARN;
    if (!given)
        return option && pl_on_hang_parse(option, ret, NULL) < 0 ? (*ret = PL_ON_HANG_WARN, 0) : 0;
    r = pl_on_hang_parse(given, ret, err);
    return r < 0 ? pl_error_wrap(err, r, "PLUME_ON_HANG") : 0;
}
