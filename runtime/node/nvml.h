/* SPDX-License-Identifier: MIT */
/* The part of NVIDIA's management library that the node daemon reads: loaded when it is needed and
 * never linked, so that machines without a driver need nothing. Types and numbers are those of the
 * library's ABI, as its reference manual gives them (NVML API Reference, "Device Queries", "Event
 * Handling Methods"): the header is no part of a driver's installation. */
#ifndef PL_RUNTIME_NODE_NVML_H
#define PL_RUNTIME_NODE_NVML_H

#include "common/base/error.h"

#define PL_NVML_LIBRARY "libnvidia-ml.so.1"

enum {
    PL_NVML_SUCCESS = 0,
    PL_NVML_NOT_SUPPORTED = 3,
    PL_NVML_NO_PERMISSION = 4,
    PL_NVML_INSUFFICIENT_SIZE = 7,
    PL_NVML_DRIVER_NOT_LOADED = 9,
    PL_NVML_TIMEOUT = 10,
    PL_NVML_GPU_IS_LOST = 15,
};

enum { PL_NVML_CLOCK_SM = 1 };
enum { PL_NVML_TEMPERATURE_GPU = 0 };
enum { PL_NVML_ECC_CORRECTED = 0, PL_NVML_ECC_UNCORRECTED = 1 };
enum { PL_NVML_ECC_VOLATILE = 0 }; /* since the driver was loaded */
enum { PL_NVML_EVENT_DOUBLE_BIT_ECC = 2, PL_NVML_EVENT_XID = 8 };

struct pl_nvml_utilization {
    unsigned gpu, memory; /* percent of the last sample period */
};

struct pl_nvml_memory {
    unsigned long long total, free, used; /* bytes */
};

struct pl_nvml_process {
    unsigned pid;
    unsigned long long used_memory; /* bytes; all ones where it is not known */
    unsigned gpu_instance, compute_instance;
};

struct pl_nvml_process_sample {
    unsigned pid;
    unsigned long long time_us;
    unsigned sm, memory, encoder, decoder; /* percent */
};

struct pl_nvml_event {
    void *device;
    unsigned long long type, data; /* data: the number of an Xid */
    unsigned gpu_instance, compute_instance;
};

/* Functions by the library's names without "nvml"; of those marked ? some drivers lack one or
 * another: NULL there. All return PL_NVML_SUCCESS or another number. */
struct pl_nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int code);
    int (*count)(unsigned *ret);
    int (*handle)(unsigned index, void **ret);
    int (*uuid)(void *device, char *ret, unsigned size);                          /* ? */
    int (*name)(void *device, char *ret, unsigned size);                          /* ? */
    int (*utilization)(void *device, struct pl_nvml_utilization *ret);            /* ? */
    int (*power)(void *device, unsigned *ret_mw);                                 /* ? */
    int (*power_limit)(void *device, unsigned *ret_mw);                           /* ? */
    int (*clock)(void *device, int type, unsigned *ret_mhz);                      /* ? */
    int (*max_clock)(void *device, int type, unsigned *ret_mhz);                  /* ? */
    int (*memory)(void *device, struct pl_nvml_memory *ret);                      /* ? */
    int (*temperature)(void *device, int sensor, unsigned *ret_c);                /* ? */
    int (*throttle)(void *device, unsigned long long *ret_bits);                  /* ? */
    int (*ecc)(void *device, int kind, int counter, unsigned long long *ret);     /* ? */
    int (*processes)(void *device, unsigned *count, struct pl_nvml_process *ret); /* ? */
    int (*process_samples)(void *device,
                           struct pl_nvml_process_sample *ret,
                           unsigned *count,
                           unsigned long long since_us);                       /* ? */
    int (*set_create)(void **ret);                                             /* ? */
    int (*set_free)(void *set);                                                /* ? */
    int (*event_types)(void *device, unsigned long long *ret);                 /* ? */
    int (*register_events)(void *device, unsigned long long types, void *set); /* ? */
    int (*wait)(void *set, struct pl_nvml_event *ret, unsigned timeout_ms);    /* ? */
};

/* Loads the library at path and starts it. -ENOENT where it is not there, -ENOSYS where it lacks a
 * function, -ENODEV where no driver is loaded, -EIO where it does not start, or cannot be loaded.
 * May block while the driver loads. */
int pl_nvml_open(struct pl_nvml *ret, const char *path, struct pl_error *err);
void pl_nvml_close(struct pl_nvml *nvml);

/* Names of the bits that hold the clocks down, apart from "idle" and "the user asked for it":
 * writes at most `max` of them, returns how many. */
unsigned pl_nvml_throttle_names(unsigned long long bits, const char **ret, unsigned max);

/* The meaning of an Xid in a few words (NVIDIA's catalogue "XID Errors"); NULL for others. */
const char *pl_nvml_xid_text(unsigned long long xid);

#endif
