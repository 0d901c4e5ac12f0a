/* SPDX-License-Identifier: MIT */
/* TensorBoard's event files: one file per run, with scalars and hyper-parameters.
 *
 * Format: records of u64 length, u32 masked CRC-32C of the length, the bytes, u32 masked CRC-32C of
 * the bytes, all little-endian (TFRecord). Each holds a tensorflow.Event (event.proto,
 * summary.proto, the hparams plugin's plugin_data.proto). They are encoded here: a dozen fields do
 * not justify a protobuf library. Scalars are written as simple_value, which every TensorBoard
 * reads.
 *
 * Records are buffered until a flush, so that a reader sees complete ones. Not thread safe. */
#ifndef PL_RUNTIME_ENGINE_REPORT_TENSORBOARD_H
#define PL_RUNTIME_ENGINE_REPORT_TENSORBOARD_H

#include "common/base/error.h"

#include <stdbool.h>

struct pl_tensorboard;

struct pl_event_hparam {
    const char *name;
    const char *text; /* NULL: a number */
    double number;
};

/* Creates dir/events.out.tfevents.SECONDS.HOST.PID.N (dir must exist). *ret is freed by
 * pl_tensorboard_close(). -errno of open or write, with the path in err. */
int pl_tensorboard_open(const char *dir, struct pl_tensorboard **ret, struct pl_error *err);

/* Flushes and closes. NULL is ignored. */
void pl_tensorboard_close(struct pl_tensorboard *events);
PL_DEFINE_CLEANUP(struct pl_tensorboard *, pl_tensorboard_close)

/* One point of the curve `tag`; value may be NaN or infinite. -ENOMEM, or the error of a flush. */
int pl_tensorboard_scalar(struct pl_tensorboard *events,
                          const char *tag,
                          double value,
                          int64_t step,
                          struct pl_error *err);

/* Writes the run's hyper-parameters for the HParams dashboard; call once, before the first scalar.
 * Runs of one grid point with different seeds have the same group; group may be NULL. */
int pl_tensorboard_session_start(struct pl_tensorboard *events,
                                 const char *group,
                                 const struct pl_event_hparam *list,
                                 size_t n,
                                 struct pl_error *err);

/* Writes the run's final status; call once. Flushes. */
int pl_tensorboard_session_end(struct pl_tensorboard *events, bool success, struct pl_error *err);

/* Writes the buffer to the file, which is not synced to disk. After an error the file is closed for
 * writing: later calls return the same error. */
int pl_tensorboard_flush(struct pl_tensorboard *events, struct pl_error *err);

#endif
