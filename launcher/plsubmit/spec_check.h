/* SPDX-License-Identifier: MIT */
/* Checks of one value of an option, for the option table (spec.c). Each returns 0 or -EINVAL,
 * -ERANGE, -ENOMEM; the text names the value, not the option. */
#ifndef PL_LAUNCHER_PLSUBMIT_SPEC_CHECK_H
#define PL_LAUNCHER_PLSUBMIT_SPEC_CHECK_H

#include "common/base/error.h"

int pl_spec_check_text(const char *value, struct pl_error *err);
int pl_spec_check_gpus(const char *value, struct pl_error *err);
int pl_spec_check_nodes(const char *value, struct pl_error *err);
int pl_spec_check_objective(const char *value, struct pl_error *err);
int pl_spec_check_count(const char *value, struct pl_error *err);
int pl_spec_check_trials(const char *value, struct pl_error *err);
int pl_spec_check_max_fail(const char *value, struct pl_error *err);
int pl_spec_check_launch(const char *value, struct pl_error *err);
int pl_spec_check_hparam(const char *value, struct pl_error *err);
int pl_spec_check_local(const char *value, struct pl_error *err);
int pl_spec_check_requeue_on(const char *value, struct pl_error *err);
int pl_spec_check_output_ranks(const char *value, struct pl_error *err);
int pl_spec_check_on_hang(const char *value, struct pl_error *err);
int pl_spec_check_max_requeues(const char *value, struct pl_error *err);
int pl_spec_check_signal(const char *value, struct pl_error *err);
int pl_spec_check_gres(const char *value, struct pl_error *err);
int pl_spec_check_save_grace(const char *value, struct pl_error *err);
int pl_spec_check_seed(const char *value, struct pl_error *err);
int pl_spec_check_mem(const char *value, struct pl_error *err);
int pl_spec_check_time(const char *value, struct pl_error *err);
int pl_spec_check_port_range(const char *value, struct pl_error *err);
int pl_spec_check_module(const char *value, struct pl_error *err);
int pl_spec_check_literal(const char *value, struct pl_error *err);
int pl_spec_check_sbatch(const char *value, struct pl_error *err);
int pl_spec_check_srun(const char *value, struct pl_error *err);
int pl_spec_check_env(const char *value, struct pl_error *err);

#endif
