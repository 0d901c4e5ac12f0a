/* SPDX-License-Identifier: MIT */
#include "runtime/engine/data/loader.h"
#include "common/base/signals.h"
#include "kernels/pool/pool.h"
#include "runtime/engine/data/loader_fill.h"
#include "runtime/engine/util/crash.h"

#include <signal.h>
#include <string.h>

/* Modules are promised that fill() never runs twice at the same time, but validation's loader
 * starts while training's still makes batches. */
static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;

/* The shape of a field's batch; the caller sets the first dimension. */
static int field_shape(const struct plume_data *data,
                       size_t i,
                       size_t *ret_rank,
                       size_t *ret_shape,
                       struct pl_error *err)
{
    const struct plume_array *a = data->field[i].array;

    if (!a) {
        if (!data->fill)
            return pl_error_set(err, -EINVAL, "data field %zu has no array", i);
        if (data->rank[i] >= PLUME_RANK_MAX)
            return pl_error_set(err, -EINVAL, "data field %zu has too many dimensions", i);
        if (data->field[i].dtype != PLUME_F32 && data->field[i].dtype != PLUME_I32)
            return pl_error_set(err, -EINVAL,
                                "data field %zu: the dtype must be PLUME_F32 or PLUME_I32", i);
        memcpy(ret_shape + 1, data->shape[i], data->rank[i] * sizeof(*ret_shape));
        *ret_rank = data->rank[i] + 1;
        return 0;
    }
    if (a->rank < 1)
        return pl_error_set(err, -EINVAL, "data field %zu has no samples", i);
    if (!pl_loader_converts(a->dtype, data->field[i].dtype))
        return pl_error_set(err, -EINVAL,
                            "data field %zu: an array of real numbers cannot become int32 batches: "
                            "set the dtype to PLUME_F32",
                            i);
    memcpy(ret_shape, a->shape, sizeof(a->shape));
    *ret_rank = a->rank;
    return 0;
}

/* The number of samples; all fields must agree. */
static int count_samples(const struct plume_data *data, size_t *ret, struct pl_error *err)
{
    size_t n = SIZE_MAX;

    for (size_t i = 0; i < data->n_fields; i++) {
        const struct plume_array *a = data->field[i].array;
        size_t have = a ? a->shape[0] : data->length;

        if (n != SIZE_MAX && have != n)
            return pl_error_set(
                err, -EINVAL, "data field %zu has %zu samples, field 0 has %zu: all need the same",
                i, have, n);
        n = have;
    }
    *ret = n;
    return 0;
}

static int make_fields(struct pl_loader *l, struct pl_error *err)
{
    size_t shape[PLUME_RANK_MAX], rank = 0;

    for (size_t i = 0; i < l->data.n_fields; i++) {
        plume_tensor *t = &l->fields[i];
        enum plume_dtype dtype =
            l->data.field[i].dtype == PLUME_I32 ? PLUME_I32 : pl_dtype_of_real(l->options.real);
        int r = field_shape(&l->data, i, &rank, shape, err);

        if (r < 0)
            return r;
        shape[0] = l->options.batch_size;
        r = pl_tensor_init(t, dtype, rank, shape);
        if (r < 0)
            return pl_error_errno(err, r, "cannot make a batch of %zu samples",
                                  l->options.batch_size);
        for (size_t s = 0; s < l->n_slots && r == 0; s++) {
            size_t bytes = t->count * pl_dtype_size(dtype);

            r = l->dev->ops->host_alloc(l->dev, bytes + 64, &l->slots[s].field[i], err);
            if (r == 0)
                memset(l->slots[s].field[i], 0, bytes);
        }
        if (r == 0 && !l->dev->ops->host)
            r = pl_device_alloc_zero(l->dev, t->count * pl_dtype_size(dtype) + 64, "batches",
                                     &l->on_device[i], err);
        if (r < 0)
            return pl_error_wrap(err, r, "cannot make a batch of %zu samples",
                                 l->options.batch_size);
        t->data = l->on_device[i] ? l->on_device[i] : l->slots[0].field[i];
        l->batch.field[i] = t;
        l->elements[i] = t->count / t->shape[0];
    }
    return 0;
}

int pl_loader_open(struct pl_loader *loader,
                   const struct plume_data *data,
                   const struct pl_loader_options *options,
                   struct pl_error *err)
{
    struct pl_sampler_options sampler = {
        .rank = options->rank,
        .world_size = options->world_size,
        .train = options->train,
        .shuffle = !options->keep_order,
        .drop_tail = data->drop_tail,
        .seed = options->seed,
        .list = data->order,
        .n_list = data->n_order,
    };
    int r;

    if (data->n_fields < 1 || data->n_fields > PLUME_FIELDS_MAX)
        return pl_error_set(err, -EINVAL, "a batch has 1 to %d fields, not %zu", PLUME_FIELDS_MAX,
                            data->n_fields);
    *loader = (struct pl_loader){
        .data = *data,
        .options = *options,
        .dev = options->device ? options->device : pl_device_cpu(),
        .batch = {.struct_size = sizeof(loader->batch), .n_fields = data->n_fields},
        .prefetch = options->prefetch > 0 || (options->prefetch < 0 && pl_pool_threads() > 1),
    };
    pthread_mutex_init(&loader->lock, NULL);
    pthread_cond_init(&loader->changed, NULL);
    loader->n_slots = loader->prefetch ? PL_LOADER_SLOTS : 1;
    r = count_samples(data, &sampler.n, err);
    if (r == 0)
        r = make_fields(loader, err);
    if (r == 0)
        r = pl_sampler_init(&loader->sampler, &sampler, err);
    if (r == 0)
        pl_loader_begin(loader, 0, 0);
    else
        pl_loader_finish(loader);
    return r;
}

/* Ends the thread in any state. */
static void stop_thread(struct pl_loader *l)
{
    if (!l->running)
        return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->running = false;
}

void pl_loader_finish(struct pl_loader *loader)
{
    if (loader->n_slots == 0)
        return; /* never opened */
    stop_thread(loader);
    for (size_t s = 0; s < loader->n_slots; s++)
        for (size_t i = 0; i < PLUME_FIELDS_MAX; i++)
            loader->dev->ops->host_free(loader->dev, loader->slots[s].field[i]);
    for (size_t i = 0; i < PLUME_FIELDS_MAX; i++)
        pl_device_free(loader->dev, loader->on_device[i]);
    pl_sampler_finish(&loader->sampler);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    *loader = (struct pl_loader){0};
}

size_t pl_loader_batches(const struct pl_loader *loader)
{
    size_t size = loader->options.batch_size, n = loader->sampler.count;

    return loader->data.drop_last ? n / size : (n + size - 1) / size;
}

void pl_loader_begin(struct pl_loader *loader, uint64_t epoch, size_t first)
{
    stop_thread(loader);
    pl_sampler_set_epoch(&loader->sampler, epoch);
    loader->epoch = epoch;
    loader->batches = pl_loader_batches(loader);
    loader->next = PL_MIN(first, loader->batches);
    loader->batch.index = (int64_t)loader->next - 1;
    loader->made = loader->taken = 0;
    loader->stop = loader->ended = false;
    loader->error = (struct pl_error){0};
}

/* Converts a synthetic sample in small pieces. */
static void make_up(const struct plume_array *a,
                    size_t sample,
                    plume_tensor *to,
                    char *dst,
                    double scale,
                    double shift,
                    size_t n)
{
    uint32_t piece[256];

    for (size_t i = 0; i < n; i += PL_COUNT(piece)) {
        size_t k = PL_MIN(n - i, PL_COUNT(piece));

        pl_synthetic_make(a, sample, i, k, piece);
        pl_loader_convert(dst + i * pl_dtype_size(to->dtype), to->dtype, piece, a->dtype, k, scale,
                          shift);
    }
}

static void *place(const struct pl_loader *l, struct pl_loader_slot *slot, size_t field, size_t row)
{
    return (char *)slot->field[field] +
           row * l->elements[field] * pl_dtype_size(l->fields[field].dtype);
}

static void take_sample(struct pl_loader *l, struct pl_loader_slot *slot, size_t row, size_t sample)
{
    for (size_t i = 0; i < l->data.n_fields; i++) {
        const struct plume_array *a = l->data.field[i].array;
        double scale = l->data.field[i].scale == 0 ? 1 : l->data.field[i].scale;
        size_t n = l->elements[i], stride;

        if (!a)
            continue;
        if (a->synthetic) {
            make_up(a, sample, &l->fields[i], place(l, slot, i, row), scale, l->data.field[i].shift,
                    n);
            continue;
        }
        stride = a->stride ? a->stride : n * pl_dtype_size(a->dtype);
        pl_loader_convert(place(l, slot, i, row), l->fields[i].dtype,
                          (const char *)a->data + sample * stride, a->dtype, n, scale,
                          l->data.field[i].shift);
    }
}

static int fill_sample(struct pl_loader *l, struct pl_loader_slot *slot, size_t row, size_t sample)
{
    void *out[PLUME_FIELDS_MAX] = {0};
    int r;

    for (size_t i = 0; i < l->data.n_fields; i++)
        if (!l->data.field[i].array)
            out[i] = place(l, slot, i, row);
    pthread_mutex_lock(&filling);
    pl_crash_fill(true);
    r = l->data.fill(l->data.ctx, l->epoch, sample, out, pl_real_size(l->options.real));
    pl_crash_fill(false);
    pthread_mutex_unlock(&filling);
    return r;
}

/* Makes batch l->next. The loader's thread may run it, so it reads only fields that no other thread
 * changes. */
static int make_batch(struct pl_loader *l, struct pl_loader_slot *slot, struct pl_error *err)
{
    size_t size = l->options.batch_size, first = l->next * size;

    slot->rows = PL_MIN(size, l->sampler.count - first);
    for (size_t row = 0; row < slot->rows; row++) {
        size_t sample = l->sampler.index[first + row];
        int r = l->data.fill ? fill_sample(l, slot, row, sample) : 0;

        if (r > 0)
            return pl_error_set(
                err, -EINVAL,
                "the module's data source returned %d at sample %zu: fill returns 0 "
                "or a negative errno",
                r, sample);
        if (r < 0)
            return pl_error_errno(err, r, "the module's data source failed at sample %zu", sample);
        take_sample(l, slot, row, sample);
    }
    l->next++;
    return 0;
}

static void *loader_main(void *arg)
{
    struct pl_loader *l = arg;

    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->next < l->batches) {
        struct pl_error err = {0};
        int r;

        if (l->made - l->taken == PL_LOADER_SLOTS - 1) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        pthread_mutex_unlock(&l->lock);
        r = make_batch(l, &l->slots[l->made % PL_LOADER_SLOTS], &err);
        pthread_mutex_lock(&l->lock);
        if (r < 0) {
            l->error = err;
            break;
        }
        l->made++;
        pthread_cond_broadcast(&l->changed);
    }
    l->ended = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Returns false if no thread can be started; the batches are then made synchronously. */
static bool start_thread(struct pl_loader *l)
{
    sigset_t all, before;

    pl_signals_of_threads(&all); /* only the training thread handles signals */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    l->running = pthread_create(&l->thread, NULL, loader_main, l) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return l->running;
}

static const struct plume_batch *
show(struct pl_loader *l, const struct pl_loader_slot *slot, size_t rows)
{
    l->batch.rows = rows;
    for (size_t i = 0; i < l->data.n_fields; i++) {
        plume_tensor *t = &l->fields[i];

        t->count = t->count / t->shape[0] * rows;
        t->shape[0] = rows;
        if (!l->on_device[i])
            t->data = slot->field[i];
        else
            pl_device_upload(l->dev, t->data, slot->field[i], t->count * pl_dtype_size(t->dtype));
    }
    return &l->batch;
}

/* The previous batch is free again: `taken` counts the batches given back, so that the slot in use
 * is never written to. */
static const struct plume_batch *next_prefetched(struct pl_loader *l)
{
    struct pl_loader_slot *slot = NULL;
    size_t number;

    pthread_mutex_lock(&l->lock);
    number = l->taken;
    while (l->made == number && !l->ended)
        pthread_cond_wait(&l->changed, &l->lock);
    if (l->made > number) {
        slot = &l->slots[number % PL_LOADER_SLOTS];
        l->taken = number + 1;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    if (!slot)
        return NULL;
    l->batch.index++;
    return show(l, slot, slot->rows);
}

const struct plume_batch *pl_loader_next(struct pl_loader *loader)
{
    if (loader->prefetch && (loader->running || start_thread(loader)))
        return next_prefetched(loader);
    if (loader->next == loader->batches || loader->error.code ||
        make_batch(loader, &loader->slots[0], &loader->error) < 0)
        return NULL;
    loader->batch.index++;
    return show(loader, &loader->slots[0], loader->slots[0].rows);
}

int pl_loader_result(struct pl_loader *loader, struct pl_error *err)
{
    int r;

    pthread_mutex_lock(&loader->lock); /* the epoch may be left early, while the thread works */
    r = loader->error.code;
    if (r < 0)
        pl_error_set(err, r, "%s", loader->error.text);
    pthread_mutex_unlock(&loader->lock);
    return r;
}

const struct plume_batch *pl_loader_dry(struct pl_loader *loader)
{
    loader->batch.index = 0;
    return show(loader, &loader->slots[0], loader->options.batch_size);
}
