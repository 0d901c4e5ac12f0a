/* SPDX-License-Identifier: MIT */
#include "runtime/engine/pjrt/pjrt_private.h"

#include <dlfcn.h>
#include <unistd.h>

/* The oldest interface whose functions are all those that we call. Later ones only append. */
#define OLDEST_MINOR 40

static int load(const char *path, const PJRT_Api **ret, struct pl_error *err)
{
    const PJRT_Api *(*get)(void);
    PJRT_Plugin_Initialize_Args initialize = {.struct_size =
                                                  PJRT_Plugin_Initialize_Args_STRUCT_SIZE};
    const PJRT_Api *api;
    void *handle;

    if (strchr(path, '/') && access(path, F_OK) < 0)
        return pl_error_set(err, -ENOENT, "no PJRT plugin '%s'", path);
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL); /* never closed: XLA's threads live in it */
    if (!handle)
        return pl_error_set(err, -ENOTSUP,
                            "cannot load the PJRT plugin '%s': %s; '--pjrt-plugin FILE' names one",
                            path, dlerror());
    *(void **)&get = dlsym(handle, "GetPjrtApi");
    api = get ? get() : NULL;
    if (!api)
        return pl_error_set(err, -ENOTSUP, "'%s' is not a PJRT plugin: %s", path,
                            get ? "its GetPjrtApi() returns nothing" : "it has no GetPjrtApi()");
    if (api->pjrt_api_version.major_version != PJRT_API_MAJOR ||
        api->pjrt_api_version.minor_version < OLDEST_MINOR ||
        api->struct_size < PJRT_STRUCT_SIZE(PJRT_Api, PJRT_Buffer_ToHostBuffer))
        return pl_error_set(err, -ENOTSUP,
                            "the PJRT plugin '%s' has interface %d.%d, and %d.%d or a later %d is "
                            "needed",
                            path, api->pjrt_api_version.major_version,
                            api->pjrt_api_version.minor_version, PJRT_API_MAJOR, OLDEST_MINOR,
                            PJRT_API_MAJOR);
    *ret = api;
    return pl_pjrt_fail(api, api->PJRT_Plugin_Initialize(&initialize), "start of the plugin", err);
}

static int
start(struct pl_pjrt *p, const PJRT_NamedValue *options, size_t n_options, struct pl_error *err)
{
    PJRT_Client_Create_Args create = {.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE,
                                      .create_options = options,
                                      .num_options = n_options};
    PJRT_Client_PlatformName_Args name = {.struct_size = PJRT_Client_PlatformName_Args_STRUCT_SIZE};
    int r;

    if (p->hosts)
        pl_pjrt_set_callbacks(p, &create);
    r = pl_pjrt_fail(p->api, p->api->PJRT_Client_Create(&create), "start of the device", err);
    if (r < 0)
        return r;
    name.client = p->client = create.client;
    r = pl_pjrt_fail(p->api, p->api->PJRT_Client_PlatformName(&name), "name of the platform", err);
    if (r == 0)
        snprintf(p->platform, sizeof(p->platform), "%.*s", (int)name.platform_name_size,
                 name.platform_name);
    return r;
}

static void stop(struct pl_pjrt *p)
{
    PJRT_Client_Destroy_Args destroy = {.struct_size = PJRT_Client_Destroy_Args_STRUCT_SIZE,
                                        .client = p->client};

    if (p->client)
        pl_pjrt_fail(p->api, p->api->PJRT_Client_Destroy(&destroy), "close", NULL);
    p->client = NULL;
}

static int
look(const struct pl_pjrt *p, PJRT_Client_AddressableDevices_Args *ret, struct pl_error *err)
{
    *ret = (PJRT_Client_AddressableDevices_Args){
        .struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE, .client = p->client};
    return pl_pjrt_fail(p->api, p->api->PJRT_Client_AddressableDevices(ret), "list of devices",
                        err);
}

static PJRT_NamedValue number(const char *name, size_t value)
{
    return (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                             .name = name,
                             .name_size = strlen(name),
                             .type = PJRT_NamedValue_kInt64,
                             .int64_value = (int64_t)value,
                             .value_size = 1};
}

/* Some plugins must be told of what others find by themselves: XLA's CPU of the devices that it
 * shall have; and of several hosts. */
static int start_with(struct pl_pjrt *p,
                      size_t n,
                      PJRT_Client_AddressableDevices_Args *ret,
                      struct pl_error *err)
{
    PJRT_NamedValue told[3];
    size_t n_told = 0, processes = 1, hosts = p->hosts ? p->hosts->n : 1;
    int r = start(p, NULL, 0, err);

    if (r == 0)
        r = look(p, ret, err);
    if (r == 0 && hosts > 1)
        r = pl_pjrt_processes(p, &processes, err);
    if (r < 0)
        return r;
    if (ret->num_addressable_devices < n && strcmp(p->platform, "cpu") == 0)
        told[n_told++] = number("cpu_device_count", n);
    if (processes == 1 && hosts > 1) {
        told[n_told++] = number("node_id", p->hosts->index);
        told[n_told++] = number("num_nodes", hosts);
    }
    if (n_told == 0)
        return 0;
    stop(p);
    r = start(p, told, n_told, err);
    return r < 0 ? r : look(p, ret, err);
}

/* Opens the devices of the list, or the first n. */
static int find_devices(struct pl_pjrt *p, const unsigned *list, size_t n, struct pl_error *err)
{
    PJRT_Client_AddressableDevices_Args there;
    size_t most = n;
    int r;

    for (size_t i = 0; list && i < n; i++)
        most = PL_MAX(most, (size_t)list[i] + 1);
    r = start_with(p, most, &there, err);
    if (r < 0)
        return r;
    if (there.num_addressable_devices == 0)
        return pl_error_set(err, -ENODEV, "the PJRT plugin has no device on this machine");
    if (there.num_addressable_devices < most)
        return pl_error_set(
            err, -ENODEV, "the PJRT plugin has %zu device%s on this machine, and %zu are needed",
            there.num_addressable_devices, there.num_addressable_devices == 1 ? "" : "s", most);
    if (p->hosts)
        return pl_pjrt_find_everywhere(p, list, n, err);
    p->devices = calloc(n, sizeof(*p->devices));
    if (!p->devices)
        return pl_error_nomem(err);
    for (p->n = 0; p->n < n; p->n++)
        p->devices[p->n] = there.addressable_devices[list ? list[p->n] : p->n];
    return 0;
}

static void pjrt_close(struct pl_pjrt *p)
{
    if (!p)
        return;
    stop(p);
    free(p->devices);
    free(p->everywhere);
    pl_buf_finish(&p->identity);
    free(p);
}

static int pjrt_open(const char *path,
                     const unsigned *list,
                     size_t n,
                     const struct pl_pjrt_hosts *hosts,
                     struct pl_pjrt **ret,
                     struct pl_error *err)
{
    struct pl_pjrt *p = calloc(1, sizeof(*p));
    int r = p ? load(path, &p->api, err) : pl_error_nomem(err);

    if (r == 0)
        p->hosts = hosts;
    if (r == 0)
        r = find_devices(p, list, n, err);
    if (r == 0)
        r = pl_pjrt_identify(p, err);
    if (r < 0) {
        pjrt_close(p);
        return r;
    }
    *ret = p;
    return 0;
}

static const char *pjrt_identity(const struct pl_pjrt *p)
{
    return pl_buf_str(&p->identity);
}

static const char *pjrt_platform(const struct pl_pjrt *p)
{
    return p->platform;
}

extern const struct pl_pjrt_table pl_pjrt_table;

__attribute__((visibility("default"))) const struct pl_pjrt_table pl_pjrt_table = {
    .version = PL_PJRT_TABLE_VERSION,
    .open = pjrt_open,
    .close = pjrt_close,
    .platform = pjrt_platform,
    .compile = pl_pjrt_compile,
    .identity = pjrt_identity,
    .save = pl_pjrt_save,
    .load = pl_pjrt_load,
    .program_free = pl_pjrt_program_free,
    .upload = pl_pjrt_upload,
    .download = pl_pjrt_download,
    .array_free = pl_pjrt_array_free,
    .run = pl_pjrt_run,
};
