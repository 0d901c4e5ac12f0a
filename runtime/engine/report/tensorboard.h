/* SPDX-License-Identifier: MIT */
/* TensorBoard's event files: one file a run, scalars and the run's hyper-parameters.
 *
 * Format: records of u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C of
 * the bytes, all little-endian (TFRecord); each holds a tensorflow.Event (event.proto,
 * summary.proto, the hparams plugin's plugin_data.proto), encoded here by hand: a dozen fields do
 * not pay for a protobuf library. Scalars are written as simple_value, which every TensorBoard
 * reads.
 *
 * Records are collected and written when flushed, so that a reader in between sees whole ones. Not
 * thread safe. */
#ifndef PL_RUNTIME_ENGINE_REPORT_TENSORBOARD_H
#define PL_RUNTIME_ENGINE_REPORT_TENSORBOARD_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_tensorboard;

struct pl_event_hparam {
    const char *name;
    const char *text; /* NULL: it is a number */
    double number;
};

/* Makes dir/events.out.tfevents.SECONDS.HOST.PID.N (dir must be there). *ret is freed by
 * pl_tensorboard_close(). -errno of open or write, with the path in err. */
int pl_tensorboard_open(const char *dir, struct pl_tensorboard **ret, struct pl_error *err);

/* Writes what is left and closes; NULL is fine. */
void pl_tensorboard_close(struct pl_tensorboard *events);
PL_DEFINE_CLEANUP(struct pl_tensorboard *, pl_tensorboard_close)

/* One point of the curve `tag`; value may be NaN or infinite. -ENOMEM, or the error of a flush. */
int pl_tensorboard_scalar(struct pl_tensorboard *events,
                          const char *tag,
                          double value,
                          int64_t step,
                          struct pl_error *err);

/* The run's hyper-parameters for the HParams dashboard, once, before the first scalar. Runs of one
 * point of a grid with other seeds have the same group; group may be NULL. */
int pl_tensorboard_session_start(struct pl_tensorboard *events,
                                 const char *group,
                                 const struct pl_event_hparam *list,
                                 size_t n,
                                 struct pl_error *err);

/* How it ended, once; flushes. */
int pl_tensorboard_session_end(struct pl_tensorboard *events, bool success, struct pl_error *err);

/* Hands what is collected to the kernel; the file is not synced to disk. After an error the file
 * is given up: later calls do nothing and return the same code. */
int pl_tensorboard_flush(struct pl_tensorboard *events, struct pl_error *err);

#endif
