/* SPDX-License-Identifier: MIT */
/* Clients of several hosts: what the plugin has to say to the others goes through our hosts' store,
 * and the devices of all are put in the order of our hosts. */
#include "runtime/engine/pjrt/pjrt_private.h"

#include <errno.h>

#define TIMEOUT_MS 120000 /* for the other hosts to open their devices */

/* ---- the plugin's callbacks ---- */

static PJRT_Error_Code code_of(int r)
{
    switch (r) {
    case -ETIMEDOUT:
        return PJRT_Error_Code_DEADLINE_EXCEEDED;
    case -ENOENT:
        return PJRT_Error_Code_NOT_FOUND;
    case -EEXIST:
        return PJRT_Error_Code_ALREADY_EXISTS;
    case -EMSGSIZE:
        return PJRT_Error_Code_INVALID_ARGUMENT;
    case -ENOMEM:
    case -ENOSPC:
        return PJRT_Error_Code_RESOURCE_EXHAUSTED;
    case -ECANCELED:
        return PJRT_Error_Code_CANCELLED;
    default:
        return PJRT_Error_Code_UNAVAILABLE;
    }
}

static PJRT_Error *fail(PJRT_CallbackError *make, int r, const struct pl_error *err)
{
    const char *text = pl_error_text(err);

    return (*make)(code_of(r), text, strlen(text));
}

/* A client that is started once more puts its keys again. */
static int name_key(const struct pl_pjrt *p, const char *key, size_t len, struct pl_buf *ret)
{
    return pl_buf_addf(ret, "pjrt-%u/", p->starts) < 0 || pl_buf_add(ret, key, len) < 0 ? -ENOMEM
                                                                                        : 0;
}

static void delete_value(char *value)
{
    free(value);
}

static PJRT_Error *get_value(struct pl_pjrt *p,
                             const char *key,
                             size_t key_len,
                             unsigned timeout_ms,
                             PJRT_CallbackError *make,
                             char **ret,
                             size_t *ret_len)
{
    _cleanup_(pl_buf_finish) struct pl_buf name = {0};
    struct pl_error err = {0};
    int r = name_key(p, key, key_len, &name);

    r = r < 0 ? pl_error_nomem(&err)
              : p->hosts->get(p->hosts->ctx, name.data, name.len, timeout_ms, ret, ret_len, &err);
    return r < 0 ? fail(make, r, &err) : NULL;
}

static PJRT_Error *on_get(PJRT_KeyValueGetCallback_Args *args)
{
    args->value_deleter_callback = delete_value;
    return get_value(args->user_arg, args->key, args->key_size,
                     (unsigned)PL_MAX(args->timeout_in_ms, 1), args->callback_error, &args->value,
                     &args->value_size);
}

static PJRT_Error *on_try_get(PJRT_KeyValueTryGetCallback_Args *args)
{
    args->value_deleter_callback = delete_value;
    return get_value(args->user_arg, args->key, args->key_size, 0, args->callback_error,
                     &args->value, &args->value_size);
}

static PJRT_Error *on_put(PJRT_KeyValuePutCallback_Args *args)
{
    struct pl_pjrt *p = args->user_arg;
    _cleanup_(pl_buf_finish) struct pl_buf name = {0};
    struct pl_error err = {0};
    int r = name_key(p, args->key, args->key_size, &name);

    r = r < 0 ? pl_error_nomem(&err)
              : p->hosts->put(p->hosts->ctx, name.data, name.len, args->value, args->value_size,
                              &err);
    return r < 0 ? fail(args->callback_error, r, &err) : NULL;
}

void pl_pjrt_set_callbacks(struct pl_pjrt *p, PJRT_Client_Create_Args *create)
{
    p->starts++;
    create->kv_get_callback = on_get;
    create->kv_put_callback = on_put;
    create->kv_try_get_callback = on_try_get;
    create->kv_get_user_arg = create->kv_put_user_arg = create->kv_try_get_user_arg = p;
}

/* ---- the devices ---- */

static int process_of(const struct pl_pjrt *p, PJRT_Device *device, int *ret, struct pl_error *err)
{
    PJRT_Device_GetDescription_Args describe = {
        .struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE, .device = device};
    PJRT_DeviceDescription_ProcessIndex_Args process = {
        .struct_size = PJRT_DeviceDescription_ProcessIndex_Args_STRUCT_SIZE};
    int r = pl_pjrt_fail(p->api, p->api->PJRT_Device_GetDescription(&describe), "a device", err);

    process.device_description = describe.device_description;
    if (r == 0)
        r = pl_pjrt_fail(p->api, p->api->PJRT_DeviceDescription_ProcessIndex(&process),
                         "a device's process", err);
    *ret = process.process_index;
    return r;
}

static int list_all(const struct pl_pjrt *p, PJRT_Client_Devices_Args *ret, struct pl_error *err)
{
    *ret = (PJRT_Client_Devices_Args){.struct_size = PJRT_Client_Devices_Args_STRUCT_SIZE,
                                      .client = p->client};
    return pl_pjrt_fail(p->api, p->api->PJRT_Client_Devices(ret), "list of devices", err);
}

int pl_pjrt_processes(const struct pl_pjrt *p, size_t *ret, struct pl_error *err)
{
    PJRT_Client_Devices_Args all;
    size_t n = 0;
    int r = list_all(p, &all, err), process, other;

    for (size_t i = 0; i < all.num_devices && r == 0; i++) {
        bool known = false;

        r = process_of(p, all.devices[i], &process, err);
        for (size_t k = 0; k < i && r == 0 && !known; k++) {
            r = process_of(p, all.devices[k], &other, err);
            known = other == process;
        }
        n += !known;
    }
    *ret = n;
    return r;
}

/* The plugin's number of each host's process. Ours may come in another order. */
static int share_process(const struct pl_pjrt *p, int *ret, struct pl_error *err)
{
    const struct pl_pjrt_hosts *h = p->hosts;
    PJRT_Client_ProcessIndex_Args own = {.struct_size = PJRT_Client_ProcessIndex_Args_STRUCT_SIZE,
                                         .client = p->client};
    char key[32], text[16];
    int r = pl_pjrt_fail(p->api, p->api->PJRT_Client_ProcessIndex(&own), "own process", err);

    snprintf(key, sizeof(key), "plume/process-%u", h->index);
    snprintf(text, sizeof(text), "%d", own.process_index);
    if (r == 0)
        r = h->put(h->ctx, key, strlen(key), text, strlen(text), err);
    for (unsigned i = 0; i < h->n && r == 0; i++) {
        _cleanup_free_ char *value = NULL;
        size_t len;

        snprintf(key, sizeof(key), "plume/process-%u", i);
        r = h->get(h->ctx, key, strlen(key), TIMEOUT_MS, &value, &len, err);
        ret[i] = r == 0 ? (int)strtol(value, NULL, 10) : -1;
        for (unsigned k = 0; k < i && r == 0; k++)
            if (ret[k] == ret[i])
                r = pl_error_set(
                    err, -ENODEV,
                    "ranks %u and %u are both process %d of the PJRT plugin: start one "
                    "rank on each host, and let the plugin know of all hosts",
                    k, i, ret[i]);
    }
    return r;
}

/* Adds the chosen devices of a process to p->everywhere. */
static int add_process(struct pl_pjrt *p,
                       const PJRT_Client_Devices_Args *all,
                       unsigned host,
                       int wanted,
                       const unsigned *list,
                       struct pl_error *err)
{
    size_t seen = 0, found = 0;
    int r = 0, process;

    for (size_t i = 0; i < all->num_devices && r == 0; i++) {
        r = process_of(p, all->devices[i], &process, err);
        if (r < 0 || process != wanted)
            continue;
        for (size_t k = 0; k < p->n; k++)
            if ((list ? list[k] : k) == seen) {
                p->everywhere[host * p->n + k] = all->devices[i];
                found++;
            }
        seen++;
    }
    if (r == 0 && found < p->n)
        r = pl_error_set(err, -ENODEV, "the PJRT plugin has %zu device%s on the host of rank %u",
                         seen, seen == 1 ? "" : "s", host);
    return r;
}

int pl_pjrt_find_everywhere(struct pl_pjrt *p, const unsigned *list, size_t n, struct pl_error *err)
{
    unsigned hosts = p->hosts->n;
    _cleanup_free_ int *process = calloc(hosts, sizeof(*process));
    PJRT_Client_Devices_Args all;
    size_t there;
    int r = pl_pjrt_processes(p, &there, err);

    if (r == 0 && there < hosts)
        r = pl_error_set(err, -ENODEV,
                         "the PJRT plugin sees the devices of %zu host%s, and there are %u ranks",
                         there, there == 1 ? "" : "s", hosts);
    p->devices = calloc(n, sizeof(*p->devices));
    p->everywhere = calloc(hosts * n, sizeof(*p->everywhere));
    if (r == 0 && (!process || !p->devices || !p->everywhere))
        r = pl_error_nomem(err);
    p->n = n;
    if (r == 0)
        r = share_process(p, process, err);
    if (r == 0)
        r = list_all(p, &all, err);
    for (unsigned i = 0; i < hosts && r == 0; i++)
        r = add_process(p, &all, i, process[i], list, err);
    for (size_t i = 0; i < n && r == 0; i++)
        p->devices[i] = p->everywhere[p->hosts->index * n + i];
    return r;
}
