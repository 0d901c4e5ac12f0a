/* SPDX-License-Identifier: MIT */
/* Metrics as comma-separated values (RFC 4180): a row a report, first column `step`, a column a
 * name. A name that comes up later gets a new column at the end: the file is then written anew,
 * whole or not at all, with empty cells in the older rows. What a file has already stays (a resumed
 * run goes on in it). Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_REPORT_METRICS_CSV_H
#define PL_RUNTIME_ENGINE_REPORT_METRICS_CSV_H

#include "common/base/error.h"

struct pl_metrics_csv;

#define PL_CSV_COLUMNS_MAX 1024
#define PL_CSV_BYTES_MAX ((size_t)256 * 1024 * 1024)

/* Opens path, which may be there already if it is such a file. *ret is freed by
 * pl_metrics_csv_close(). -EINVAL where it is something else, -errno. */
int pl_metrics_csv_open(const char *path, struct pl_metrics_csv **ret, struct pl_error *err);
void pl_metrics_csv_close(struct pl_metrics_csv *csv);
PL_DEFINE_CLEANUP(struct pl_metrics_csv *, pl_metrics_csv_close)

/* Appends one row by one write. Names are without commas, quotes and line ends, as
 * pl_name_valid() has it. Numbers are written with 9 digits (f32 exactly); NaN as "nan". -EINVAL
 * for a bad name, -E2BIG past the limits, -errno. */
int pl_metrics_csv_row(struct pl_metrics_csv *csv,
                       int64_t step,
                       const char *const *names,
                       const double *values,
                       size_t n,
                       struct pl_error *err);

#endif
