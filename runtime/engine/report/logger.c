/* SPDX-License-Identifier: MIT */
#include "runtime/engine/report/logger.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/report/metrics_csv.h"
#include "runtime/engine/report/tensorboard.h"

#include <langinfo.h>
#include <string.h>

static int
start_session(struct pl_tensorboard *events, const struct pl_hparams *hparams, struct pl_error *err)
{
    _cleanup_free_ struct pl_event_hparam *list = calloc(hparams->n + 1, sizeof(*list));

    if (!list)
        return pl_error_nomem(err);
    for (size_t i = 0; i < hparams->n; i++)
        list[i] = (struct pl_event_hparam){.name = hparams->list[i].name,
                                           .number = hparams->list[i].value};
    return pl_tensorboard_session_start(events, NULL, list, hparams->n, err);
}

static int open_files(struct pl_logger *logger,
                      const char *dir,
                      const struct pl_hparams *hparams,
                      struct pl_error *err)
{
    _cleanup_free_ char *path = pl_path_join(dir, "metrics.csv");
    int r;

    if (!path)
        return pl_error_nomem(err);
    r = pl_mkdir_p(dir, 0777, err);
    if (r == 0)
        r = pl_metrics_csv_open(path, &logger->csv, err);
    if (r == 0)
        r = pl_tensorboard_open(dir, &logger->events, err);
    return r < 0 ? r : start_session(logger->events, hparams, err);
}

int pl_logger_open(struct pl_logger *logger,
                   struct pl_rank_report *report,
                   const char *dir,
                   FILE *terminal,
                   const struct pl_hparams *hparams,
                   struct pl_error *err)
{
    int r = 0;

    *logger = (struct pl_logger){.report = report};
    pl_progress_init(&logger->progress, terminal, strcmp(nl_langinfo(CODESET), "UTF-8") == 0);
    if (dir)
        r = open_files(logger, dir, hparams, err);
    if (r < 0)
        pl_logger_close(logger, false);
    return r;
}

void pl_logger_close(struct pl_logger *logger, bool success)
{
    struct pl_error err = {0};

    pl_progress_clear(&logger->progress);
    if (logger->csv && pl_metrics_csv_sync(logger->csv, &err) < 0)
        pl_log_warn("train", "metrics.csv may lack rows: %s", pl_error_text(&err));
    if (logger->events && pl_tensorboard_session_end(logger->events, success, &err) < 0)
        pl_log_warn("train", "the event files may lack the run's end: %s", pl_error_text(&err));
    pl_tensorboard_close(logger->events);
    pl_metrics_csv_close(logger->csv);
    *logger = (struct pl_logger){0};
}

static void give_up_csv(struct pl_logger *logger, const struct pl_error *err)
{
    pl_log_warn("train", "metrics.csv is not written any more: %s", pl_error_text(err));
    pl_metrics_csv_close(logger->csv);
    logger->csv = NULL;
}

static int add_events(struct pl_logger *logger,
                      int64_t step,
                      const char *const *names,
                      const double *values,
                      size_t n,
                      struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++)
        r = pl_tensorboard_scalar(logger->events, names[i], values[i], step, err);
    return r == 0 ? pl_tensorboard_flush(logger->events, err) : r;
}

void pl_logger_metrics(struct pl_logger *logger,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       bool last)
{
    struct pl_error err = {0};

    (last ? pl_rank_report_final : pl_rank_report_metrics)(logger->report, step, names, values, n);
    if (logger->csv && pl_metrics_csv_row(logger->csv, step, names, values, n, &err) < 0)
        give_up_csv(logger, &err);
    if (logger->events && add_events(logger, step, names, values, n, &err) < 0) {
        pl_log_warn("train", "event files are not written any more: %s", pl_error_text(&err));
        pl_tensorboard_close(logger->events);
        logger->events = NULL;
    }
}
