/* SPDX-License-Identifier: MIT */
/* The first error of a device. Work on a device is asynchronous and kernels return nothing: a call
 * that fails records its error here, and the next synchronisation returns it with the call's name.
 * Later errors are consequences and are not kept. Thread safe. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_CUDA_STATUS_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_CUDA_STATUS_H

#include "common/base/error.h"

#include <stdatomic.h>
#include <stdbool.h>

/* CUDA's words of `code`, a cudaError_t, and for what a machine's set-up or its hardware causes
 * also what to do: a static text. */
const char *pl_cuda_words(int code);

/* Zeroed memory means no error. */
struct pl_cuda_status {
    atomic_bool taken, failed;
    const char *call, *why; /* static texts */

    atomic_bool held; /* errors belong to a capture (cuda_graph.h), not to the device */
    const char *held_call, *held_why; /* the first of these; NULL: none */
};

/* Between hold and release errors are recorded separately and say nothing about the device. Release
 * returns true if one occurred, with the texts of the first. For the thread that uses the device.
 */
void pl_cuda_status_hold(struct pl_cuda_status *status);
bool pl_cuda_status_is_held(const struct pl_cuda_status *status);
bool pl_cuda_status_release(struct pl_cuda_status *status,
                            const char **ret_call,
                            const char **ret_why);

/* Records that `call` failed because of `why`; both are static texts. Returns -EIO. */
int pl_cuda_fail(struct pl_cuda_status *status, const char *call, const char *why);

/* `code` is a cudaError_t: returns 0, or records its text and returns -EIO. Clears the runtime's
 * last error of this thread, so that a later call does not report it as its own. */
int pl_cuda_check(struct pl_cuda_status *status, const char *call, int code);

/* Records the error of this thread's launches (cudaGetLastError) with the name `call`. */
int pl_cuda_check_launches(struct pl_cuda_status *status, const char *call);

/* Returns 0, or -EIO with "CALL failed on DEVICE: WHY". */
int pl_cuda_report(const struct pl_cuda_status *status, const char *device, struct pl_error *err);

/* Makes the error of one call without recording it: "CALL failed on DEVICE: WHY". Returns -EIO. */
int pl_cuda_error(struct pl_error *err, const char *device, const char *call, int code);

#endif
