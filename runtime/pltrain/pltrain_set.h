/* SPDX-License-Identifier: MIT */
/* The setters of pltrain's options whose value is more than one member. */
#ifndef PL_RUNTIME_PLTRAIN_PLTRAIN_SET_H
#define PL_RUNTIME_PLTRAIN_PLTRAIN_SET_H

#include "common/base/options.h"

struct pl_pltrain;

/* Adds the hyper-parameter NAME=VALUE. pl_pltrain_init() has counted its words. -ENOMEM. */
int pl_pltrain_add_hparam(struct pl_pltrain *p,
                          const char *name,
                          const char *value,
                          struct pl_error *err);

/* For struct pl_option: ctx is a struct pl_pltrain. A value that is wrong is -EINVAL or -ERANGE. */
int pl_pltrain_set_hparam(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_epochs(void *, const struct pl_option *, const char *, struct pl_error *);
/* A hyper-parameter with the name of the option, for those that each module has. */
int pl_pltrain_set_common_hparam(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_weights_map(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_optimizer(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_max_time(void *, const struct pl_option *, const char *, struct pl_error *);
/* min or max, into a bool that is true for max. */
int pl_pltrain_set_mode(void *, const struct pl_option *, const char *, struct pl_error *);
/* "N,EPOCH:N,...": N, and another N from each EPOCH on. */
int pl_pltrain_set_accumulate(void *, const struct pl_option *, const char *, struct pl_error *);
/* A number of batches or, with a decimal point, a share of them. */
int pl_pltrain_set_limit(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_val_check(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_fast_dev_run(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_clip(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_clip_by(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_profile(void *, const struct pl_option *, const char *, struct pl_error *);
/* "auto", a number, or a list of devices; "3," and "[3]" are the list of device 3. */
int pl_pltrain_set_devices(void *, const struct pl_option *, const char *, struct pl_error *);
/* --accelerator gpu --devices K. */
int pl_pltrain_set_gpus(void *, const struct pl_option *, const char *, struct pl_error *);
/* As in Lightning: the first N cores, or one core by its number from 1 on, in brackets. */
int pl_pltrain_set_tpu_cores(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_comm(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_accelerator(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_pjrt_plugin(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_shard(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_shard_group(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_tensor_parallel(void *,
                                   const struct pl_option *,
                                   const char *,
                                   struct pl_error *);
int pl_pltrain_set_stages(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_microbatches(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_balance(void *, const struct pl_option *, const char *, struct pl_error *);
int pl_pltrain_set_schedule(void *, const struct pl_option *, const char *, struct pl_error *);
/* One of --validate, --test and --predict: target.key is its enum pl_run_kind. */
int pl_pltrain_set_run(void *, const struct pl_option *, const char *, struct pl_error *);

#endif
