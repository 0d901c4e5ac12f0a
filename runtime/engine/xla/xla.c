/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/plugin.h"
#include "runtime/engine/xla/xla_private.h"

#include <dlfcn.h>

#define FILE_NAME "plume-pjrt.so"

static int load_table(const struct pl_pjrt_table **ret, struct pl_error *err)
{
    const struct pl_pjrt_table *table;
    struct pl_error why = {0};
    void *handle;
    int r = pl_plugin_load(FILE_NAME, RTLD_NOW | RTLD_LOCAL, &handle, &why);

    if (r < 0)
        return pl_error_set(err, r,
                            "cannot use XLA devices: %s; run ./dev deps pjrt and build with "
                            "-Dpjrt=enabled",
                            pl_error_text(&why));
    table = dlsym(handle, PL_PJRT_TABLE_SYMBOL);
    if (!table || table->version != PL_PJRT_TABLE_VERSION) {
        dlclose(handle);
        return pl_error_set(err, -ENOTSUP,
                            "cannot use XLA devices: " FILE_NAME " is of another release; install "
                            "the one that was built with this program");
    }
    *ret = table;
    return 0;
}

int pl_xla_open(const struct pl_xla_options *options, struct pl_xla **ret, struct pl_error *err)
{
    struct pl_xla *x = calloc(1, sizeof(*x));
    int r = x ? load_table(&x->table, err) : pl_error_nomem(err);

    if (r == 0)
        r = x->table->open(options->plugin, options->devices, options->n, options->hosts,
                           &x->client, err);
    if (r < 0) {
        free(x);
        return r;
    }
    x->replicas = (unsigned)options->n;
    x->world = x->replicas * (options->hosts ? options->hosts->n : 1);
    x->dump = options->dump;
    x->cache = options->cache && *x->table->identity(x->client);
    *ret = x;
    return 0;
}

void pl_xla_forget(struct pl_xla *x, struct pl_pjrt_array **array)
{
    if (*array)
        x->table->array_free(x->client, *array);
    *array = NULL;
}

static void forget_state(struct pl_xla *x)
{
    for (size_t i = 0; i < x->n_params; i++) {
        pl_xla_forget(x, &x->value[i]);
        pl_xla_forget(x, &x->sum[i]);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS; k++)
            pl_xla_forget(x, &x->slot[i][k]);
    }
    for (size_t i = 0; i < x->n_buffers; i++)
        pl_xla_forget(x, &x->buffer[i]);
}

void pl_xla_close(struct pl_xla *x)
{
    if (!x)
        return;
    forget_state(x);
    for (size_t i = 0; i < x->n_compiled; i++)
        x->table->program_free(x->client, x->compiled[i].program);
    for (size_t i = 0; i < x->n_recent; i++) {
        free(x->recent[i].plan.grad);
        free(x->recent[i].plan.class_of);
        free(x->recent[i].summed);
    }
    x->table->close(x->client);
    free(x->compiled);
    free(x->recent);
    free(x->value);
    free(x->sum);
    free(x->slot);
    free(x->buffer);
    free(x->summed);
    free(x);
}

const char *pl_xla_platform(const struct pl_xla *x)
{
    return x->table->platform(x->client);
}

int pl_xla_attach(struct pl_xla *x,
                  struct pl_params *params,
                  struct pl_optimizers *optimizers,
                  const struct pl_clip_rule *clip,
                  struct pl_error *err)
{
    x->params = params;
    x->optimizers = optimizers;
    x->clip = *clip;
    x->value = calloc(params->n + 1, sizeof(*x->value));
    x->sum = calloc(params->n + 1, sizeof(*x->sum));
    x->slot = calloc(params->n + 1, sizeof(*x->slot));
    x->buffer = calloc(params->n_buffers + 1, sizeof(*x->buffer));
    if (x->value && x->sum && x->slot && x->buffer)
        x->summed = calloc(params->n + 1, sizeof(*x->summed));
    if (!x->summed)
        return pl_error_nomem(err);
    x->n_params = params->n;
    x->n_buffers = params->n_buffers;
    return 0;
}

/* ---- the state, to the device and back ---- */

/* A slot of a parameter on the host; NULL if it has none. */
static void *host_slot(const struct pl_xla *x, size_t i, size_t k)
{
    struct pl_update_owner owner = pl_update_owner(x->optimizers, i);
    size_t from, count;

    if (!owner.optimizer || k >= pl_optimizer_slots(owner.optimizer))
        return NULL;
    return pl_optimizer_state(x->optimizers, owner.optimizer, k, x->params->order[i], &from,
                              &count);
}

static int put(struct pl_xla *x,
               const plume_tensor *t,
               const void *data,
               struct pl_pjrt_array **ret,
               struct pl_error *err)
{
    const void *all[PL_PJRT_DEVICES_MAX];

    for (size_t i = 0; i < x->replicas; i++)
        all[i] = data;
    pl_xla_forget(x, ret);
    return x->table->upload(x->client, t->dtype == PLUME_I32 ? PL_PJRT_I32 : PL_PJRT_F32, t->rank,
                            t->shape, all, ret, err);
}

int pl_xla_load_state(struct pl_xla *x, struct pl_error *err)
{
    const struct pl_params *p = x->params;
    int r = 0;

    if (x->loaded)
        return 0;
    for (size_t i = 0; i < p->n && r == 0; i++) {
        const struct pl_param *param = p->order[i];

        r = put(x, param->tensor, pl_params_value(p, param->offset), &x->value[i], err);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS && r == 0; k++)
            if (host_slot(x, i, k))
                r = put(x, param->tensor, host_slot(x, i, k), &x->slot[i][k], err);
    }
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = put(x, p->buffers[i].tensor, p->buffers[i].tensor->data, &x->buffer[i], err);
    x->loaded = r == 0;
    return r;
}

static int get(struct pl_xla *x,
               const struct pl_pjrt_array *array,
               void *to,
               size_t count,
               struct pl_error *err)
{
    return x->table->download(x->client, array, 0, to, count * sizeof(float), err);
}

int pl_xla_spread_buffers(struct pl_xla *x, struct pl_comm *comm, struct pl_error *err)
{
    struct pl_params *p = x->params;
    int r = 0;

    if (!x->apart)
        return 0;
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = get(x, x->buffer[i], p->buffers[i].tensor->data, p->buffers[i].tensor->count, err);
    if (r == 0)
        r = pl_params_spread_buffers(p, comm, err);
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = put(x, p->buffers[i].tensor, p->buffers[i].tensor->data, &x->buffer[i], err);
    x->apart = r < 0;
    return r;
}

int pl_xla_fetch(struct pl_xla *x, struct pl_error *err)
{
    struct pl_params *p = x->params;
    int r = 0;

    if (!x->newer)
        return 0;
    for (size_t i = 0; i < p->n && r == 0; i++) {
        size_t count = p->order[i]->tensor->count;

        r = get(x, x->value[i], pl_params_value(p, p->order[i]->offset), count, err);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS && r == 0; k++)
            if (x->slot[i][k])
                r = get(x, x->slot[i][k], host_slot(x, i, k), count, err);
    }
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = get(x, x->buffer[i], p->buffers[i].tensor->data, p->buffers[i].tensor->count, err);
    p->values_version++;
    p->buffers_version++;
    x->newer = r < 0;
    return r;
}
