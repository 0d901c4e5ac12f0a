/* SPDX-License-Identifier: MIT */
/* plume-pjrt.so: the only part that sees PJRT's header. It exports a table (pjrt_table.h). */
#include "common/base/macros.h"
#include "runtime/engine/xla/pjrt_table.h"

#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The oldest interface whose functions are all those that we call. Later ones only append. */
#define OLDEST_MINOR 40

struct pl_pjrt {
    const PJRT_Api *api;
    PJRT_Client *client;
    PJRT_Device *device;
    char platform[64];
};

/* Turns an error of PJRT into ours, and frees it. `what`: the call that failed. */
static int fail(const PJRT_Api *api, PJRT_Error *error, const char *what, struct pl_error *err)
{
    PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE,
                                       .error = error};
    PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE,
                                       .error = error};
    size_t len;

    if (!error)
        return 0;
    api->PJRT_Error_Message(&message);
    len = message.message_size;
    while (len && (message.message[len - 1] == '\n' || message.message[len - 1] == '.'))
        len--;
    pl_error_set(err, -EIO, "the XLA device: %s: %.*s", what, (int)PL_MIN(len, (size_t)600),
                 message.message);
    api->PJRT_Error_Destroy(&destroy);
    return -EIO;
}

/* Waits for an event, and frees it. NULL is ignored. */
static int await(const PJRT_Api *api, PJRT_Event *event, const char *what, struct pl_error *err)
{
    PJRT_Event_Await_Args wait = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE, .event = event};
    PJRT_Event_Destroy_Args destroy = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE,
                                       .event = event};
    int r;

    if (!event)
        return 0;
    r = fail(api, api->PJRT_Event_Await(&wait), what, err);
    api->PJRT_Event_Destroy(&destroy);
    return r;
}

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
        return pl_error_set(err, -ENOTSUP, "'%s' is no PJRT plugin: %s", path,
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
    return fail(api, api->PJRT_Plugin_Initialize(&initialize), "start of the plugin", err);
}

static int find_device(struct pl_pjrt *p, struct pl_error *err)
{
    PJRT_Client_AddressableDevices_Args devices = {
        .struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE, .client = p->client};
    PJRT_Client_PlatformName_Args name = {.struct_size = PJRT_Client_PlatformName_Args_STRUCT_SIZE,
                                          .client = p->client};
    int r = fail(p->api, p->api->PJRT_Client_AddressableDevices(&devices), "list of devices", err);

    if (r == 0)
        r = fail(p->api, p->api->PJRT_Client_PlatformName(&name), "name of the platform", err);
    if (r < 0)
        return r;
    if (devices.num_addressable_devices == 0)
        return pl_error_set(err, -ENODEV, "the PJRT plugin has no device on this machine");
    p->device = devices.addressable_devices[0];
    snprintf(p->platform, sizeof(p->platform), "%.*s", (int)name.platform_name_size,
             name.platform_name);
    return 0;
}

static void pjrt_close(struct pl_pjrt *p)
{
    PJRT_Client_Destroy_Args destroy = {.struct_size = PJRT_Client_Destroy_Args_STRUCT_SIZE};

    if (!p)
        return;
    destroy.client = p->client;
    if (p->client)
        fail(p->api, p->api->PJRT_Client_Destroy(&destroy), "close", NULL);
    free(p);
}

static int pjrt_open(const char *path, struct pl_pjrt **ret, struct pl_error *err)
{
    struct pl_pjrt *p = calloc(1, sizeof(*p));
    PJRT_Client_Create_Args create = {.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE};
    int r = p ? load(path, &p->api, err) : pl_error_nomem(err);

    if (r == 0)
        r = fail(p->api, p->api->PJRT_Client_Create(&create), "start of the device", err);
    if (r == 0) {
        p->client = create.client;
        r = find_device(p, err);
    }
    if (r < 0) {
        pjrt_close(p);
        return r;
    }
    *ret = p;
    return 0;
}

static const char *pjrt_platform(const struct pl_pjrt *p)
{
    return p->platform;
}

/* ---- programs ---- */

struct pl_pjrt_program {
    PJRT_LoadedExecutable *executable;
    size_t outputs;
};

static void pjrt_program_free(struct pl_pjrt *p, struct pl_pjrt_program *program)
{
    PJRT_LoadedExecutable_Destroy_Args destroy = {
        .struct_size = PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE};

    if (!program)
        return;
    destroy.executable = program->executable;
    fail(p->api, p->api->PJRT_LoadedExecutable_Destroy(&destroy), "end of a program", NULL);
    free(program);
}

static int pjrt_compile(struct pl_pjrt *p,
                        const char *text,
                        size_t len,
                        size_t outputs,
                        struct pl_pjrt_program **ret,
                        struct pl_error *err)
{
    /* A serialized CompileOptionsProto: executable_build_options (field 3) with num_replicas
     * (field 4) and num_partitions (field 5) of 1. */
    static const char options[] = {0x1a, 0x04, 0x20, 0x01, 0x28, 0x01};
    PJRT_Program code = {.struct_size = PJRT_Program_STRUCT_SIZE,
                         .code = (char *)(uintptr_t)text,
                         .code_size = len,
                         .format = "mlir",
                         .format_size = strlen("mlir")};
    PJRT_Client_Compile_Args compile = {.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE,
                                        .client = p->client,
                                        .program = &code,
                                        .compile_options = options,
                                        .compile_options_size = sizeof(options)};
    struct pl_pjrt_program *program = calloc(1, sizeof(*program));
    int r = program ? fail(p->api, p->api->PJRT_Client_Compile(&compile), "compiling", err)
                    : pl_error_nomem(err);

    if (r < 0) {
        free(program);
        return r;
    }
    program->executable = compile.executable;
    program->outputs = outputs;
    *ret = program;
    return 0;
}

/* ---- arrays ---- */

static PJRT_Buffer *buffer_of(const struct pl_pjrt_array *array)
{
    return (PJRT_Buffer *)(uintptr_t)array;
}

static void pjrt_array_free(struct pl_pjrt *p, struct pl_pjrt_array *array)
{
    PJRT_Buffer_Destroy_Args destroy = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                        .buffer = buffer_of(array)};

    if (array)
        fail(p->api, p->api->PJRT_Buffer_Destroy(&destroy), "end of an array", NULL);
}

static int pjrt_upload(struct pl_pjrt *p,
                       enum pl_pjrt_type type,
                       size_t rank,
                       const size_t *shape,
                       const void *data,
                       struct pl_pjrt_array **ret,
                       struct pl_error *err)
{
    static const PJRT_Buffer_Type types[] = {[PL_PJRT_F32] = PJRT_Buffer_Type_F32,
                                             [PL_PJRT_I32] = PJRT_Buffer_Type_S32,
                                             [PL_PJRT_U32] = PJRT_Buffer_Type_U32};
    int64_t dims[PL_PJRT_RANK_MAX];
    PJRT_Client_BufferFromHostBuffer_Args from = {
        .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
        .client = p->client,
        .data = data,
        .type = types[type],
        .dims = dims,
        .num_dims = rank,
        .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
        .device = p->device,
    };
    int r;

    for (size_t i = 0; i < rank; i++)
        dims[i] = (int64_t)shape[i];
    r = fail(p->api, p->api->PJRT_Client_BufferFromHostBuffer(&from), "copy to the device", err);
    if (r == 0)
        r = await(p->api, from.done_with_host_buffer, "copy to the device", err);
    if (r == 0)
        *ret = (struct pl_pjrt_array *)from.buffer;
    return r;
}

/* The host gets row-major order. Without a layout it would get the device's, which is another one
 * on some devices. */
static int pjrt_download(struct pl_pjrt *p,
                         const struct pl_pjrt_array *array,
                         void *to,
                         size_t bytes,
                         struct pl_error *err)
{
    int64_t order[PL_PJRT_RANK_MAX];
    PJRT_Buffer_Dimensions_Args shape = {.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
                                         .buffer = buffer_of(array)};
    PJRT_Buffer_MemoryLayout layout = {
        .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
        .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                  .minor_to_major = order}};
    PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                          .src = buffer_of(array),
                                          .host_layout = &layout,
                                          .dst = to,
                                          .dst_size = bytes};
    int r = fail(p->api, p->api->PJRT_Buffer_Dimensions(&shape), "copy from the device", err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < shape.num_dims; i++)
        order[i] = (int64_t)(shape.num_dims - 1 - i);
    layout.tiled.minor_to_major_size = shape.num_dims;
    r = fail(p->api, p->api->PJRT_Buffer_ToHostBuffer(&copy), "copy from the device", err);
    return r < 0 ? r : await(p->api, copy.event, "copy from the device", err);
}

static int pjrt_run(struct pl_pjrt *p,
                    const struct pl_pjrt_program *program,
                    struct pl_pjrt_array *const *in,
                    size_t n_in,
                    struct pl_pjrt_array **ret,
                    struct pl_error *err)
{
    PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
    PJRT_Buffer *const *arguments = (PJRT_Buffer *const *)in;
    PJRT_Buffer **outputs = (PJRT_Buffer **)ret;
    PJRT_LoadedExecutable_Execute_Args execute = {
        .struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE,
        .executable = program->executable,
        .options = &options,
        .argument_lists = &arguments,
        .num_devices = 1,
        .num_args = n_in,
        .output_lists = &outputs,
    };

    memset(ret, 0, program->outputs * sizeof(*ret));
    return fail(p->api, p->api->PJRT_LoadedExecutable_Execute(&execute), "running a step", err);
}

extern const struct pl_pjrt_table pl_pjrt_table;

__attribute__((visibility("default"))) const struct pl_pjrt_table pl_pjrt_table = {
    .version = PL_PJRT_TABLE_VERSION,
    .open = pjrt_open,
    .close = pjrt_close,
    .platform = pjrt_platform,
    .compile = pjrt_compile,
    .program_free = pjrt_program_free,
    .upload = pjrt_upload,
    .download = pjrt_download,
    .array_free = pjrt_array_free,
    .run = pjrt_run,
};
