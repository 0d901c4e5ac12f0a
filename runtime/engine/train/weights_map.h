/* SPDX-License-Identifier: MIT */
/* Maps from the names of tensors in a file to those of a module: 'REGEX=REPLACEMENT[:T]', with a
 * POSIX extended regular expression, up to the first '='. The first match in a name is replaced; \1
 * to \9 are groups. ":T" at the end transposes the matrices whose names match. */
#ifndef PL_RUNTIME_ENGINE_TRAIN_WEIGHTS_MAP_H
#define PL_RUNTIME_ENGINE_TRAIN_WEIGHTS_MAP_H

#include "common/base/error.h"

#include <regex.h>
#include <stdbool.h>

struct pl_weights_map {
    regex_t regex;
    char *replacement;
    bool transpose;
};

/* -EINVAL, -ENOMEM. */
int pl_weights_map_init(struct pl_weights_map *map, const char *text, struct pl_error *err);
void pl_weights_map_finish(struct pl_weights_map *map);

/* Replaces *name, which is malloc()ed, if the map matches it. *transpose is set if the map
 * transposes. -ENOMEM. */
int pl_weights_map_apply(const struct pl_weights_map *map, char **name, bool *transpose);

#endif
