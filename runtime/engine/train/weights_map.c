/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/weights_map.h"
#include "common/base/buf.h"
#include "runtime/engine/train/weights.h"

#include <ctype.h>
#include <string.h>

#define GROUPS 10

/* Groups in the replacement must exist in the expression. */
static int check_groups(const struct pl_weights_map *map, const char *text, struct pl_error *err)
{
    for (const char *p = map->replacement; (p = strchr(p, '\\')); p += 2)
        if (p[1] != '\\' &&
            (!isdigit((unsigned char)p[1]) || (size_t)(p[1] - '0') > map->regex.re_nsub))
            return pl_error_set(err, -EINVAL,
                                "'%s': '\\%c' is not a group of the regular expression, which has "
                                "%zu",
                                text, p[1] ? p[1] : '0', map->regex.re_nsub);
    return 0;
}

int pl_weights_map_init(struct pl_weights_map *map, const char *text, struct pl_error *err)
{
    const char *equals = strchr(text, '=');
    _cleanup_free_ char *regex = equals ? strndup(text, (size_t)(equals - text)) : NULL;
    size_t len;
    int r;

    *map = (struct pl_weights_map){0};
    if (!equals || equals == text)
        return pl_error_set(err, -EINVAL, "'%s' is not REGEX=REPLACEMENT[:T]", text);
    map->replacement = strdup(equals + 1);
    if (!regex || !map->replacement) {
        free(map->replacement);
        return pl_error_nomem(err);
    }
    len = strlen(map->replacement);
    map->transpose = len >= 2 && strcmp(map->replacement + len - 2, ":T") == 0;
    if (map->transpose)
        map->replacement[len - 2] = '\0';
    r = regcomp(&map->regex, regex, REG_EXTENDED);
    if (r != 0) {
        char why[128];

        regerror(r, &map->regex, why, sizeof(why));
        free(map->replacement);
        return pl_error_set(err, -EINVAL, "'%s' is not a regular expression: %s", regex, why);
    }
    r = check_groups(map, text, err);
    if (r < 0)
        pl_weights_map_finish(map);
    return r;
}

void pl_weights_map_finish(struct pl_weights_map *map)
{
    regfree(&map->regex);
    free(map->replacement);
    *map = (struct pl_weights_map){0};
}

int pl_weights_map_apply(const struct pl_weights_map *map, char **name, bool *transpose)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    const char *from = *name;
    regmatch_t m[GROUPS];
    char *new_name;
    int r;

    if (regexec(&map->regex, from, GROUPS, m, 0) != 0)
        return 0;
    *transpose ^= map->transpose; /* the transposed matrix of the map before may be turned back */
    r = pl_buf_add(&b, from, (size_t)m[0].rm_so);
    for (const char *p = map->replacement; *p && r == 0; p++) {
        if (*p == '\\' && isdigit((unsigned char)*++p)) {
            const regmatch_t *group = &m[*p - '0'];

            if (group->rm_so >= 0)
                r = pl_buf_add(&b, from + group->rm_so, (size_t)(group->rm_eo - group->rm_so));
        } else {
            r = pl_buf_addc(&b, *p);
        }
    }
    if (r == 0)
        r = pl_buf_adds(&b, from + m[0].rm_eo);
    if (r < 0)
        return r;
    new_name = pl_buf_take(&b);
    if (!new_name)
        return -ENOMEM;
    free(*name);
    *name = new_name;
    return 0;
}

int pl_weights_map_check(const char *text, struct pl_error *err)
{
    struct pl_weights_map map;
    int r = pl_weights_map_init(&map, text, err);

    if (r == 0)
        pl_weights_map_finish(&map);
    return r;
}
