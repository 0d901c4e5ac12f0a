/* SPDX-License-Identifier: MIT */
/* Where numbers go: to the node daemon (every rank), and on rank 0 into metrics.csv and TensorBoard
 * event files of a folder, and onto the terminal as a line of progress. None of it ends training:
 * what fails is warned of once and given up. */
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

/* dir: made where it is not there; NULL = no files. terminal: where progress is
 * shown if it is one; NULL = nowhere. Both for rank 0 only. -errno where the files cannot be made.
 */
int pl_logger_open(struct pl_logger *logger,
                   struct pl_rank_report *report,
                   const char *dir,
                   FILE *terminal,
                   const struct pl_hparams *hparams,
                   struct pl_error *err);
void pl_logger_close(struct pl_logger *logger, bool success);

/* Values of an optimizer step. `last`: of a whole run; the daemon gets time to read them. */
void pl_logger_metrics(struct pl_logger *logger,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       bool last);

#endif
