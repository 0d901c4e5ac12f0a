/* SPDX-License-Identifier: MIT */
#include "common/run/reported.h"

#include <string.h>

#define NAMES_MAX 12

void pl_reported_finish(struct pl_reported *reported)
{
    json_decref(reported->names);
    *reported = (struct pl_reported){0};
}

int pl_reported_add(struct pl_reported *reported,
                    const json_t *metrics,
                    bool done,
                    const char *objective)
{
    json_t *object = (json_t *)(uintptr_t)metrics, *value; /* the iterator takes no const */
    const char *name;

    reported->done |= done;
    if (!reported->names && !(reported->names = json_object()))
        return -ENOMEM;
    json_object_foreach (object, name, value) {
        reported->hit |= objective && strcmp(name, objective) == 0;
        if (json_object_set_new(reported->names, name, json_true()) < 0)
            return -ENOMEM;
    }
    return 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int pl_reported_missing(const struct pl_reported *reported,
                        const char *objective,
                        struct pl_buf *out)
{
    size_t n = json_object_size(reported->names), i = 0;
    _cleanup_free_ const char **names = calloc(n + 1, sizeof(*names));
    const char *name;
    json_t *value;
    int r;

    if (!names)
        return -ENOMEM;
    if (!reported->done || reported->hit || !objective)
        return 0;
    json_object_foreach (reported->names, name, value)
        names[i++] = name;
    qsort(names, n, sizeof(*names), compare);
    r = pl_buf_addf(
        out, "no trial reported %s; %s", objective,
        n ? "reported: "
          : "nothing was reported: --metric NAME=REGEX must match a line of the output");
    for (i = 0; i < PL_MIN(n, (size_t)NAMES_MAX) && r == 0; i++)
        r = pl_buf_addf(out, "%s%s", i ? ", " : "", names[i]);
    if (r == 0 && n > NAMES_MAX)
        r = pl_buf_addf(out, " and %zu more", n - NAMES_MAX);
    return r;
}
