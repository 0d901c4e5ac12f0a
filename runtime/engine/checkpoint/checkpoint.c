/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/checkpoint.h"
#include "common/base/parse.h"
#include "kernels/half.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"
#include "runtime/engine/util/file_map.h"

#include <math.h>
#include <string.h>

void pl_checkpoint_finish(struct pl_checkpoint *checkpoint)
{
    for (size_t i = 0; i < checkpoint->n; i++) {
        free(checkpoint->tensors[i].name);
        if (checkpoint->owns_data)
            free((void *)(uintptr_t)checkpoint->tensors[i].data);
    }
    free(checkpoint->tensors);
    free(checkpoint->header);
    pl_buf_finish(&checkpoint->keys);
    if (checkpoint->map)
        pl_file_unmap(checkpoint->map, checkpoint->map_bytes);
    *checkpoint = (struct pl_checkpoint){0};
}

int pl_checkpoint_set(struct pl_checkpoint *checkpoint, const char *key, const char *json)
{
    struct pl_buf *b = &checkpoint->keys;
    size_t mark = b->len;
    int r = pl_mini_quote(b, key);

    if (r == 0)
        r = pl_buf_addc(b, ':');
    if (r == 0)
        r = pl_buf_adds(b, json);
    if (r == 0)
        r = pl_buf_addc(b, ',');
    if (r < 0)
        b->len = mark;
    return r;
}

int pl_checkpoint_room(struct pl_checkpoint *checkpoint, struct pl_error *err)
{
    struct pl_checkpoint_tensor *list;

    if (checkpoint->n == PL_CHECKPOINT_TENSORS_MAX)
        return pl_error_set(err, -EINVAL, "a checkpoint has at most %d tensors",
                            PL_CHECKPOINT_TENSORS_MAX);
    if (checkpoint->n & (checkpoint->n - 1))
        return 0; /* capacity doubles at each power of two */
    list = reallocarray(checkpoint->tensors, PL_MAX(2 * checkpoint->n, (size_t)2), sizeof(*list));
    if (!list)
        return pl_error_nomem(err);
    checkpoint->tensors = list;
    return 0;
}

int pl_checkpoint_check_new(struct pl_checkpoint *checkpoint,
                            const char *name,
                            struct pl_checkpoint_tensor *t,
                            const size_t *shape,
                            struct pl_error *err)
{
    size_t count;
    int r = pl_shape_count(t->rank, shape, &count);

    if (r < 0 || !pl_dtype_size(t->dtype) || !*name || strlen(name) > PL_CHECKPOINT_NAME_MAX)
        return pl_error_set(err, -EINVAL, "'%s' cannot be saved in a checkpoint", name);
    if (pl_checkpoint_find(checkpoint, name))
        return pl_error_set(err, -EEXIST, "the checkpoint has two tensors '%s'", name);
    r = pl_checkpoint_room(checkpoint, err);
    if (r < 0)
        return r;
    if (t->rank)
        memcpy(t->shape, shape, t->rank * sizeof(*shape));
    t->bytes = count * pl_dtype_size(t->dtype);
    return 0;
}

int pl_checkpoint_add(struct pl_checkpoint *checkpoint,
                      const char *name,
                      enum plume_dtype dtype,
                      size_t rank,
                      const size_t *shape,
                      const void *data,
                      struct pl_error *err)
{
    struct pl_checkpoint_tensor t = {.dtype = dtype, .rank = rank};
    _cleanup_free_ void *copy = NULL;
    int r = pl_checkpoint_check_new(checkpoint, name, &t, shape, err);

    if (r < 0)
        return r;
    copy = malloc(PL_MAX(t.bytes, (size_t)1));
    t.name = copy ? strdup(name) : NULL;
    if (!t.name)
        return pl_error_set(err, -ENOMEM, "out of memory for a checkpoint");
    if (t.bytes)
        memcpy(copy, data, t.bytes);
    t.data = PL_TAKE(copy);
    checkpoint->owns_data = true;
    checkpoint->tensors[checkpoint->n++] = t;
    return 0;
}

char *pl_json_get_text(const char *text, const char *key)
{
    struct pl_mini_value value;

    return pl_mini_find(text, key, &value) == 0 ? strndup(value.start, value.len) : NULL;
}

char *pl_checkpoint_get(const struct pl_checkpoint *checkpoint, const char *key)
{
    return checkpoint->header ? pl_json_get_text(checkpoint->header, key) : NULL;
}

int pl_checkpoint_get_int(const struct pl_checkpoint *checkpoint, const char *key, int64_t *ret)
{
    return checkpoint->header ? pl_mini_get_int(checkpoint->header, key, ret) : -ENOENT;
}

const struct pl_checkpoint_tensor *pl_checkpoint_find(const struct pl_checkpoint *checkpoint,
                                                      const char *name)
{
    for (size_t i = 0; i < checkpoint->n; i++)
        if (strcmp(checkpoint->tensors[i].name, name) == 0)
            return &checkpoint->tensors[i];
    return NULL;
}

void pl_checkpoint_put(unsigned char *p, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (unsigned char)(value >> (8 * i));
}

uint64_t pl_checkpoint_get_number(const unsigned char *p, size_t bytes)
{
    uint64_t value = 0;

    for (size_t i = 0; i < bytes; i++)
        value |= (uint64_t)p[i] << (8 * i);
    return value;
}

int pl_checkpoint_read_shape(const char *text, struct pl_checkpoint_tensor *t)
{
    struct pl_mini_value list, entry;
    size_t pos = 0, count;
    int64_t n;
    int r;

    if (pl_mini_find(text, "shape", &list) < 0 || list.type != PL_MINI_ARRAY)
        return -EINVAL;
    while ((r = pl_mini_next(&list, &pos, &entry)) == 1) {
        if (t->rank == PLUME_RANK_MAX || pl_mini_int(&entry, &n) < 0 || n < 0)
            return -EINVAL;
        t->shape[t->rank++] = (size_t)n;
    }
    if (r < 0 || pl_shape_count(t->rank, t->shape, &count) < 0)
        return -EINVAL;
    t->bytes = count * pl_dtype_size(t->dtype);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int pl_checkpoint_check_names(const struct pl_checkpoint *c)
{
    _cleanup_free_ char **names = calloc(c->n + 1, sizeof(*names));

    if (!names)
        return -ENOMEM;
    for (size_t i = 0; i < c->n; i++)
        names[i] = c->tensors[i].name;
    qsort(names, c->n, sizeof(*names), by_name);
    for (size_t i = 1; i < c->n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return -EINVAL;
    return 0;
}

bool pl_checkpoint_convertible(enum plume_dtype to, enum plume_dtype from)
{
    return from && (to == from || ((to == PLUME_F32 || to == PLUME_F64) && pl_dtype_is_real(from)));
}

static double element(const struct pl_checkpoint_tensor *t, size_t i)
{
    const char *p = (const char *)t->data + i * pl_dtype_size(t->dtype);
    uint16_t half;
    float single;
    double value;

    switch (t->dtype) {
    case PLUME_F16:
    case PLUME_BF16:
        memcpy(&half, p, sizeof(half));
        return (double)(t->dtype == PLUME_F16 ? pl_f32_of_f16(half) : pl_f32_of_bf16(half));
    case PLUME_F32:
        memcpy(&single, p, sizeof(single));
        return (double)single;
    default:
        memcpy(&value, p, sizeof(value));
        return value;
    }
}

void pl_checkpoint_convert(const struct pl_checkpoint_tensor *from,
                           bool transpose,
                           enum plume_dtype to_type,
                           void *to)
{
    size_t columns = transpose ? from->shape[1] : 1, size = pl_dtype_size(to_type);
    size_t i, count, rows;

    if (to_type == from->dtype && !transpose) {
        if (from->bytes)
            memcpy(to, from->data, from->bytes);
        return;
    }
    count = from->bytes / pl_dtype_size(from->dtype);
    rows = count / PL_MAX(columns, (size_t)1);
    for (size_t k = 0; k < count; k++) {
        i = transpose ? k % rows * columns + k / rows : k;
        if (to_type == from->dtype)
            memcpy((char *)to + k * size, (const char *)from->data + i * size, size);
        else if (to_type == PLUME_F64)
            ((double *)to)[k] = element(from, i);
        else
            ((float *)to)[k] = (float)element(from, i);
    }
}

int pl_json_add_double(struct pl_buf *buf, double value)
{
    char number[40];

    if (isnan(value))
        return pl_buf_adds(buf, "\"nan\"");
    if (isinf(value))
        return pl_buf_adds(buf, value > 0 ? "\"inf\"" : "\"-inf\"");
    snprintf(number, sizeof(number), "%.17g", value);
    if (strchr(number, ',')) /* the module may have set a locale that writes 0,5 */
        *strchr(number, ',') = '.';
    return pl_buf_adds(buf, number);
}

int pl_json_get_double(const char *text, const char *key, double *ret)
{
    static const struct {
        const char *text;
        double value;
    } words[] = {{"\"nan\"", NAN}, {"\"inf\"", INFINITY}, {"\"-inf\"", -INFINITY}};
    _cleanup_free_ char *number = pl_json_get_text(text, key);

    if (!number)
        return -ENOENT;
    for (size_t i = 0; i < PL_COUNT(words); i++) {
        if (strcmp(number, words[i].text) == 0) {
            *ret = words[i].value;
            return 0;
        }
    }
    return pl_parse_double(number, ret, NULL) < 0 ? -EINVAL : 0;
}
