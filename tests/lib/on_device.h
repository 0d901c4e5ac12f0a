/* SPDX-License-Identifier: MIT */
/* The device that tests of the engine run on, and tensors' memory by it, so that they hold for any:
 * the CPU, or with PLUME_TEST_GPU=1 this process' first GPU. */
#ifndef PL_TESTS_LIB_ON_DEVICE_H
#define PL_TESTS_LIB_ON_DEVICE_H

#include "kernels/half.h"
#include "runtime/engine/device/gpu.h"
#include "runtime/engine/device/tensor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* Opened by the first call, in the process that uses it: a GPU does not outlive a fork. Where there
 * is none the program ends: with 77, unless the machine has a card. */
static inline struct pl_device *on_device(void)
{
    static struct pl_device *device;
    const struct pl_gpu_choice first = {.n = 0};
    struct pl_error err = {0};

    if (device)
        return device;
    if (!getenv("PLUME_TEST_GPU")) {
        device = pl_device_cpu();
    } else if (pl_gpu_open(&first, &device, &err) < 0) {
        printf("%s\n", pl_error_text(&err));
        exit(access("/dev/nvidia0", F_OK) == 0 ? 1 : 77);
    }
    return device;
}

/* For programs whose ranks are forked: ends where on_device() would, and opens nothing here. */
static inline void on_device_or_end(void)
{
    pid_t pid = fork();
    int status = 0;

    if (pid == 0) {
        (void)on_device();
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status))
        exit(1);
    if (WEXITSTATUS(status) != 0)
        exit(WEXITSTATUS(status));
}

/* Element 0; NaN where the device fails. */
static inline double on_device_scalar(const plume_tensor *t)
{
    double value = NAN;

    pl_tensor_scalar(t, on_device(), &value, NULL);
    return value;
}

/* A copy of memory that the test frees; NULL where the device fails. */
static inline void *on_device_read(void *memory, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    if (copy && pl_device_download(on_device(), copy, memory, bytes, NULL) < 0) {
        free(copy);
        return NULL;
    }
    return copy;
}

/* All values of an f32 or f64 tensor, from its data or gradient; the test frees them. NULL where
 * the device fails. */
static inline double *on_device_values(const plume_tensor *t, void *memory)
{
    bool f64 = t->dtype == PLUME_F64, f16 = t->dtype == PLUME_F16, bf16 = t->dtype == PLUME_BF16;
    void *read = on_device_read(memory, t->count * (f64           ? sizeof(double)
                                                    : f16 || bf16 ? sizeof(uint16_t)
                                                                  : sizeof(float)));
    double *values = malloc((t->count + 1) * sizeof(double));

    for (size_t i = 0; read && values && i < t->count; i++)
        values[i] = f64    ? ((double *)read)[i]
                    : f16  ? (double)pl_f32_of_f16(((uint16_t *)read)[i])
                    : bf16 ? (double)pl_f32_of_bf16(((uint16_t *)read)[i])
                           : (double)((float *)read)[i];
    if (!read) {
        free(values);
        values = NULL;
    }
    free(read);
    return values;
}

/* Sets all values of an f32 or f64 tensor. */
static inline void on_device_set(plume_tensor *t, const double *values)
{
    float *narrow = malloc((t->count + 1) * sizeof(float));

    for (size_t i = 0; narrow && i < t->count; i++)
        narrow[i] = (float)values[i];
    if (t->dtype == PLUME_F64)
        pl_device_upload(on_device(), t->data, values, t->count * sizeof(double));
    else if (narrow)
        pl_device_upload(on_device(), t->data, narrow, t->count * sizeof(float));
    free(narrow);
}

#endif
