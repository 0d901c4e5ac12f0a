/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/visit.h"
#include "common/base/fs.h"
#include "common/base/options.h"
#include "runtime/engine/checkpoint/checkpoint_parts.h"

#include <string.h>

/* ---- members of the header ---- */

struct pl_visit_object pl_visit_open(const struct pl_visit *v, char *text)
{
    return (struct pl_visit_object){.saving = v->pass == PL_VISIT_SAVE, .text = text};
}

void pl_visit_close(struct pl_visit_object *o)
{
    pl_buf_finish(&o->buf);
    free(o->text);
}

int pl_visit_key(struct pl_buf *b, const char *key)
{
    int r = b->len ? pl_buf_addc(b, ',') : 0;

    if (r == 0)
        r = pl_mini_quote(b, key);
    return r < 0 ? r : pl_buf_addc(b, ':');
}

void pl_visit_u64(struct pl_visit_object *o, const char *key, uint64_t *value, uint64_t max)
{
    int64_t n = 0;

    if (o->saving && o->r == 0)
        o->r = pl_visit_key(&o->buf, key);
    if (o->r < 0)
        return;
    if (o->saving)
        o->r = pl_buf_addf(&o->buf, "%llu", (unsigned long long)*value);
    else if (!o->text || pl_mini_get_int(o->text, key, &n) < 0 || n < 0 || (uint64_t)n > max)
        o->r = -EINVAL;
    else
        *value = (uint64_t)n;
}

void pl_visit_double(struct pl_visit_object *o, const char *key, double *value)
{
    if (o->saving && o->r == 0)
        o->r = pl_visit_key(&o->buf, key);
    if (o->r < 0)
        return;
    if (o->saving)
        o->r = pl_json_add_double(&o->buf, *value);
    else if (!o->text || pl_json_get_double(o->text, key, value) < 0)
        o->r = -EINVAL;
}

void pl_visit_list_add(struct pl_buf *list, struct pl_visit_object *o)
{
    if (o->r == 0)
        o->r = pl_buf_addf(list, "%s{%s}", list->len ? "," : "", pl_buf_str(&o->buf));
}

int pl_visit_set(const struct pl_visit *v, const char *key, struct pl_visit_object *o)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};

    if (o->r == 0 && o->saving)
        o->r = pl_buf_addf(&b, "{%s}", pl_buf_str(&o->buf));
    if (o->r == 0 && o->saving)
        o->r = pl_checkpoint_set(v->c, key, pl_buf_str(&b));
    return o->r;
}

char *pl_visit_list_entry(const struct pl_visit *v, const char *key, size_t index)
{
    struct pl_mini_value list, entry;
    size_t pos = 0;

    if (!v->c->header || pl_mini_find(v->c->header, key, &list) < 0 || list.type != PL_MINI_ARRAY)
        return NULL;
    for (size_t i = 0; pl_mini_next(&list, &pos, &entry) == 1; i++)
        if (i == index)
            return strndup(entry.start, entry.len);
    return NULL;
}

char *pl_visit_top(const struct pl_visit *v, const char *key)
{
    return v->pass == PL_VISIT_SAVE ? NULL : pl_checkpoint_get(v->c, key);
}

int pl_visit_top_u64(const struct pl_visit *v, const char *key, uint64_t *value)
{
    char text[24];
    int64_t n;

    if (v->pass == PL_VISIT_SAVE) {
        snprintf(text, sizeof(text), "%llu", (unsigned long long)*value);
        return pl_checkpoint_set(v->c, key, text);
    }
    if (pl_checkpoint_get_int(v->c, key, &n) < 0 || n < 0)
        return -EINVAL;
    *value = (uint64_t)n;
    return 0;
}

int pl_visit_save_string(const struct pl_visit *v, const char *key, const char *value)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    int r = pl_mini_quote(&b, value);

    return r < 0 ? r : pl_checkpoint_set(v->c, key, pl_buf_str(&b));
}

int pl_visit_list_set(const struct pl_visit *v, const char *key, const struct pl_buf *entries)
{
    _cleanup_(pl_buf_finish) struct pl_buf b = {0};
    int r = pl_buf_addf(&b, "[%s]", pl_buf_str(entries));

    return r < 0 ? r : pl_checkpoint_set(v->c, key, pl_buf_str(&b));
}

/* ---- tensors ---- */

bool pl_visit_is_state(const char *name)
{
    return strncmp(name, PL_CHECKPOINT_PREFIX, sizeof(PL_CHECKPOINT_PREFIX) - 1) == 0;
}

static int find_tensor(const struct pl_visit *v,
                       const char *name,
                       const plume_tensor *t,
                       enum plume_dtype dtype,
                       const struct pl_checkpoint_tensor **ret)
{
    const struct pl_checkpoint_tensor *from = pl_checkpoint_find(v->c, name);

    if (!from)
        return pl_error_set(v->err, -EINVAL, "the checkpoint has no '%s': it is of another model",
                            name);
    if (from->rank != t->rank || memcmp(from->shape, t->shape, t->rank * sizeof(*t->shape)) != 0 ||
        !pl_checkpoint_convertible(dtype, from->dtype))
        return pl_error_set(v->err, -EINVAL,
                            "the checkpoint's '%s' has another shape or type: it is of another "
                            "model",
                            name);
    *ret = from;
    return 0;
}

int pl_visit_tensor(const struct pl_visit *v,
                    const char *prefix,
                    const char *name,
                    const plume_tensor *t,
                    enum plume_dtype dtype,
                    struct pl_device *dev,
                    void *data)
{
    _cleanup_free_ char *full = pl_strf("%s%s", prefix, name);
    const struct pl_checkpoint_tensor *from = NULL;
    struct pl_device_map map;
    int r = 0;

    if (!full)
        return pl_error_set(v->err, -ENOMEM, "out of memory");
    if (v->pass != PL_VISIT_SAVE)
        r = find_tensor(v, full, t, dtype, &from);
    if (r < 0 || v->pass == PL_VISIT_CHECK)
        return r;
    r = pl_device_map(dev, data, t->count * pl_dtype_size(dtype),
                      v->pass == PL_VISIT_SAVE ? PL_DEVICE_READ : PL_DEVICE_WRITE, &map, v->err);
    if (r < 0)
        return r;
    if (v->pass == PL_VISIT_SAVE)
        r = pl_checkpoint_add(v->c, full, dtype, t->rank, t->shape, map.data, v->err);
    else
        pl_checkpoint_convert(from, false, dtype, map.data);
    pl_device_unmap(&map);
    return r;
}

int pl_visit_apart(const struct pl_visit *v,
                   const char *prefix,
                   const char *name,
                   const plume_tensor *t,
                   enum plume_dtype dtype)
{
    _cleanup_free_ char *full = pl_strf("%s%s", prefix, name);

    return full ? pl_checkpoint_add_apart(v->c, full, dtype, t->rank, t->shape, v->err)
                : pl_error_set(v->err, -ENOMEM, "out of memory");
}
