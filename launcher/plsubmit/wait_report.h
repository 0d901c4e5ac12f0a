/* SPDX-License-Identifier: MIT */
/* The output of --wait: a live line on a terminal, and at the end why trials are not done. */
#ifndef PL_LAUNCHER_PLSUBMIT_WAIT_REPORT_H
#define PL_LAUNCHER_PLSUBMIT_WAIT_REPORT_H

#include "common/base/buf.h"
#include "launcher/plsubmit/wait.h"

/* Waits as pl_wait_run() does, with the line on stderr if that is a terminal. */
int pl_wait_show(const struct pl_run *run, struct pl_wait_result *ret, struct pl_error *err);

/* Appends a line for each of the first trials that are not done, and one that counts the rest:
 * "trial 2 failed, exit code 3, rank 3 on n02: plstat why demo-abc234/2", with the words of plstat
 * in the folder bin_dir, so that both agree. Trials with the same cause are one line. Foreign text
 * is not escaped. Errors of pl_change_ask(). other  trials that are not done as far as the caller
 * knows: a line says if plstat knows fewer */
int pl_wait_causes(const struct pl_run *run,
                   const char *bin_dir,
                   unsigned other,
                   struct pl_buf *out,
                   struct pl_error *err);

#endif
