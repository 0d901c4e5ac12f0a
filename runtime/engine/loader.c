/* SPDX-License-Identifier: MIT */
#include "runtime/engine/loader.h"

#include <string.h>

static int check_field(const struct plume_data *data, size_t i, struct pl_error *err)
{
    const struct plume_array *a = data->field[i].array;
    enum plume_dtype want = data->field[i].dtype;

    if (!a)
        return pl_error_set(err, -EINVAL, "data field %zu has no array", i);
    if (a->rank < 1 || a->shape[0] != data->field[0].array->shape[0])
        return pl_error_set(err, -EINVAL,
                            "data field %zu has another number of samples than field 0", i);
    if (want == PLUME_F32 || (want == PLUME_I32 && (a->dtype == PLUME_U8 || a->dtype == PLUME_I32)))
        return 0;
    return pl_error_set(err, -EINVAL,
                        "data field %zu: only real batches of any array and int32 batches of "
                        "integers are made",
                        i);
}

int pl_loader_init(struct pl_loader *loader,
                   const struct plume_data *data,
                   enum pl_real real,
                   size_t batch_size,
                   unsigned rank,
                   unsigned world_size,
                   bool train,
                   uint64_t seed,
                   struct pl_error *err)
{
    struct pl_loader l = {.data = *data, .batch_size = batch_size};
    int r;

    if (data->n_fields < 1 || data->n_fields > PLUME_FIELDS_MAX)
        return pl_error_set(err, -EINVAL, "a batch has 1 to %d fields, not %zu", PLUME_FIELDS_MAX,
                            data->n_fields);
    for (size_t i = 0; i < data->n_fields; i++)
        if ((r = check_field(data, i, err)) < 0)
            return r;
    l.batch = (struct plume_batch){.struct_size = sizeof(l.batch), .n_fields = data->n_fields};
    for (size_t i = 0; i < data->n_fields; i++) {
        const struct plume_array *a = data->field[i].array;
        plume_tensor *t = &l.fields[i];
        size_t shape[PLUME_RANK_MAX];

        memcpy(shape, a->shape, sizeof(shape));
        shape[0] = batch_size;
        r = pl_tensor_init(t,
                           data->field[i].dtype == PLUME_I32 ? PLUME_I32 : pl_dtype_of_real(real),
                           a->rank, shape);
        if (r == 0 && posix_memalign(&t->data, 64, t->count * pl_dtype_size(t->dtype) + 64) != 0) {
            t->data = NULL;
            r = -ENOMEM;
        }
        if (r < 0) {
            pl_loader_finish(&l);
            return pl_error_errno(err, r, "cannot make a batch of %zu samples", batch_size);
        }
        memset(t->data, 0, t->count * pl_dtype_size(t->dtype));
    }
    r = pl_sampler_init(&l.sampler, data->field[0].array->shape[0], rank, world_size, train, seed,
                        err);
    if (r < 0) {
        pl_loader_finish(&l);
        return r;
    }
    *loader = l;
    return 0;
}

void pl_loader_finish(struct pl_loader *loader)
{
    for (size_t i = 0; i < PLUME_FIELDS_MAX; i++)
        free(loader->fields[i].data);
    pl_sampler_finish(&loader->sampler);
    *loader = (struct pl_loader){0};
}

void pl_loader_begin(struct pl_loader *loader, uint64_t epoch)
{
    pl_sampler_set_epoch(&loader->sampler, epoch);
    loader->next = 0;
    loader->batch.index = -1;
}

size_t pl_loader_batches(const struct pl_loader *loader)
{
    return (loader->sampler.count + loader->batch_size - 1) / loader->batch_size;
}

#define CONVERT(from, to)                                                                          \
    do {                                                                                           \
        for (size_t k_ = 0; k_ < n; k_++) {                                                        \
            from value_;                                                                           \
            memcpy(&value_, src + k_ * sizeof(from), sizeof(from));                                \
            ((to *)dst)[k_] = (to)((to)value_ * (to)scale + (to)shift);                            \
        }                                                                                          \
    } while (0)

static void
convert_f32(void *dst, const char *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    switch (from) {
    case PLUME_U8:
        CONVERT(uint8_t, float);
        break;
    case PLUME_I32:
        CONVERT(int32_t, float);
        break;
    case PLUME_F32:
        CONVERT(float, float);
        break;
    case PLUME_F64:
        CONVERT(double, float);
        break;
    case PLUME_BF16: /* no file has them */
    case PLUME_F16:
        break;
    }
}

static void
convert_f64(void *dst, const char *src, enum plume_dtype from, size_t n, double scale, double shift)
{
    switch (from) {
    case PLUME_U8:
        CONVERT(uint8_t, double);
        break;
    case PLUME_I32:
        CONVERT(int32_t, double);
        break;
    case PLUME_F32:
        CONVERT(float, double);
        break;
    case PLUME_F64:
        CONVERT(double, double);
        break;
    case PLUME_BF16:
    case PLUME_F16:
        break;
    }
}

static void take_sample(struct pl_loader *l, size_t field, size_t row, size_t sample)
{
    const struct plume_array *a = l->data.field[field].array;
    const plume_tensor *t = &l->fields[field];
    double scale = l->data.field[field].scale == 0 ? 1 : l->data.field[field].scale;
    double shift = l->data.field[field].shift;
    size_t n = t->count / t->shape[0];
    const char *src = (const char *)a->data + sample * n * pl_dtype_size(a->dtype);
    char *dst = (char *)t->data + row * n * pl_dtype_size(t->dtype);

    if (t->dtype == PLUME_F32)
        convert_f32(dst, src, a->dtype, n, scale, shift);
    else if (t->dtype == PLUME_F64)
        convert_f64(dst, src, a->dtype, n, scale, shift);
    else if (a->dtype == PLUME_I32)
        memcpy(dst, src, n * sizeof(int32_t));
    else
        for (size_t k = 0; k < n; k++)
            ((int32_t *)dst)[k] = ((const uint8_t *)src)[k];
}

static const struct plume_batch *shape_batch(struct pl_loader *l, size_t rows)
{
    l->batch.rows = rows;
    for (size_t i = 0; i < l->data.n_fields; i++) {
        plume_tensor *t = &l->fields[i];

        t->count = t->count / t->shape[0] * rows;
        t->shape[0] = rows;
        l->batch.field[i] = t;
    }
    return &l->batch;
}

const struct plume_batch *pl_loader_next(struct pl_loader *loader)
{
    size_t rows = PL_MIN(loader->batch_size, loader->sampler.count - loader->next);

    if (rows == 0)
        return NULL;
    shape_batch(loader, rows);
    loader->batch.index++;
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < loader->data.n_fields; i++)
            take_sample(loader, i, row, loader->sampler.index[loader->next + row]);
    loader->next += rows;
    return &loader->batch;
}

const struct plume_batch *pl_loader_dry(struct pl_loader *loader)
{
    loader->batch.index = 0;
    return shape_batch(loader, loader->batch_size);
}
