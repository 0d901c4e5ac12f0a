/* SPDX-License-Identifier: MIT */
/* Names that PyTorch Lightning and its examples have for options of pltrain. */
#ifndef PL_RUNTIME_PLTRAIN_PLTRAIN_FOREIGN_H
#define PL_RUNTIME_PLTRAIN_PLTRAIN_FOREIGN_H

#include "common/base/options.h"

/* Setters of options; ctx is a struct pl_pltrain. */
/* "--use-amp[=True|False]": --precision 16. */
int pl_pltrain_set_use_amp(void *, const struct pl_option *, const char *, struct pl_error *);
/* "--distributed-backend ddp": --strategy. "None" is auto. */
int pl_pltrain_set_backend(void *, const struct pl_option *, const char *, struct pl_error *);

/* For struct pl_command: answers options of other programs that pltrain does not have. -EINVAL, or
 * 0 if the word is none of them. */
int pl_pltrain_explain(const char *word, struct pl_error *err);

/* For struct pl_command: answers values that PyTorch and its relatives have for what an option of
 * pltrain does. */
void pl_pltrain_explain_value(const char *name, const char *value, struct pl_error *err);

/* The same as pl_pltrain_explain() for "NAME" or "NAME=VALUE", an unknown hyper-parameter. */
int pl_pltrain_explain_hparam(const char *assignment, struct pl_error *err);

#endif
