/* SPDX-License-Identifier: MIT */
/* The first failure of a device, kept. Work on a device is asynchronous and kernels return nothing:
 * a call that fails says so here, and the next synchronisation reports it with the call's name.
 * What fails after the first one is its consequence and is not kept. Thread safe. */
#ifndef PL_RUNTIME_ENGINE_CUDA_UTIL_CUDA_STATUS_H
#define PL_RUNTIME_ENGINE_CUDA_UTIL_CUDA_STATUS_H

#include "common/base/error.h"

#include <stdatomic.h>
#include <stdbool.h>

/* All zero: nothing has failed. */
struct pl_cuda_status {
    atomic_bool taken, failed;
    const char *call, *why; /* static texts */

    atomic_bool held; /* what fails is not the device's failure but a capture's (graph.h) */
    const char *held_call, *held_why; /* the first such; NULL: none */
};

/* From hold to release failures are kept apart, and tell nothing about the device. Release is true
 * where there was one, with the first one's texts. For the one thread that asks things of the
 * device. */
void pl_cuda_status_hold(struct pl_cuda_status *status);
bool pl_cuda_status_is_held(const struct pl_cuda_status *status);
bool pl_cuda_status_release(struct pl_cuda_status *status,
                            const char **ret_call,
                            const char **ret_why);

/* Keeps that `call` failed because of `why`, both static texts. Returns -EIO. */
int pl_cuda_fail(struct pl_cuda_status *status, const char *call, const char *why);

/* `code` is a cudaError_t: 0, or keeps its words and returns -EIO. Clears the runtime's own "last
 * error" of this thread, so that a later call does not report it as its own. */
int pl_cuda_check(struct pl_cuda_status *status, const char *call, int code);

/* Keeps what the launches of this thread have left (cudaGetLastError), under the name `call`. */
int pl_cuda_check_launches(struct pl_cuda_status *status, const char *call);

/* 0, or -EIO with "CALL failed on DEVICE: WHY". */
int pl_cuda_report(const struct pl_cuda_status *status, const char *device, struct pl_error *err);

/* An error of one call that is not kept: "CALL failed on DEVICE: WHY". Returns -EIO. */
int pl_cuda_error(struct pl_error *err, const char *device, const char *call, int code);

#endif
