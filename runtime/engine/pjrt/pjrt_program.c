/* SPDX-License-Identifier: MIT */
#include "runtime/engine/pjrt/pjrt_private.h"

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
    char bytes[3 * PL_PJRT_DEVICES_MAX + 64];
    size_t n;
};

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

/* executable_build_options (3) with num_replicas (4), num_partitions (5) and device_assignment (9):
 * replica_count (1), computation_count (2) and a computation (3) with its devices (1). */
static int compile_options(const struct pl_pjrt *p, struct options *ret, struct pl_error *err)
{
    struct options devices = {0}, computation = {0}, assignment = {0}, build = {0};

    for (size_t i = 0; i < p->n; i++) {
        PJRT_Device_GetDescription_Args describe = {
            .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = p->devices[i]};
        PJRT_DeviceDescription_Id_Args id = {.struct_size =
                                                 PJRT_DeviceDescription_Id_Args_STRUCT_SIZE};
        int r =
            pl_pjrt_fail(p->api, p->api->PJRT_Device_GetDescription(&describe), "a device", err);

        id.device_description = describe.device_description;
        if (r == 0)
            r = pl_pjrt_fail(p->api, p->api->PJRT_DeviceDescription_Id(&id), "a device's number",
                             err);
        if (r < 0)
            return r;
        if (id.id < 0 || id.id >= 1 << 14)
            return pl_error_set(err, -ENOTSUP, "the XLA device has number %d, not one below %d",
                                id.id, 1 << 14);
        add_number(&devices, (unsigned)id.id);
    }
    add_message(&computation, 0x0a, &devices);
    add_field(&assignment, 0x08, (unsigned)p->n);
    add_field(&assignment, 0x10, 1);
    add_message(&assignment, 0x1a, &computation);
    add_field(&build, 0x20, (unsigned)p->n);
    add_field(&build, 0x28, 1);
    add_message(&build, 0x4a, &assignment);
    *ret = (struct options){0};
    add_message(ret, 0x1a, &build);
    return 0;
}

int pl_pjrt_compile(struct pl_pjrt *p,
                    const char *text,
                    size_t len,
                    size_t outputs,
                    struct pl_pjrt_program **ret,
                    struct pl_error *err)
{
    PJRT_Program code = {.struct_size = PJRT_Program_STRUCT_SIZE,
                         .code = (char *)(uintptr_t)text,
                         .code_size = len,
                         .format = "mlir",
                         .format_size = strlen("mlir")};
    struct options options;
    PJRT_Client_Compile_Args compile = {
        .struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE, .client = p->client, .program = &code};
    struct pl_pjrt_program *program = calloc(1, sizeof(*program));
    int r = program ? compile_options(p, &options, err) : pl_error_nomem(err);

    if (r == 0) {
        compile.compile_options = options.bytes;
        compile.compile_options_size = options.n;
        r = pl_pjrt_fail(p->api, p->api->PJRT_Client_Compile(&compile), "compiling", err);
    }
    if (r < 0) {
        free(program);
        return r;
    }
    program->executable = compile.executable;
    program->outputs = outputs;
    *ret = program;
    return 0;
}
