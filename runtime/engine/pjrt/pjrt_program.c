/* SPDX-License-Identifier: MIT */
#include "runtime/engine/pjrt/pjrt_private.h"

#include <dlfcn.h>
#include <sys/stat.h>

void pl_pjrt_program_free(struct pl_pjrt *p, struct pl_pjrt_program *program)
{
    PJRT_LoadedExecutable_Destroy_Args destroy = {
        .struct_size = PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE};

    if (!program)
        return;
    destroy.executable = program->executable;
    pl_pjrt_fail(p->api, p->api->PJRT_LoadedExecutable_Destroy(&destroy), "end of a program", NULL);
    free(program);
}

/* A serialized CompileOptionsProto (xla/pjrt/proto/compile_options.proto). Numbers are below 2^14.
 */
struct options {
    char *bytes;
    size_t n;
};

/* So many bytes are enough for the devices of all hosts, and all around them. */
static size_t options_room(const struct pl_pjrt *p)
{
    return 3 * p->n * (p->hosts ? p->hosts->n : 1) + 64;
}

static void add_number(struct options *o, unsigned number)
{
    if (number > 0x7f)
        o->bytes[o->n++] = (char)((number & 0x7f) | 0x80);
    o->bytes[o->n++] = (char)(number > 0x7f ? number >> 7 : number);
}

static void add_message(struct options *o, unsigned key, const struct options *message)
{
    add_number(o, key);
    add_number(o, (unsigned)message->n);
    memcpy(o->bytes + o->n, message->bytes, message->n);
    o->n += message->n;
}

static void add_field(struct options *o, unsigned key, unsigned number)
{
    add_number(o, key);
    add_number(o, number);
}

static int
add_device(const struct pl_pjrt *p, PJRT_Device *device, struct options *to, struct pl_error *err)
{
    PJRT_Device_GetDescription_Args describe = {
        .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = device};
    PJRT_DeviceDescription_Id_Args id = {.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE};
    int r = pl_pjrt_fail(p->api, p->api->PJRT_Device_GetDescription(&describe), "a device", err);

    id.device_description = describe.device_description;
    if (r == 0)
        r = pl_pjrt_fail(p->api, p->api->PJRT_DeviceDescription_Id(&id), "a device's number", err);
    if (r < 0)
        return r;
    if (id.id < 0 || id.id >= 1 << 14)
        return pl_error_set(err, -ENOTSUP, "the XLA device has number %d, not one below %d", id.id,
                            1 << 14);
    add_number(to, (unsigned)id.id);
    return 0;
}

/* executable_build_options (3) with num_replicas (4), num_partitions (5) and device_assignment (9):
 * replica_count (1), computation_count (2) and a computation (3) with its devices (1). The caller
 * frees ret->bytes. */
static int
compile_options(const struct pl_pjrt *p, bool everywhere, struct options *ret, struct pl_error *err)
{
    size_t room = options_room(p), n = everywhere && p->everywhere ? p->n * p->hosts->n : p->n;
    PJRT_Device *const *list = everywhere && p->everywhere ? p->everywhere : p->devices;
    _cleanup_free_ char *memory = malloc(4 * room);
    struct options devices = {0}, computation = {0}, assignment = {0}, build = {0};
    int r = 0;

    *ret = (struct options){.bytes = malloc(room)};
    if (!memory || !ret->bytes)
        return pl_error_nomem(err);
    devices.bytes = memory;
    computation.bytes = memory + room;
    assignment.bytes = memory + 2 * room;
    build.bytes = memory + 3 * room;
    for (size_t i = 0; i < n && r == 0; i++)
        r = add_device(p, list[i], &devices, err);
    add_message(&computation, 0x0a, &devices);
    add_field(&assignment, 0x08, (unsigned)n);
    add_field(&assignment, 0x10, 1);
    add_message(&assignment, 0x1a, &computation);
    add_field(&build, 0x20, (unsigned)n);
    add_field(&build, 0x28, 1);
    add_message(&build, 0x4a, &assignment);
    add_message(ret, 0x1a, &build);
    return r;
}

int pl_pjrt_compile(struct pl_pjrt *p,
                    const char *text,
                    size_t len,
                    bool everywhere,
                    size_t outputs,
                    struct pl_pjrt_program **ret,
                    struct pl_error *err)
{
    PJRT_Program code = {.struct_size = PJRT_Program_STRUCT_SIZE,
                         .code = (char *)(uintptr_t)text,
                         .code_size = len,
                         .format = "mlir",
                         .format_size = strlen("mlir")};
    struct options options = {0};
    PJRT_Client_Compile_Args compile = {
        .struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE, .client = p->client, .program = &code};
    struct pl_pjrt_program *program = calloc(1, sizeof(*program));
    int r = program ? compile_options(p, everywhere, &options, err) : pl_error_nomem(err);

    if (r == 0) {
        compile.compile_options = options.bytes;
        compile.compile_options_size = options.n;
        r = pl_pjrt_fail(p->api, p->api->PJRT_Client_Compile(&compile), "compiling", err);
    }
    free(options.bytes);
    if (r < 0) {
        free(program);
        return r;
    }
    program->executable = compile.executable;
    program->outputs = outputs;
    *ret = program;
    return 0;
}

/* ---- programs as bytes ---- */

/* The functions are there, which older plugins end before. */
static bool has_bytes(const struct pl_pjrt *p)
{
    return p->api->struct_size >= PJRT_STRUCT_SIZE(PJRT_Api, PJRT_Executable_DeserializeAndLoad) &&
           p->api->PJRT_LoadedExecutable_GetExecutable && p->api->PJRT_Executable_NumOutputs &&
           p->api->PJRT_Executable_Serialize && p->api->PJRT_Executable_DeserializeAndLoad;
}

static int get_executable(const struct pl_pjrt *p,
                          PJRT_LoadedExecutable *loaded,
                          PJRT_Executable **ret,
                          struct pl_error *err)
{
    PJRT_LoadedExecutable_GetExecutable_Args get = {
        .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE,
        .loaded_executable = loaded};
    int r = pl_pjrt_fail(p->api, p->api->PJRT_LoadedExecutable_GetExecutable(&get),
                         "a compiled program", err);

    *ret = get.executable;
    return r;
}

static void put_executable(const struct pl_pjrt *p, PJRT_Executable *executable)
{
    PJRT_Executable_Destroy_Args destroy = {.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE,
                                            .executable = executable};

    pl_pjrt_fail(p->api, p->api->PJRT_Executable_Destroy(&destroy), "end of a program", NULL);
}

int pl_pjrt_save(struct pl_pjrt *p,
                 const struct pl_pjrt_program *program,
                 struct pl_buf *to,
                 struct pl_error *err)
{
    PJRT_Executable_Serialize_Args bytes = {.struct_size =
                                                PJRT_Executable_Serialize_Args_STRUCT_SIZE};
    PJRT_Executable *executable = NULL;
    int r = has_bytes(p)
                ? get_executable(p, program->executable, &executable, err)
                : pl_error_set(err, -ENOTSUP, "the PJRT plugin cannot save compiled programs");

    if (r < 0)
        return r;
    bytes.executable = executable;
    r = pl_pjrt_fail(p->api, p->api->PJRT_Executable_Serialize(&bytes), "saving a program", err);
    if (r == 0) {
        if (pl_buf_add(to, bytes.serialized_bytes, bytes.serialized_bytes_size) < 0)
            r = pl_error_nomem(err);
        bytes.serialized_executable_deleter(bytes.serialized_executable);
    }
    put_executable(p, executable);
    return r;
}

static int check_outputs(const struct pl_pjrt *p,
                         PJRT_LoadedExecutable *loaded,
                         size_t outputs,
                         struct pl_error *err)
{
    PJRT_Executable_NumOutputs_Args count = {.struct_size =
                                                 PJRT_Executable_NumOutputs_Args_STRUCT_SIZE};
    int r = get_executable(p, loaded, &count.executable, err);

    if (r < 0)
        return r;
    r = pl_pjrt_fail(p->api, p->api->PJRT_Executable_NumOutputs(&count), "a compiled program", err);
    if (r == 0 && count.num_outputs != outputs)
        r = pl_error_set(err, -EIO, "it has %zu results, not %zu", count.num_outputs, outputs);
    put_executable(p, count.executable);
    return r;
}

int pl_pjrt_load(struct pl_pjrt *p,
                 const char *data,
                 size_t len,
                 size_t outputs,
                 struct pl_pjrt_program **ret,
                 struct pl_error *err)
{
    PJRT_Executable_DeserializeAndLoad_Args load = {
        .struct_size = PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE,
        .client = p->client,
        .serialized_executable = data,
        .serialized_executable_size = len};
    struct pl_pjrt_program *program;
    int r = has_bytes(p)
                ? 0
                : pl_error_set(err, -ENOTSUP, "the PJRT plugin cannot load compiled programs");

    if (r == 0)
        r = pl_pjrt_fail(p->api, p->api->PJRT_Executable_DeserializeAndLoad(&load),
                         "loading a program", err);
    if (r < 0)
        return r;
    program = calloc(1, sizeof(*program));
    if (!program)
        return pl_error_nomem(err);
    *program = (struct pl_pjrt_program){.executable = load.loaded_executable, .outputs = outputs};
    r = check_outputs(p, program->executable, outputs, err);
    if (r < 0)
        pl_pjrt_program_free(p, program);
    else
        *ret = program;
    return r;
}

/* ---- identity ---- */

/* XLA's CPU compiles for the processor that it runs on. */
static int add_processor(struct pl_buf *to)
{
    FILE *f = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t size = 0;
    int r = 0;

    while (f && r == 0 && getline(&line, &size, f) > 0)
        if (strncmp(line, "model name", 10) == 0 || strncmp(line, "flags", 5) == 0 ||
            strncmp(line, "Features", 8) == 0 || strncmp(line, "CPU part", 8) == 0)
            r = pl_buf_adds(to, line);
        else if (strcmp(line, "\n") == 0) /* the first processor's end */
            break;
    free(line);
    if (f)
        fclose(f);
    return r;
}

/* The plugin's file: another build is another one. */
static int add_file(const struct pl_pjrt *p, struct pl_buf *to)
{
    Dl_info info;
    struct stat st;

    if (!dladdr(p->api->PJRT_Client_Create, &info) || !info.dli_fname ||
        stat(info.dli_fname, &st) < 0)
        return 0;
    return pl_buf_addf(to, "%lld bytes of %lld.%09ld\n", (long long)st.st_size,
                       (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

static int add_devices(struct pl_pjrt *p, bool everywhere, struct pl_error *err)
{
    struct options options = {0};
    int r = compile_options(p, everywhere, &options, err);
    bool full = false;

    for (size_t i = 0; i < options.n && r == 0 && !full; i++)
        full = pl_buf_addf(&p->identity, "%02x", (unsigned char)options.bytes[i]) < 0;
    full = full || pl_buf_addc(&p->identity, '\n') < 0;
    free(options.bytes);
    return r < 0 ? r : full ? pl_error_nomem(err) : 0;
}

int pl_pjrt_identify(struct pl_pjrt *p, struct pl_error *err)
{
    PJRT_Client_PlatformVersion_Args version = {
        .struct_size = PJRT_Client_PlatformVersion_Args_STRUCT_SIZE, .client = p->client};
    PJRT_Device_GetDescription_Args describe = {
        .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = p->devices[0]};
    PJRT_DeviceDescription_Kind_Args kind = {.struct_size =
                                                 PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE};
    int r = pl_pjrt_fail(p->api, p->api->PJRT_Client_PlatformVersion(&version),
                         "version of the platform", err);

    if (r == 0)
        r = pl_pjrt_fail(p->api, p->api->PJRT_Device_GetDescription(&describe), "a device", err);
    kind.device_description = describe.device_description;
    if (r == 0)
        r = pl_pjrt_fail(p->api, p->api->PJRT_DeviceDescription_Kind(&kind), "a device's kind",
                         err);
    if (r < 0)
        return r;
    if (pl_buf_addf(&p->identity, "%s %.*s\n%.*s\nPJRT %d.%d\n", p->platform,
                    (int)version.platform_version_size, version.platform_version,
                    (int)kind.device_kind_size, kind.device_kind,
                    p->api->pjrt_api_version.major_version,
                    p->api->pjrt_api_version.minor_version) < 0)
        return pl_error_nomem(err);
    for (int everywhere = 0; everywhere < 1 + (p->everywhere != NULL) && r == 0; everywhere++)
        r = add_devices(p, everywhere, err);
    if (r < 0)
        return r;
    if (add_file(p, &p->identity) < 0 ||
        (strcmp(p->platform, "cpu") == 0 && add_processor(&p->identity) < 0))
        return pl_error_nomem(err);
    return 0;
}
