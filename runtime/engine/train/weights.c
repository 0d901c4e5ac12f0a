/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/weights.h"
#include "common/base/fs.h"
#include "runtime/engine/checkpoint/checkpoint.h"
#include "runtime/engine/optim/ema.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/train/visit.h"
#include "runtime/engine/train/weights_map.h"

#include <string.h>

#define INDEX_MAX ((size_t)64 << 20) /* bytes of an index */
#define FILES_MAX 4096               /* of an index */
#define NAMES_MAX 8                  /* of a list in the report */

/* A tensor of a file. */
struct entry {
    char *name; /* mapped */
    const struct pl_checkpoint_tensor *from;
    bool transpose;
    bool found, used; /* by its name; its shape fits, too */
};

/* A tensor that an index names, and its file, by name and by number. */
struct listed {
    char *name, *file;
    size_t at;
};

struct weights {
    struct pl_checkpoint *files;
    size_t n_files;
    struct listed *listed; /* NULL: there is no index, and all tensors count */
    size_t n_listed;
    struct entry *entries; /* by name */
    size_t n;
    bool averaged; /* some values are averages */
};

/* A parameter or buffer. */
struct target {
    const char *name;
    const plume_tensor *t;
    enum plume_dtype dtype;
    void *data;
};

static void weights_finish(struct weights *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->entries[i].name);
    free(w->entries);
    for (size_t i = 0; i < w->n_listed; i++) {
        free(w->listed[i].name);
        free(w->listed[i].file);
    }
    free(w->listed);
    for (size_t i = 0; i < w->n_files; i++)
        pl_checkpoint_finish(&w->files[i]);
    free(w->files);
}

/* ---- files ---- */

static int add_file(struct weights *w, const char *path, struct pl_error *err)
{
    struct pl_checkpoint *files;
    int r;

    if (w->n_files == FILES_MAX)
        return pl_error_set(err, -E2BIG, "the index names more than %d files", FILES_MAX);
    files = reallocarray(w->files, w->n_files + 1, sizeof(*files));
    if (!files)
        return pl_error_nomem(err);
    w->files = files;
    r = pl_checkpoint_read(path, &files[w->n_files], err);
    if (r == 0)
        w->n_files++;
    return r;
}

static int by_name_in_index(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static int by_file(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->file, ((const struct listed *)b)->file);
}

static int add_listed(struct weights *w,
                      size_t *room,
                      const struct pl_mini_value *key,
                      const struct pl_mini_value *value)
{
    struct listed *l = w->listed;
    int r;

    if (w->n_listed == *room) {
        *room = 2 * *room + 16;
        l = reallocarray(l, *room, sizeof(*l));
        if (!l)
            return -ENOMEM;
        w->listed = l;
    }
    l = &w->listed[w->n_listed++];
    *l = (struct listed){0};
    r = pl_mini_string(key, &l->name);
    if (r == 0)
        r = pl_mini_string(value, &l->file);
    return r == 0 && (strchr(l->file, '/') || !*l->file) ? -EINVAL : r;
}

/* The members of "weight_map"; the values are plain names of files. */
static int read_index(struct weights *w, const char *text, struct pl_error *err)
{
    struct pl_mini_value map, key, value;
    size_t pos = 0, room = 0;
    int r = pl_mini_parse(text, &map), more;

    if (r == -EINVAL)
        return pl_error_set(err, r, "not JSON: an index of safetensors files was expected");
    if (r == 0)
        r = pl_mini_find(text, "weight_map", &map);
    while (r == 0 && (more = pl_mini_member(&map, &pos, &key, &value)) != 0)
        r = more < 0 ? more : add_listed(w, &room, &key, &value);
    if (r == 0 && !w->n_listed)
        r = -EINVAL;
    if (r == 0)
        qsort(w->listed, w->n_listed, sizeof(*w->listed), by_name_in_index);
    for (size_t i = 1; i < w->n_listed && r == 0; i++)
        if (strcmp(w->listed[i].name, w->listed[i - 1].name) == 0)
            return pl_error_set(err, -EINVAL, "the index has '%s' twice", w->listed[i].name);
    if (r == 0)
        qsort(w->listed, w->n_listed, sizeof(*w->listed), by_file);
    return r == 0 ? 0
                  : pl_error_set(err, r,
                                 "not an index: it needs \"weight_map\": {NAME: FILE}, with files "
                                 "of the same folder");
}

static int open_index(struct weights *w, const char *path, struct pl_error *err)
{
    const char *slash = strrchr(path, '/');
    int dir = slash ? (int)(slash - path) + 1 : 0;
    _cleanup_free_ char *text = NULL;
    int r = pl_file_read(path, INDEX_MAX, &text, NULL, err);

    if (r == 0)
        r = read_index(w, text, err);
    for (size_t i = 0; i < w->n_listed && r == 0; i++) {
        struct listed *l = &w->listed[i];

        if (i == 0 || strcmp(l->file, l[-1].file) != 0) {
            _cleanup_free_ char *full = pl_strf("%.*s%s", dir, path, l->file);

            r = full ? add_file(w, full, err) : pl_error_nomem(err);
        }
        l->at = w->n_files - 1;
    }
    return r;
}

/* ---- names ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* The tensor itself, or its average in the same file. */
static const struct pl_checkpoint_tensor *newest(struct weights *w,
                                                 const struct pl_checkpoint *file,
                                                 const struct pl_checkpoint_tensor *t,
                                                 bool plain)
{
    char name[sizeof(PL_CHECKPOINT_PREFIX PL_EMA_PREFIX) + PL_PARAM_NAME_MAX];
    const struct pl_checkpoint_tensor *average = NULL;

    if (!plain && strlen(t->name) <= PL_PARAM_NAME_MAX) {
        snprintf(name, sizeof(name), PL_CHECKPOINT_PREFIX PL_EMA_PREFIX "%s", t->name);
        average = pl_checkpoint_find(file, name);
    }
    if (!average)
        return t;
    w->averaged = true;
    return average;
}

static int add_entry(struct weights *w,
                     const struct pl_checkpoint *file,
                     const struct pl_checkpoint_tensor *t,
                     bool plain,
                     const struct pl_weights_map *maps,
                     size_t n_maps)
{
    struct entry *e = &w->entries[w->n];
    int r = 0;

    *e = (struct entry){.name = strdup(t->name), .from = newest(w, file, t, plain)};
    if (!e->name)
        return -ENOMEM;
    w->n++;
    for (size_t i = 0; i < n_maps && r == 0; i++)
        r = pl_weights_map_apply(&maps[i], &e->name, &e->transpose);
    e->transpose &= t->rank == 2;
    return r;
}

/* Takes only the tensors that the index names, each from the file that the index names for it. */
static int add_listed_entries(struct weights *w,
                              bool plain,
                              const struct pl_weights_map *maps,
                              size_t n_maps,
                              struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < w->n_listed && r == 0; i++) {
        const struct listed *l = &w->listed[i];
        const struct pl_checkpoint_tensor *t = pl_checkpoint_find(&w->files[l->at], l->name);

        if (!t)
            return pl_error_set(err, -EINVAL,
                                "the index has '%s' in '%s', but that file does not have it",
                                l->name, l->file);
        if (!pl_visit_is_state(l->name))
            r = add_entry(w, &w->files[l->at], t, plain, maps, n_maps);
    }
    return r < 0 ? pl_error_nomem(err) : 0;
}

static int add_entries(struct weights *w,
                       bool plain,
                       const struct pl_weights_map *maps,
                       size_t n_maps,
                       struct pl_error *err)
{
    size_t room = w->n_listed;
    int r = 0;

    for (size_t i = 0; i < w->n_files && !w->listed; i++)
        room += w->files[i].n;
    w->entries = calloc(room + 1, sizeof(*w->entries));
    if (!w->entries)
        return pl_error_nomem(err);
    if (w->listed)
        r = add_listed_entries(w, plain, maps, n_maps, err);
    for (size_t i = 0; i < w->n_files && !w->listed && r == 0; i++)
        for (size_t k = 0; k < w->files[i].n && r == 0; k++)
            if (!pl_visit_is_state(w->files[i].tensors[k].name) &&
                add_entry(w, &w->files[i], &w->files[i].tensors[k], plain, maps, n_maps) < 0)
                r = pl_error_nomem(err);
    if (r < 0)
        return r;
    qsort(w->entries, w->n, sizeof(*w->entries), by_name);
    for (size_t i = 1; i < w->n; i++)
        if (strcmp(w->entries[i - 1].name, w->entries[i].name) == 0)
            return pl_error_set(
                err, -EINVAL, "'%s' and '%s' both become '%s': change --weights-map",
                w->entries[i - 1].from->name, w->entries[i].from->name, w->entries[i].name);
    return 0;
}

/* The files must have the parameters themselves, not only their average in their place. */
static int check_plain(const struct weights *w, struct pl_error *err)
{
    for (size_t i = 0; i < w->n_files; i++) {
        _cleanup_free_ char *note = pl_checkpoint_get(&w->files[i], "ema");
        bool apart = false;

        for (size_t k = 0; k < w->files[i].n; k++)
            apart |= strncmp(w->files[i].tensors[k].name, PL_CHECKPOINT_PREFIX PL_EMA_PREFIX,
                             sizeof(PL_CHECKPOINT_PREFIX PL_EMA_PREFIX) - 1) == 0;
        if (note && !apart)
            return pl_error_set(err, -EINVAL,
                                "it has the average of the parameters in their place "
                                "(--save-weights-only with --ema): leave --no-ema out");
    }
    return 0;
}

static int open_weights(struct weights *w, const struct pl_train_options *o, struct pl_error *err)
{
    size_t n_maps = 0, len = strlen(o->weights);
    _cleanup_free_ struct pl_weights_map *maps = calloc(o->n_weights_maps + 1, sizeof(*maps));
    bool is_index = len > 5 && strcmp(o->weights + len - 5, ".json") == 0;
    int r = maps ? 0 : pl_error_nomem(err);

    while (r == 0 && n_maps < o->n_weights_maps) {
        r = pl_weights_map_init(&maps[n_maps], o->weights_maps[n_maps], err);
        n_maps += r == 0;
    }
    if (r == 0)
        r = is_index ? open_index(w, o->weights, err) : add_file(w, o->weights, err);
    if (r == 0 && o->plain_weights)
        r = check_plain(w, err);
    if (r == 0)
        r = add_entries(w, o->plain_weights, maps, n_maps, err);
    while (n_maps > 0)
        pl_weights_map_finish(&maps[--n_maps]);
    return r;
}

/* ---- values ---- */

static struct target target_of(const struct pl_params *params, size_t i)
{
    const struct pl_buffer *b = &params->buffers[i - PL_MIN(i, params->n)];
    const struct pl_param *p = i < params->n ? params->list[i] : NULL;

    if (p)
        return (struct target){p->name, p->whole, pl_dtype_of_real(params->real),
                               params->shard == PL_SHARD_PARAM ? NULL : pl_param_value(params, p)};
    return (struct target){b->name, b->tensor, b->tensor->dtype, b->tensor->data};
}

static struct entry *find(const struct weights *w, const char *name)
{
    const struct entry key = {.name = (char *)(uintptr_t)name};

    return w->n ? bsearch(&key, w->entries, w->n, sizeof(key), by_name) : NULL;
}

static bool fits(const struct target *target, const struct entry *e)
{
    const struct pl_checkpoint_tensor *from = e->from;
    bool same =
        from->rank == target->t->rank && pl_checkpoint_convertible(target->dtype, from->dtype);

    for (size_t i = 0; i < from->rank && same; i++)
        same = target->t->shape[i] == from->shape[e->transpose ? 1 - i : i];
    return same;
}

static int set_value(struct pl_device *dev,
                     const struct target *target,
                     const struct entry *e,
                     struct pl_error *err)
{
    struct pl_device_map map;
    int r;

    if (!target->data) /* another stage of the pipeline owns it */
        return 0;
    r = pl_device_map(dev, target->data, target->t->count * pl_dtype_size(target->dtype),
                      PL_DEVICE_WRITE, &map, err);

    if (r < 0)
        return r;
    pl_checkpoint_convert(e->from, e->transpose, target->dtype, map.data);
    pl_device_unmap(&map);
    return 0;
}

/* ---- the report ---- */

struct list {
    struct pl_buf text;
    size_t n;
};

static void list_add(struct list *list, const char *name)
{
    if (list->n++ < NAMES_MAX)
        pl_buf_addf(&list->text, "%s%s", list->text.len ? ", " : "", name);
}

static void list_write(struct pl_buf *b, const char *title, const struct list *list)
{
    if (list->n)
        pl_buf_addf(b, "; %s: %s", title, pl_buf_str(&list->text));
    if (list->n > NAMES_MAX)
        pl_buf_addf(b, " and %zu more", list->n - NAMES_MAX);
}

static void list_add_shape(struct list *list, const struct target *target, const struct entry *e)
{
    const struct pl_checkpoint_tensor *from = e->from;
    plume_tensor t = {.dtype = from->dtype, .rank = from->dtype ? from->rank : 0};
    char has[128], wants[128], both[600];

    memcpy(t.shape, from->shape, sizeof(t.shape));
    if (e->transpose) {
        t.shape[0] = from->shape[1];
        t.shape[1] = from->shape[0];
    }
    pl_tensor_text(&t, has, sizeof(has));
    pl_tensor_text(target->t, wants, sizeof(wants));
    snprintf(both, sizeof(both), "%.200s (the file has %s, the module %s)", target->name,
             from->dtype ? has : "another type", wants);
    list_add(list, both);
}

/* PyTorch's batch norm counts its batches; that has an effect only without a momentum. */
static bool is_counter(const struct pl_checkpoint_tensor *t)
{
    static const char suffix[] = "num_batches_tracked";
    size_t len = strlen(t->name), n = sizeof(suffix) - 1;

    return t->rank == 0 && len >= n && strcmp(t->name + len - n, suffix) == 0;
}

/* Finds what belongs together and reports the rest. -EINVAL if the options do not allow it. */
static int match(const struct pl_params *params,
                 struct weights *w,
                 const struct pl_train_options *o,
                 char **ret_report,
                 struct pl_error *err)
{
    struct list missing = {0}, other = {0}, unused = {0};
    size_t all = params->n + params->n_buffers, n = 0;
    struct pl_buf b = {0};
    int r = 0;

    for (size_t i = 0; i < all; i++) {
        struct target target = target_of(params, i);
        struct entry *e = find(w, target.name);

        if (!e) {
            list_add(&missing, target.name);
            continue;
        }
        e->found = true;
        e->used = fits(&target, e);
        n += e->used;
        if (!e->used)
            list_add_shape(&other, &target, e);
    }
    for (size_t i = 0; i < w->n; i++)
        if (!w->entries[i].found && !is_counter(w->entries[i].from))
            list_add(&unused, w->entries[i].from->name);
    if (missing.n || other.n || unused.n) {
        pl_buf_addf(&b, "%zu of %zu parameters and buffers are set", n, all);
        list_write(&b, "not found", &missing);
        list_write(&b, "of another shape or type", &other);
        list_write(&b, "not used", &unused);
        if (n == 0 || o->weights_strict || (n < all && o->run != PL_RUN_TRAIN))
            r = pl_error_set(err, -EINVAL, "%s%s", pl_buf_str(&b),
                             n == 0              ? " (--weights-map changes names)"
                             : o->weights_strict ? " (--weights-strict)"
                                                 : ": only training starts with a part of them");
        else if (!(*ret_report = pl_buf_take(&b)))
            r = pl_error_nomem(err);
    }
    pl_buf_finish(&b);
    pl_buf_finish(&missing.text);
    pl_buf_finish(&other.text);
    pl_buf_finish(&unused.text);
    return r;
}

/* The same of a parameter of which this rank has a part. */
static int set_part(const struct pl_params *params,
                    const struct pl_param *p,
                    const struct entry *e,
                    struct pl_error *err)
{
    enum plume_dtype dtype = pl_dtype_of_real(params->real);
    struct pl_shard_span span = pl_shard_span(params, p);
    bool shards = params->shard == PL_SHARD_PARAM;
    _cleanup_free_ void *whole = NULL;

    if ((shards && !span.count) || !pl_param_is_own(params, p))
        return 0;
    whole = malloc(p->whole->count * pl_dtype_size(dtype));
    if (!whole)
        return pl_error_nomem(err);
    pl_checkpoint_convert(e->from, e->transpose, dtype, whole);
    return pl_param_part_put(
        params, p, shards ? pl_shard_part(params, p, params->values) : pl_param_value(params, p),
        shards ? &span : NULL, whole, err);
}

static int set_values(struct pl_params *params, const struct weights *w, struct pl_error *err)
{
    int r = 0;

    params->values_version++;
    params->buffers_version++;
    for (size_t i = 0; i < params->n + params->n_buffers && r == 0; i++) {
        struct target target = target_of(params, i);
        const struct entry *e = find(w, target.name);

        if (e && e->used && i < params->n &&
            (params->shard == PL_SHARD_PARAM || pl_param_is_split(params->list[i])))
            r = set_part(params, params->list[i], e, err);
        else if (e && e->used)
            r = set_value(params->dev, &target, e, err);
    }
    return r;
}

int pl_weights_load(struct pl_params *params,
                    const struct pl_train_options *options,
                    bool *ret_averaged,
                    char **ret_report,
                    struct pl_error *err)
{
    _cleanup_free_ char *report = NULL;
    struct weights w = {0};
    int r = open_weights(&w, options, err);

    if (r == 0)
        r = match(params, &w, options, &report, err);
    if (r == 0)
        r = set_values(params, &w, err);
    weights_finish(&w);
    if (r < 0)
        return pl_error_wrap(err, r, "cannot take weights from '%s'", options->weights);
    *ret_averaged = w.averaged;
    *ret_report = PL_TAKE(report);
    return 0;
}
