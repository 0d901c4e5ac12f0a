/* SPDX-License-Identifier: MIT */
/* Metrics as comma-separated values (RFC 4180): one row per report, first column `step`, one column
 * per name. A new name gets a column at the end: the file is rewritten atomically, with empty cells
 * in older rows. Existing rows stay; a resumed run appends. Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_REPORT_METRICS_CSV_H
#define PL_RUNTIME_ENGINE_REPORT_METRICS_CSV_H

#include "common/base/error.h"

struct pl_metrics_csv;

#define PL_CSV_COLUMNS_MAX 1024
#define PL_CSV_BYTES_MAX ((size_t)256 * 1024 * 1024)

/* Opens path, which may be an existing metrics file. *ret is freed by pl_metrics_csv_close().
 * -EINVAL if the file is something else, -errno. */
int pl_metrics_csv_open(const char *path, struct pl_metrics_csv **ret, struct pl_error *err);
/* Has the rows written to the disk: a network file system may report only then that it cannot. */
int pl_metrics_csv_sync(const struct pl_metrics_csv *csv, struct pl_error *err);
void pl_metrics_csv_close(struct pl_metrics_csv *csv);
PL_DEFINE_CLEANUP(struct pl_metrics_csv *, pl_metrics_csv_close)

/* Appends one row by one write. Names have no commas, quotes or line ends (pl_name_valid()).
 * Numbers have 9 digits (exact for f32); NaN is "nan". -EINVAL for a bad name, -E2BIG over the
 * limits, -errno. */
int pl_metrics_csv_row(struct pl_metrics_csv *csv,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       struct pl_error *err);

#endif
