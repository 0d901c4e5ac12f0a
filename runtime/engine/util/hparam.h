/* SPDX-License-Identifier: MIT */
/* Hyper-parameters: the engine's own and the module's, by name, as numbers with limits. */
#ifndef PL_RUNTIME_ENGINE_UTIL_HPARAM_H
#define PL_RUNTIME_ENGINE_UTIL_HPARAM_H

#include "common/base/error.h"
#include "plume/module.h"

#include <stdbool.h>

struct pl_hparam {
    const char *name, *help; /* borrowed */
    double value, min, max;
    bool integer;
};

struct pl_hparams {
    struct pl_hparam *list;
    size_t n;
};

/* The engine's entries with the module's on top; `table` may be NULL and must outlive ret.
 * -EINVAL where the module's table is wrong. */
int pl_hparams_init(struct pl_hparams *ret, const struct plume_hparam *table, struct pl_error *err);
void pl_hparams_finish(struct pl_hparams *hparams);

/* "NAME=VALUE". -ENOENT names the known ones, -EINVAL or -ERANGE the limits. */
int pl_hparams_set(struct pl_hparams *hparams, const char *assignment, struct pl_error *err);

/* NULL where there is none of that name. */
const struct pl_hparam *pl_hparams_find(const struct pl_hparams *hparams, const char *name);

/* Of an entry that the engine has. */
double pl_hparams_value(const struct pl_hparams *hparams, const char *name);

/* One line each: name, value, what it is. */
void pl_hparams_print(const struct pl_hparams *hparams, FILE *out);

#endif
