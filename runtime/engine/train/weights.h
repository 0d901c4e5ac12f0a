/* SPDX-License-Identifier: MIT */
/* Initial parameters and buffers from files: checkpoints, safetensors files of any program, and
 * the index of several files ("weight_map": {NAME: FILE}, as Hugging Face writes it). */
#ifndef PL_RUNTIME_ENGINE_TRAIN_WEIGHTS_H
#define PL_RUNTIME_ENGINE_TRAIN_WEIGHTS_H

#include "runtime/engine/config/train_options.h"
#include "runtime/engine/params/params.h"

/* Sets the values whose names, mapped by options->weights_maps, are those of parameters and
 * buffers. Real types are converted. The others keep their initial values. *ret_report (caller
 * frees) is NULL if everything fits, else it tells in one line what was not found, not used, or of
 * another shape. -EINVAL if nothing fits, or with options->weights_strict if something does not;
 * then nothing is changed. -ENOENT. A checkpoint with averages (ema.h) gives these, unless
 * options->plain_weights is set; *ret_averaged is true then. */
int pl_weights_load(struct pl_params *params,
                    const struct pl_train_options *options,
                    bool *ret_averaged,
                    char **ret_report,
                    struct pl_error *err);

/* Checks the form of a map, 'REGEX=REPLACEMENT[:T]'. -EINVAL. */
int pl_weights_map_check(const char *map, struct pl_error *err);

#endif
