/* SPDX-License-Identifier: MIT */
#include "runtime/node/nvml.h"
#include "common/base/macros.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* The second name is the older one of the same function. */
static const struct {
    size_t at;
    const char *name, *older;
    bool needed;
} table[] = {
    {offsetof(struct pl_nvml, init), "nvmlInit_v2", "nvmlInit", true},
    {offsetof(struct pl_nvml, shutdown), "nvmlShutdown", NULL, true},
    {offsetof(struct pl_nvml, error_string), "nvmlErrorString", NULL, true},
    {offsetof(struct pl_nvml, count), "nvmlDeviceGetCount_v2", NULL, true},
    {offsetof(struct pl_nvml, handle), "nvmlDeviceGetHandleByIndex_v2", NULL, true},
    {offsetof(struct pl_nvml, uuid), "nvmlDeviceGetUUID", NULL, false},
    {offsetof(struct pl_nvml, name), "nvmlDeviceGetName", NULL, false},
    {offsetof(struct pl_nvml, utilization), "nvmlDeviceGetUtilizationRates", NULL, false},
    {offsetof(struct pl_nvml, power), "nvmlDeviceGetPowerUsage", NULL, false},
    {offsetof(struct pl_nvml, power_limit), "nvmlDeviceGetEnforcedPowerLimit", NULL, false},
    {offsetof(struct pl_nvml, clock), "nvmlDeviceGetClockInfo", NULL, false},
    {offsetof(struct pl_nvml, max_clock), "nvmlDeviceGetMaxClockInfo", NULL, false},
    {offsetof(struct pl_nvml, memory), "nvmlDeviceGetMemoryInfo", NULL, false},
    {offsetof(struct pl_nvml, temperature), "nvmlDeviceGetTemperature", NULL, false},
    {offsetof(struct pl_nvml, throttle), "nvmlDeviceGetCurrentClocksEventReasons",
     "nvmlDeviceGetCurrentClocksThrottleReasons", false},
    {offsetof(struct pl_nvml, ecc), "nvmlDeviceGetTotalEccErrors", NULL, false},
    {offsetof(struct pl_nvml, processes), "nvmlDeviceGetComputeRunningProcesses_v3",
     "nvmlDeviceGetComputeRunningProcesses_v2", false},
    {offsetof(struct pl_nvml, process_samples), "nvmlDeviceGetProcessUtilization", NULL, false},
    {offsetof(struct pl_nvml, set_create), "nvmlEventSetCreate", NULL, false},
    {offsetof(struct pl_nvml, set_free), "nvmlEventSetFree", NULL, false},
    {offsetof(struct pl_nvml, event_types), "nvmlDeviceGetSupportedEventTypes", NULL, false},
    {offsetof(struct pl_nvml, register_events), "nvmlDeviceRegisterEvents", NULL, false},
    {offsetof(struct pl_nvml, wait), "nvmlEventSetWait_v2", NULL, false},
};

int pl_nvml_open(struct pl_nvml *ret, const char *path, struct pl_error *err)
{
    struct pl_nvml nvml = {.library = dlopen(path, RTLD_NOW | RTLD_LOCAL)};
    const char *said = nvml.library ? NULL : dlerror();
    int r;

    if (!nvml.library) /* dlopen(3) gives no code: it may also have had no memory, or no files */
        return pl_error_set(err, said && strstr(said, strerror(ENOENT)) ? -ENOENT : -EIO,
                            "cannot load '%s': %s", path, said ? said : "?");
    for (size_t i = 0; i < PL_COUNT(table); i++) {
        void *symbol = dlsym(nvml.library, table[i].name);

        if (!symbol && table[i].older)
            symbol = dlsym(nvml.library, table[i].older);
        if (!symbol && table[i].needed) {
            dlclose(nvml.library);
            return pl_error_set(err, -ENOSYS, "'%s' has no %s", path, table[i].name);
        }
        memcpy((char *)&nvml + table[i].at, &symbol, sizeof(symbol));
    }
    r = nvml.init();
    if (r != PL_NVML_SUCCESS) {
        r = pl_error_set(err, r == PL_NVML_DRIVER_NOT_LOADED ? -ENODEV : -EIO,
                         "the GPU driver does not answer: %s", nvml.error_string(r));
        dlclose(nvml.library);
        return r;
    }
    *ret = nvml;
    return 0;
}

void pl_nvml_close(struct pl_nvml *nvml)
{
    if (!nvml->library)
        return;
    nvml->shutdown();
    dlclose(nvml->library);
    *nvml = (struct pl_nvml){0};
}

unsigned pl_nvml_throttle_names(unsigned long long bits, const char **ret, unsigned max)
{
    /* nvmlClocksEventReasons; left out: 0x1 idle, 0x2 clocks that somebody set, 0x100 display */
    static const struct {
        unsigned long long bit;
        const char *name;
    } reasons[] = {
        {0x40, "hw-thermal"}, {0x20, "sw-thermal"}, {0x80, "power-brake"},
        {0x4, "power-cap"},   {0x10, "sync-boost"}, {0x8, "hw-slowdown"},
    };
    unsigned n = 0;

    for (size_t i = 0; i < PL_COUNT(reasons) && n < max; i++) {
        /* the last one is the sum of two others, and stands alone only where it is none of them */
        if (reasons[i].bit == 0x8 && (bits & (0x40 | 0x80)))
            continue;
        if (bits & reasons[i].bit)
            ret[n++] = reasons[i].name;
    }
    return n;
}

const char *pl_nvml_xid_text(unsigned long long xid)
{
    static const struct {
        unsigned xid;
        const char *text;
    } texts[] = {
        {13, "graphics engine exception"},
        {31, "GPU memory page fault"},
        {32, "invalid or corrupted push buffer"},
        {38, "driver firmware error"},
        {43, "GPU stopped processing"},
        {45, "preemptive cleanup after earlier errors"},
        {48, "double bit ECC error"},
        {61, "internal micro-controller warning"},
        {62, "internal micro-controller halt"},
        {63, "ECC page retirement or row remapping"},
        {64, "ECC page retirement or row remapping failed"},
        {69, "graphics engine class error"},
        {74, "NVLink error"},
        {79, "GPU has fallen off the bus"},
        {92, "high rate of single bit ECC errors"},
        {94, "contained ECC error"},
        {95, "uncontained ECC error"},
        {109, "context switch timeout"},
        {119, "GSP RPC timeout"},
        {120, "GSP error"},
    };

    for (size_t i = 0; i < PL_COUNT(texts); i++)
        if (texts[i].xid == xid)
            return texts[i].text;
    return NULL;
}
