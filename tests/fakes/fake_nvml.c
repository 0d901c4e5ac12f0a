/* SPDX-License-Identifier: MIT */
/* A libnvidia-ml.so for machines without a GPU. Its answers come from a JSON file, which a test
 * replaces (by rename) while a program watches:
 *   {"gpus":[{"uuid","name","util","mem_util","power_mw","power_limit_mw","clock","clock_max",
 *             "mem_used","mem_total","temp","throttle":BITS,"ecc":[CORRECTED,UNCORRECTED],
 *             "processes":[{"pid","mem","util"}] (or the code of its failure), "handle":15}],
 *    "events":[{"gpu":0,"xid":79}, {"gpu":0}],      all so far; without xid: a double bit ECC error
 *    "init":9, "events_supported":false}
 *
 * A missing key is an unsupported function. A wait for events ends when the file is replaced, so
 * that no test waits for a period. PLUME_FAKE_NVML is the file. */
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "runtime/node/nvml.h"

#define EXPORT __attribute__((visibility("default")))

static size_t n_told; /* events */

static json_t *load(void)
{
    const char *path = getenv("PLUME_FAKE_NVML");
    json_t *o = path ? json_load_file(path, 0, NULL) : NULL;

    return o ? o : json_object();
}

/* A key of a device (its number + 1 is its handle); a new reference, NULL if missing. */
static json_t *key_of(void *device, const char *key)
{
    json_t *o = load();
    json_t *gpu = json_array_get(json_object_get(o, "gpus"), (size_t)(uintptr_t)device - 1);
    json_t *value = json_incref(json_object_get(gpu, key));

    json_decref(o);
    return value;
}

static int number(void *device, const char *key, unsigned long long *ret)
{
    json_t *value = key_of(device, key);

    if (!value)
        return PL_NVML_NOT_SUPPORTED;
    *ret = (unsigned long long)json_integer_value(value);
    json_decref(value);
    return PL_NVML_SUCCESS;
}

static int small(void *device, const char *key, unsigned *ret)
{
    unsigned long long value = 0;
    int r = number(device, key, &value);

    if (r == PL_NVML_SUCCESS)
        *ret = (unsigned)value;
    return r;
}

static int text(void *device, const char *key, char *ret, unsigned size)
{
    json_t *value = key_of(device, key);

    if (!value)
        return PL_NVML_NOT_SUPPORTED;
    snprintf(ret, size, "%s", json_string_value(value));
    json_decref(value);
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlInit_v2(void)
{
    json_t *o = load();
    int r = (int)json_integer_value(json_object_get(o, "init"));

    json_decref(o);
    return r;
}

EXPORT int nvmlShutdown(void)
{
    return PL_NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
    return code == 9 ? "Driver Not Loaded" : "Unknown Error";
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *ret)
{
    json_t *o = load();

    *ret = (unsigned)json_array_size(json_object_get(o, "gpus"));
    json_decref(o);
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **ret)
{
    unsigned code = PL_NVML_SUCCESS;

    *ret = (void *)(uintptr_t)(index + 1);
    small(*ret, "handle", &code);
    return (int)code;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *ret, unsigned size)
{
    return text(device, "uuid", ret, size);
}

EXPORT int nvmlDeviceGetName(void *device, char *ret, unsigned size)
{
    return text(device, "name", ret, size);
}

EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct pl_nvml_utilization *ret)
{
    small(device, "mem_util", &ret->memory);
    return small(device, "util", &ret->gpu);
}

EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *ret)
{
    return small(device, "power_mw", ret);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *ret)
{
    return small(device, "power_limit_mw", ret);
}

EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *ret)
{
    return small(device, type == PL_NVML_CLOCK_SM ? "clock" : "?", ret);
}

EXPORT int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *ret)
{
    return small(device, type == PL_NVML_CLOCK_SM ? "clock_max" : "?", ret);
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct pl_nvml_memory *ret)
{
    number(device, "mem_total", &ret->total);
    return number(device, "mem_used", &ret->used);
}

EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *ret)
{
    return small(device, sensor == PL_NVML_TEMPERATURE_GPU ? "temp" : "?", ret);
}

/* Only the older of the two names: the newer one is what drivers before 535 lack. */
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *ret)
{
    return number(device, "throttle", ret);
}

EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *ret)
{
    json_t *list = key_of(device, "ecc");

    if (!list || counter != PL_NVML_ECC_VOLATILE)
        return PL_NVML_NOT_SUPPORTED;
    *ret = (unsigned long long)json_integer_value(json_array_get(list, (size_t)kind));
    json_decref(list);
    return PL_NVML_SUCCESS;
}

EXPORT int
nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct pl_nvml_process *ret)
{
    json_t *list = key_of(device, "processes"), *process;
    unsigned n = 0;
    int code = (int)json_integer_value(list); /* 0 of a list */
    size_t i;

    json_array_foreach (list, i, process)
        if (n < *count) {
            json_t *mem = json_object_get(process, "mem");

            ret[n++] = (struct pl_nvml_process){
                .pid = (unsigned)json_integer_value(json_object_get(process, "pid")),
                .used_memory = mem ? (unsigned long long)json_integer_value(mem) : ~0ull};
        }
    json_decref(list);
    *count = n;
    return code;
}

EXPORT int nvmlDeviceGetProcessUtilization(void *device,
                                           struct pl_nvml_process_sample *ret,
                                           unsigned *count,
                                           unsigned long long since_us)
{
    json_t *list = key_of(device, "processes"), *process;
    unsigned n = 0;
    size_t i;

    json_array_foreach (list, i, process)
        if (n < *count && json_object_get(process, "util"))
            ret[n++] = (struct pl_nvml_process_sample){
                .pid = (unsigned)json_integer_value(json_object_get(process, "pid")),
                .time_us = since_us + 1,
                .sm = (unsigned)json_integer_value(json_object_get(process, "util"))};
    json_decref(list);
    *count = n;
    return PL_NVML_SUCCESS;
}

/* ---- events ---- */

EXPORT int nvmlEventSetCreate(void **ret)
{
    char path[PATH_MAX];
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

    snprintf(path, sizeof(path), "%s", getenv("PLUME_FAKE_NVML"));
    if (fd < 0 || inotify_add_watch(fd, dirname(path), IN_MOVED_TO) < 0)
        return 999;
    *ret = (void *)(uintptr_t)fd;
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlEventSetFree(void *set)
{
    close((int)(uintptr_t)set);
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(void *device, unsigned long long *ret)
{
    json_t *o = load();

    *ret = json_is_false(json_object_get(o, "events_supported")) ? 0 : 0x1f;
    json_decref(o);
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set)
{
    return PL_NVML_SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, struct pl_nvml_event *ret, unsigned timeout_ms)
{
    struct pollfd p = {.fd = (int)(uintptr_t)set, .events = POLLIN};
    char buffer[4096];

    for (int turn = 0; turn < 2; turn++) {
        json_t *o = load(), *event = json_array_get(json_object_get(o, "events"), n_told), *xid;

        if (event) {
            n_told++;
            xid = json_object_get(event, "xid");
            *ret = (struct pl_nvml_event){
                .device =
                    (void *)(uintptr_t)(json_integer_value(json_object_get(event, "gpu")) + 1),
                .type = xid ? PL_NVML_EVENT_XID : PL_NVML_EVENT_DOUBLE_BIT_ECC,
                .data = (unsigned long long)json_integer_value(xid)};
            json_decref(o);
            return PL_NVML_SUCCESS;
        }
        json_decref(o);
        if (turn || poll(&p, 1, (int)timeout_ms) <= 0)
            break;
        while (read(p.fd, buffer, sizeof(buffer)) > 0)
            ;
    }
    return PL_NVML_TIMEOUT;
}
