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
    bool given; /* by pl_hparams_set() */
};

struct pl_hparams {
    struct pl_hparam *list;
    size_t n;
};

/* Joins the engine's entries and the module's. `table` may be NULL and must outlive ret. -EINVAL if
 * the module's table is invalid. */
int pl_hparams_init(struct pl_hparams *ret, const struct plume_hparam *table, struct pl_error *err);
void pl_hparams_finish(struct pl_hparams *hparams);

/* Sets "NAME=VALUE". In NAME, '-' and '_' are equal and case does not count, unless a name is
 * equal. -ENOENT lists the known names; -EINVAL and -ERANGE give the limits. */
int pl_hparams_set(struct pl_hparams *hparams, const char *assignment, struct pl_error *err);

/* Returns NULL if the name is unknown. */
const struct pl_hparam *pl_hparams_find(const struct pl_hparams *hparams, const char *name);

/* Returns the value of an entry of the engine, which exists. */
double pl_hparams_value(const struct pl_hparams *hparams, const char *name);

/* Prints one line per entry: name, value, help. */
void pl_hparams_print(const struct pl_hparams *hparams, FILE *out);

#endif
