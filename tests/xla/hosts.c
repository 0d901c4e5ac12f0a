/* SPDX-License-Identifier: MIT */
/* A plugin of PJRT around that at $PJRT_PLUGIN, in which the processes of several hosts run
 * programs together, with $HOSTS_DEVICES devices each: every process has the devices of all, tells
 * the others what its own get (by the callbacks, as a TPU would by its network), and runs the whole
 * program. $HOSTS_KNOWN: the plugin knows the hosts by itself, and numbers them from the last rank
 * to the first; else it must be told. $HOSTS_ALONE=RANK: this rank's sees itself only. */
#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT_MS 20000
#define ALL_MAX 64

struct own_error {
    PJRT_Error_Code code;
    char text[1024];
};

static const PJRT_Api *real;
static PJRT_Api api;
static struct own_error own_error; /* the only one at a time */
static PJRT_Client_Create_Args kv; /* the callbacks */
static int node, n_nodes = 1, per, steps;
static PJRT_Client *client;

static void stop(const char *what)
{
    fprintf(stderr, "hosts: %s\n", what);
    abort();
}

/* The real plugin's calls do not fail here. */
static void need(PJRT_Error *error)
{
    if (error)
        stop("a call of the real plugin failed");
}

/* ---- errors ---- */

static PJRT_Error *make_error(PJRT_Error_Code code, const char *text, size_t len)
{
    own_error.code = code;
    snprintf(own_error.text, sizeof(own_error.text), "%.*s", (int)len, text);
    return (PJRT_Error *)&own_error;
}

static PJRT_CallbackError make = make_error;

static void message(PJRT_Error_Message_Args *args)
{
    if ((const struct own_error *)args->error != &own_error) {
        real->PJRT_Error_Message(args);
        return;
    }
    args->message = own_error.text;
    args->message_size = strlen(own_error.text);
}

static void destroy_error(PJRT_Error_Destroy_Args *args)
{
    if ((struct own_error *)args->error != &own_error)
        real->PJRT_Error_Destroy(args);
}

/* ---- the other hosts ---- */

static PJRT_Error *put(const char *key, const char *value, size_t len)
{
    PJRT_KeyValuePutCallback_Args args = {.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
                                          .key = key,
                                          .key_size = strlen(key),
                                          .value = value,
                                          .value_size = len,
                                          .callback_error = &make,
                                          .user_arg = kv.kv_put_user_arg};

    return kv.kv_put_callback(&args);
}

/* The caller frees *ret. */
static PJRT_Error *get(const char *key, char **ret, size_t *ret_len)
{
    PJRT_KeyValueGetCallback_Args args = {.struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
                                          .key = key,
                                          .key_size = strlen(key),
                                          .timeout_in_ms = TIMEOUT_MS,
                                          .callback_error = &make,
                                          .user_arg = kv.kv_get_user_arg};
    PJRT_Error *error = kv.kv_get_callback(&args);

    if (error)
        return error;
    *ret = malloc(args.value_size + 1);
    if (!*ret)
        stop("out of memory");
    memcpy(*ret, args.value, args.value_size);
    (*ret)[args.value_size] = '\0';
    *ret_len = args.value_size;
    args.value_deleter_callback(args.value);
    return NULL;
}

/* As XLA's topologies: the first process gets those of all, and makes one of them, which all get.
 */
static PJRT_Error *meet(void)
{
    PJRT_KeyValueTryGetCallback_Args early = {.struct_size =
                                                  PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE,
                                              .key = "nobody",
                                              .key_size = 6,
                                              .callback_error = &make,
                                              .user_arg = kv.kv_try_get_user_arg};
    PJRT_Error *error = kv.kv_try_get_callback(&early);
    char key[64], text[64], *value;
    int all = 0;
    size_t len;

    if (error == (PJRT_Error *)&own_error && own_error.code == PJRT_Error_Code_CANCELLED)
        return error; /* another host has given up */
    if (error != (PJRT_Error *)&own_error || own_error.code != PJRT_Error_Code_NOT_FOUND)
        stop("a key that nobody has put is there");
    snprintf(key, sizeof(key), "local/%d", node);
    snprintf(text, sizeof(text), "%d", per);
    error = put(key, text, strlen(text));
    for (int i = 0; i < n_nodes && !error && node == 0; i++) {
        snprintf(key, sizeof(key), "local/%d", i);
        error = get(key, &value, &len);
        if (!error) {
            all += (int)strtol(value, NULL, 10);
            free(value);
        }
    }
    snprintf(text, sizeof(text), "%d", all);
    if (!error && node == 0)
        error = put("global", text, strlen(text));
    if (!error && node == 0) { /* once is enough */
        error = put("global", text, strlen(text));
        if (error != (PJRT_Error *)&own_error || own_error.code != PJRT_Error_Code_ALREADY_EXISTS)
            stop("a key is put twice");
        error = NULL;
    }
    if (!error)
        error = get("global", &value, &len);
    if (error)
        return error;
    if (strtol(value, NULL, 10) != (long)per * n_nodes)
        stop("the hosts have other devices");
    free(value);
    return NULL;
}

static void find_hosts(const PJRT_Client_Create_Args *args)
{
    const char *alone = getenv("HOSTS_ALONE"), *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");

    per = (int)strtol(getenv("HOSTS_DEVICES"), NULL, 10);
    node = 0;
    n_nodes = 1;
    if (alone && rank && strcmp(alone, rank) == 0)
        return;
    if (getenv("HOSTS_KNOWN")) {
        n_nodes = (int)strtol(size, NULL, 10);
        node = n_nodes - 1 - (int)strtol(rank, NULL, 10);
    }
    for (size_t i = 0; i < args->num_options; i++)
        if (strcmp(args->create_options[i].name, "node_id") == 0)
            node = (int)args->create_options[i].int64_value;
        else if (strcmp(args->create_options[i].name, "num_nodes") == 0)
            n_nodes = (int)args->create_options[i].int64_value;
}

static PJRT_Error *create(PJRT_Client_Create_Args *args)
{
    PJRT_NamedValue count = {.struct_size = PJRT_NamedValue_STRUCT_SIZE,
                             .name = "cpu_device_count",
                             .name_size = strlen("cpu_device_count"),
                             .type = PJRT_NamedValue_kInt64,
                             .value_size = 1};
    PJRT_Error *error = NULL;

    find_hosts(args);
    kv = *args;
    if (n_nodes > 1)
        error = meet();
    count.int64_value = (int64_t)per * n_nodes;
    args->create_options = &count;
    args->num_options = 1;
    if (!error)
        error = real->PJRT_Client_Create(args);
    client = args->client;
    return error;
}

/* ---- devices ---- */

static int number_of(PJRT_Device *device)
{
    PJRT_Device_GetDescription_Args describe = {
        .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = device};
    PJRT_DeviceDescription_Id_Args id = {.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE};

    need(real->PJRT_Device_GetDescription(&describe));
    id.device_description = describe.device_description;
    need(real->PJRT_DeviceDescription_Id(&id));
    return id.id;
}

static PJRT_Error *own_devices(PJRT_Client_AddressableDevices_Args *args)
{
    PJRT_Error *error = real->PJRT_Client_AddressableDevices(args);

    args->addressable_devices += node * per;
    args->num_addressable_devices = (size_t)per;
    return error;
}

static PJRT_Error *own_process(PJRT_Client_ProcessIndex_Args *args)
{
    args->process_index = node;
    return NULL;
}

static PJRT_Error *process_of(PJRT_DeviceDescription_ProcessIndex_Args *args)
{
    PJRT_DeviceDescription_Id_Args id = {.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE,
                                         .device_description = args->device_description};

    need(real->PJRT_DeviceDescription_Id(&id));
    args->process_index = id.id / per;
    return NULL;
}

/* ---- running ---- */

static size_t bytes_of(PJRT_Buffer *buffer)
{
    PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                          .src = buffer};

    need(real->PJRT_Buffer_ToHostBuffer(&copy));
    return copy.dst_size;
}

static void download(PJRT_Buffer *buffer, void *to, size_t bytes)
{
    int64_t order[8];
    PJRT_Buffer_Dimensions_Args shape = {.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
                                         .buffer = buffer};
    PJRT_Buffer_MemoryLayout layout = {
        .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
        .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
        .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                  .minor_to_major = order}};
    PJRT_Buffer_ToHostBuffer_Args copy = {.struct_size = PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE,
                                          .src = buffer,
                                          .host_layout = &layout,
                                          .dst = to,
                                          .dst_size = bytes};
    PJRT_Event_Await_Args wait = {.struct_size = PJRT_Event_Await_Args_STRUCT_SIZE};
    PJRT_Event_Destroy_Args done = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE};

    need(real->PJRT_Buffer_Dimensions(&shape));
    for (size_t i = 0; i < shape.num_dims; i++)
        order[i] = (int64_t)(shape.num_dims - 1 - i);
    layout.tiled.minor_to_major_size = shape.num_dims;
    need(real->PJRT_Buffer_ToHostBuffer(&copy));
    wait.event = done.event = copy.event;
    need(real->PJRT_Event_Await(&wait));
    need(real->PJRT_Event_Destroy(&done));
}

static PJRT_Buffer *upload(PJRT_Buffer *like, PJRT_Device *device, const void *from)
{
    PJRT_Buffer_Dimensions_Args shape = {.struct_size = PJRT_Buffer_Dimensions_Args_STRUCT_SIZE,
                                         .buffer = like};
    PJRT_Buffer_ElementType_Args type = {.struct_size = PJRT_Buffer_ElementType_Args_STRUCT_SIZE,
                                         .buffer = like};
    PJRT_Client_BufferFromHostBuffer_Args copy = {
        .struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE,
        .client = client,
        .data = from,
        .host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall,
        .device = device};
    PJRT_Event_Destroy_Args done = {.struct_size = PJRT_Event_Destroy_Args_STRUCT_SIZE};

    need(real->PJRT_Buffer_Dimensions(&shape));
    need(real->PJRT_Buffer_ElementType(&type));
    copy.type = type.type;
    copy.dims = shape.dims;
    copy.num_dims = shape.num_dims;
    need(real->PJRT_Client_BufferFromHostBuffer(&copy));
    done.event = copy.done_with_host_buffer;
    need(real->PJRT_Event_Destroy(&done));
    return copy.buffer;
}

static void destroy(PJRT_Buffer *buffer)
{
    PJRT_Buffer_Destroy_Args args = {.struct_size = PJRT_Buffer_Destroy_Args_STRUCT_SIZE,
                                     .buffer = buffer};

    need(real->PJRT_Buffer_Destroy(&args));
}

/* The arguments of the devices of a process: argument by argument, device by device. */
static char *pack(const PJRT_LoadedExecutable_Execute_Args *args, size_t *ret_len)
{
    size_t len = 0, at = 0;
    char *all;

    for (size_t i = 0; i < args->num_args; i++)
        len += args->num_devices * bytes_of(args->argument_lists[0][i]);
    all = malloc(len + 1);
    if (!all)
        stop("out of memory");
    for (size_t i = 0; i < args->num_args; i++)
        for (size_t d = 0; d < args->num_devices; d++) {
            size_t bytes = bytes_of(args->argument_lists[d][i]);

            download(args->argument_lists[d][i], all + at, bytes);
            at += bytes;
        }
    *ret_len = len;
    return all;
}

/* The arguments of a device of another process, the k-th of it. */
static void unpack(const PJRT_LoadedExecutable_Execute_Args *args,
                   const char *all,
                   size_t k,
                   PJRT_Device *device,
                   PJRT_Buffer **ret)
{
    for (size_t i = 0; i < args->num_args; i++) {
        size_t bytes = bytes_of(args->argument_lists[0][i]);

        ret[i] = upload(args->argument_lists[0][i], device, all + k * bytes);
        all += args->num_devices * bytes;
    }
}

static size_t outputs_of(PJRT_LoadedExecutable *loaded)
{
    PJRT_LoadedExecutable_GetExecutable_Args got = {
        .struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE,
        .loaded_executable = loaded};
    PJRT_Executable_NumOutputs_Args count = {.struct_size =
                                                 PJRT_Executable_NumOutputs_Args_STRUCT_SIZE};
    PJRT_Executable_Destroy_Args done = {.struct_size = PJRT_Executable_Destroy_Args_STRUCT_SIZE};

    need(real->PJRT_LoadedExecutable_GetExecutable(&got));
    count.executable = done.executable = got.executable;
    need(real->PJRT_Executable_NumOutputs(&count));
    need(real->PJRT_Executable_Destroy(&done));
    return count.num_outputs;
}

static PJRT_Error *execute(PJRT_LoadedExecutable_Execute_Args *args)
{
    PJRT_LoadedExecutable_AddressableDevices_Args on = {
        .struct_size = PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE,
        .executable = args->executable};
    PJRT_LoadedExecutable_Execute_Args whole = *args;
    PJRT_Buffer **in[ALL_MAX], **out[ALL_MAX];
    char *packed[ALL_MAX] = {NULL}, key[64];
    size_t n_out, len, seen[ALL_MAX] = {0};
    PJRT_Error *error;

    need(real->PJRT_LoadedExecutable_AddressableDevices(&on));
    if (n_nodes == 1 || on.num_addressable_devices == args->num_devices)
        return real->PJRT_LoadedExecutable_Execute(args);
    if (on.num_addressable_devices != (size_t)(per * n_nodes))
        stop("a program is for other devices than all");
    packed[node] = pack(args, &len);
    snprintf(key, sizeof(key), "step/%d/%d", ++steps, node);
    error = put(key, packed[node], len);
    for (int i = 0; i < n_nodes && !error; i++) {
        snprintf(key, sizeof(key), "step/%d/%d", steps, i);
        if (i != node)
            error = get(key, &packed[i], &len);
    }
    n_out = outputs_of(args->executable);
    for (size_t k = 0; k < on.num_addressable_devices && !error; k++) {
        int of = number_of(on.addressable_devices[k]) / per;

        in[k] = calloc(args->num_args + 1, sizeof(*in[k]));
        out[k] = calloc(n_out + 1, sizeof(*out[k]));
        if (!in[k] || !out[k])
            stop("out of memory");
        if (of == node)
            memcpy(in[k], args->argument_lists[seen[of]], args->num_args * sizeof(*in[k]));
        else
            unpack(args, packed[of], seen[of], on.addressable_devices[k], in[k]);
        seen[of]++;
    }
    whole.argument_lists = (PJRT_Buffer *const *const *)in;
    whole.output_lists = out;
    whole.num_devices = on.num_addressable_devices;
    if (!error)
        need(real->PJRT_LoadedExecutable_Execute(&whole));
    memset(seen, 0, sizeof(seen));
    for (size_t k = 0; k < on.num_addressable_devices && !error; k++) {
        int of = number_of(on.addressable_devices[k]) / per;

        if (of == node)
            memcpy(args->output_lists[seen[of]], out[k], n_out * sizeof(*out[k]));
        for (size_t i = 0; i < args->num_args && of != node; i++)
            destroy(in[k][i]);
        for (size_t i = 0; i < n_out && of != node; i++)
            destroy(out[k][i]);
        seen[of]++;
        free(in[k]);
        free(out[k]);
    }
    for (int i = 0; i < n_nodes; i++)
        free(packed[i]);
    return error;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void);

const PJRT_Api *GetPjrtApi(void)
{
    void *handle = dlopen(getenv("PJRT_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    const PJRT_Api *(*entry)(void) = NULL;

    if (handle)
        *(void **)&entry = dlsym(handle, "GetPjrtApi");
    real = entry ? entry() : NULL;
    if (!real)
        return NULL;
    memcpy(&api, real, real->struct_size < sizeof(api) ? real->struct_size : sizeof(api));
    api.PJRT_Error_Message = message;
    api.PJRT_Error_Destroy = destroy_error;
    api.PJRT_Client_Create = create;
    api.PJRT_Client_AddressableDevices = own_devices;
    api.PJRT_Client_ProcessIndex = own_process;
    api.PJRT_DeviceDescription_ProcessIndex = process_of;
    api.PJRT_LoadedExecutable_Execute = execute;
    return &api;
}
