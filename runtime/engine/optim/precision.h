/* SPDX-License-Identifier: MIT */
/* --precision and --amp-level (doc/semantics.md 4.3; the levels are those of NVIDIA Apex).
 *
 *             32   64   bf16, 16
 *                       O1            O2                        O3
 *   parameters f32 f64  f32           f32 masters, used as 16   rounded to 16 after each step
 *   products   f32 f64  16            16                        16
 *   the rest   f32 f64  widest input  16                        16
 *   norms, softmax, losses
 *              f32 f64  f32           f32                       16
 *
 * 16 has a dynamic loss scale (scaler.h) at every level; bf16 has none. */
#ifndef PL_RUNTIME_ENGINE_OPTIM_PRECISION_H
#define PL_RUNTIME_ENGINE_OPTIM_PRECISION_H

#include "runtime/engine/config/train_options.h"
#include "runtime/engine/optim/scaler.h"
#include "runtime/engine/params/params.h"

/* Values of --precision by enum pl_precision; NULL ends the list. */
extern const char *const pl_precision_names[];

/* Type of the parameters and arenas. */
enum pl_real pl_precision_real(const struct pl_train_options *options);

/* The 16-bit type of autocast; 0: there is none. */
enum plume_dtype pl_precision_half(const struct pl_train_options *options);

/* Sets up a tape before it is first used. */
void pl_precision_tape(const struct pl_train_options *options, struct pl_tape *tape);

void pl_precision_scaler(const struct pl_train_options *options, struct pl_scaler *scaler);

/* Bytes of the device that pl_precision_round() has while it runs. */
size_t pl_precision_round_bytes(const struct pl_train_options *options,
                                const struct pl_params *params);

/* Call once the start values are set and after each optimizer step: level O3 rounds parameters to
 * 16 bits. -ENOMEM. */
int pl_precision_round(const struct pl_train_options *options,
                       const struct pl_kernels *kernels,
                       struct pl_params *params,
                       struct pl_error *err);

#endif
