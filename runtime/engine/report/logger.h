/* SPDX-License-Identifier: MIT */
/* Reports numbers: each rank to its node daemon; rank 0 also to metrics.csv and TensorBoard event
 * files in a folder, and to the terminal as a progress line. No failure here ends training: it
 * gives one warning and turns that output off. */
#ifndef PL_RUNTIME_ENGINE_REPORT_LOGGER_H
#define PL_RUNTIME_ENGINE_REPORT_LOGGER_H

#include "runtime/engine/report/progress.h"
#include "runtime/engine/report/rank_report.h"
#include "runtime/engine/util/hparam.h"

struct pl_metrics_csv;
struct pl_tensorboard;

struct pl_logger {
    struct pl_rank_report *report; /* borrowed */
    struct pl_metrics_csv *csv;    /* NULL = none */
    struct pl_tensorboard *events;
    struct pl_progress progress;
};

/* dir: created if missing; NULL = no files. terminal: for the progress line, if it is a terminal;
 * NULL = none. Both for rank 0 only. -errno if the files cannot be made. */
int pl_logger_open(struct pl_logger *logger,
                   struct pl_rank_report *report,
                   const char *dir,
                   FILE *terminal,
                   const struct pl_hparams *hparams,
                   struct pl_error *err);
void pl_logger_close(struct pl_logger *logger, bool success);

/* Values of an optimizer step. `last`: of the run; the daemon gets time to read them. */
void pl_logger_metrics(struct pl_logger *logger,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       bool last);

#endif
