/* SPDX-License-Identifier: MIT */
#include "runtime/engine/checkpoint/checkpoint.h"
#include "common/base/parse.h"
#include "runtime/engine/checkpoint/checkpoint_private.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

static const char *const dtypes[] = {
    [PLUME_F32] = "f32",
    [PLUME_F64] = "f64",
    [PLUME_I32] = "i32",
    [PLUME_U8] = "u8",
};

const char *pl_checkpoint_dtype_name(enum plume_dtype dtype)
{
    return (size_t)dtype < PL_COUNT(dtypes) ? dtypes[dtype] : NULL;
}

enum plume_dtype pl_checkpoint_dtype_find(const char *name)
{
    for (size_t i = 0; i < PL_COUNT(dtypes); i++)
        if (dtypes[i] && strcmp(dtypes[i], name) == 0)
            return (enum plume_dtype)i;
    return 0;
}

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
        munmap(checkpoint->map, checkpoint->map_bytes);
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
    size_t count;
    int r = pl_shape_count(rank, shape, &count);

    if (r < 0 || !pl_checkpoint_dtype_name(dtype) || !*name ||
        strlen(name) > PL_CHECKPOINT_NAME_MAX)
        return pl_error_set(err, -EINVAL, "'%s' cannot be saved in a checkpoint", name);
    if (pl_checkpoint_find(checkpoint, name))
        return pl_error_set(err, -EEXIST, "the checkpoint has two tensors '%s'", name);
    r = pl_checkpoint_room(checkpoint, err);
    if (r < 0)
        return r;
    if (rank)
        memcpy(t.shape, shape, rank * sizeof(*shape));
    t.bytes = count * pl_dtype_size(dtype);
    if (checkpoint->n) {
        const struct pl_checkpoint_tensor *last = &checkpoint->tensors[checkpoint->n - 1];

        t.offset = pl_checkpoint_pad(last->offset + last->bytes);
    }
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
