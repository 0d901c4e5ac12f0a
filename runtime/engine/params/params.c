/* SPDX-License-Identifier: MIT */
#include "runtime/engine/params/params.h"
#include "kernels/pool/pool.h"
#include "runtime/engine/params/consistency.h"
#include "runtime/engine/params/draw.h"
#include "runtime/engine/params/param_parts.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/util/rng.h"
#include "runtime/engine/util/sha256.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define SHARE_BYTES 256

void pl_params_init(struct pl_params *params, struct pl_device *dev, enum pl_real real)
{
    *params =
        (struct pl_params){.dev = dev, .real = real, .values_version = 1, .buffers_version = 1};
}

void pl_params_finish(struct pl_params *params)
{
    for (size_t i = 0; i < params->n; i++) {
        free(params->list[i]->name);
        free(params->list[i]->given);
        if (params->list[i]->whole != params->list[i]->tensor)
            free(params->list[i]->whole);
        free(params->list[i]->tensor);
        pl_device_free(params->dev, params->list[i]->borrowed);
        free(params->list[i]);
    }
    for (size_t i = 0; i < params->n_buffers; i++) {
        free(params->buffers[i].name);
        pl_device_free(params->dev, params->buffers[i].tensor->data);
        free(params->buffers[i].tensor);
    }
    free(params->buffers);
    free(params->list);
    free(params->order);
    free(params->stages.bounds);
    if (params->dev && params->owns_grads)
        pl_device_free(params->dev, params->grads);
    pl_device_cpu_count(-(int64_t)params->lent);
    if (params->dev && !params->by_node)
        pl_device_free(params->dev, params->values);
    if (params->dev)
        pl_device_free(params->dev, params->halves);
    *params = (struct pl_params){0};
}

/* As those of PyTorch, in which a number is the place in a torch.nn.Sequential. A name is a JSON
 * string in files, and shares no list with the names of metrics. */
static bool is_valid(const char *name)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";

    return *name && *name != '.' && *name != '-' && strspn(name, set) == strlen(name);
}

/* Returns 0 if the name is valid and new. */
static int check_name(const struct pl_params *params, const char *name, struct pl_error *err)
{
    bool taken = false;

    if (!name || !is_valid(name))
        return pl_error_set(err, -EINVAL,
                            "'%s' is not a parameter name: wanted are letters, digits and _.-, "
                            "first a letter, a digit or _",
                            name ? name : "NULL");
    if (strlen(name) > PL_PARAM_NAME_MAX)
        return pl_error_set(err, -ENAMETOOLONG,
                            "parameter names have at most %d bytes, not %zu: '%.40s...'",
                            PL_PARAM_NAME_MAX, strlen(name), name);
    if (strcmp(name, "__metadata__") == 0)
        return pl_error_set(err, -EINVAL,
                            "a parameter cannot be named '__metadata__', which in the files of "
                            "checkpoints is no tensor: choose another name");
    if (strncmp(name, "plume.", 6) == 0)
        return pl_error_set(err, -EINVAL,
                            "the parameter name '%s' has a meaning in checkpoints: choose one that "
                            "does not begin with 'plume.'",
                            name);
    for (size_t i = 0; i < params->n; i++)
        taken |= strcmp(params->list[i]->name, name) == 0;
    for (size_t i = 0; i < params->n_buffers; i++)
        taken |= strcmp(params->buffers[i].name, name) == 0;
    return taken ? pl_error_set(err, -EEXIST, "parameter '%s' is declared twice", name) : 0;
}

static int refuse_shape(
    const char *what, const char *name, size_t rank, const size_t *shape, struct pl_error *err)
{
    plume_tensor t = {.rank = rank};
    char text[160];

    if (rank > PLUME_RANK_MAX)
        return pl_error_set(err, -EINVAL, "%s '%s' has %zu dimensions: there are at most %d", what,
                            name, rank, PLUME_RANK_MAX);
    memcpy(t.shape, shape, rank * sizeof(*shape));
    return pl_error_set(err, -EINVAL,
                        "%s '%s' has the shape %s: each size must be at least 1, and their product "
                        "fit into 64 bits",
                        what, name, strchr(pl_tensor_text(&t, text, sizeof(text)), '['));
}

int pl_params_declare_buffer(struct pl_params *params,
                             const char *name,
                             enum plume_init init,
                             size_t rank,
                             const size_t *shape,
                             plume_tensor **ret,
                             struct pl_error *err)
{
    struct pl_buffer b = {.init = init}, *list;
    int r = check_name(params, name, err);

    if (r == 0 && rank && !shape)
        r = pl_error_set(err, -EINVAL, "'%s' has %zu dimensions, and its shape is NULL", name,
                         rank);
    if (r < 0)
        return r;
    list = reallocarray(params->buffers, params->n_buffers + 1, sizeof(*list));
    if (!list)
        return pl_error_nomem(err);
    params->buffers = list;
    b.name = strdup(name);
    b.tensor = calloc(1, sizeof(*b.tensor));
    if (!b.name || !b.tensor) {
        r = pl_error_nomem(err);
    } else if (pl_tensor_init(b.tensor, pl_dtype_of_real(params->real), rank, shape) < 0 ||
               b.tensor->count == 0) {
        r = refuse_shape("buffer", name, rank, shape, err);
    } else if (init > PLUME_INIT_ONE) {
        r = pl_error_set(err, -EINVAL, "buffer '%s' starts with zeros or ones, not as init %d",
                         name, (int)init);
    } else {
        r = pl_device_alloc_zero(params->dev, b.tensor->count * pl_real_size(params->real),
                                 "buffers", &b.tensor->data, err);
    }
    if (r < 0) {
        free(b.name);
        free(b.tensor);
        return r;
    }
    list[params->n_buffers++] = b;
    b.tensor->number = (unsigned)(params->n + params->n_buffers);
    *ret = b.tensor;
    return 0;
}

int pl_params_spread_buffers(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    int r = 0;

    if (comm->size > 1)
        params->buffers_version++;
    for (size_t i = 0; i < params->n_buffers && comm->size > 1 && r == 0; i++)
        r = pl_comm_broadcast_on(comm, params->dev, params->buffers[i].tensor->data,
                                 params->buffers[i].tensor->count * pl_real_size(params->real),
                                 err);
    return r;
}

int pl_params_declare(struct pl_params *params,
                      const char *name,
                      enum plume_init init,
                      size_t rank,
                      const size_t *shape,
                      plume_tensor **ret,
                      struct pl_error *err)
{
    struct pl_param **list, *p;
    int r = check_name(params, name, err);

    if (r == 0 && rank && !shape)
        r = pl_error_set(err, -EINVAL, "'%s' has %zu dimensions, and its shape is NULL", name,
                         rank);
    if (r < 0)
        return r;
    list = reallocarray(params->list, params->n + 1, sizeof(*list));
    if (!list)
        return pl_error_nomem(err);
    params->list = list;
    p = calloc(1, sizeof(*p));
    if (!p || !(p->name = strdup(name)) || !(p->tensor = calloc(1, sizeof(*p->tensor)))) {
        r = pl_error_nomem(err);
        goto fail;
    }
    r = pl_tensor_init(p->tensor, pl_dtype_of_real(params->real), rank, shape);
    if (r < 0 || p->tensor->count == 0) {
        r = refuse_shape("parameter", name, rank, shape, err);
        goto fail;
    }
    p->initial.kind = init;
    p->whole = p->tensor;
    p->tensor->is_param = true;
    p->tensor->wants_grad = true;
    list[params->n++] = p;
    p->tensor->number = (unsigned)(params->n + params->n_buffers);
    *ret = p->tensor;
    return 0;
fail:
    if (p) {
        free(p->name);
        free(p->tensor);
        free(p);
    }
    return r;
}

static void find_first_nodes(struct pl_params *params, const struct pl_tape *tape)
{
    for (size_t i = 0; i < params->n; i++) {
        struct pl_param *p = params->list[i];

        p->first_node = SIZE_MAX;
        p->last_node = 0;
        for (size_t n = 0; n < tape->n; n++)
            for (size_t k = 0; k < tape->nodes[n].n_in; k++)
                if (tape->nodes[n].in[k] && pl_tensor_root(tape->nodes[n].in[k]) == p->tensor) {
                    p->first_node = PL_MIN(p->first_node, n);
                    p->last_node = n;
                }
        p->first_use = p->first_node;
    }
}

/* Stable, by first use. There are few: insertion sort. */
static void sort_by_use(struct pl_params *params)
{
    for (size_t i = 0; i < params->n; i++) {
        size_t k = i;

        for (; k > 0 && params->order[k - 1]->first_node > params->list[i]->first_node; k--)
            params->order[k] = params->order[k - 1];
        params->order[k] = params->list[i];
    }
}

/* Memory for the gradients: an arena like the values', or this rank's shard. */
static int alloc_grads(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    size_t size = pl_real_size(params->real), bytes = params->count * size;
    size_t flags = params->flags;
    int r;

    if (pl_params_shard_grads(params) || params->stages.n) {
        params->grads_from = params->own_from;
        flags = params->own_to - params->own_from;
        bytes = (flags + params->count - params->flags) * size;
    } else if (params->evaluates) {
        params->grads_from = params->flags;
        flags = 0;
        bytes = (params->count - params->flags) * size;
    }
    params->owns_grads = pl_params_shard_grads(params) || params->stages.n || params->peers ||
                         (!params->dev->ops->host && !comm->gpu);
    if (params->owns_grads)
        r = pl_device_alloc_zero(params->dev, PL_MAX(bytes, (size_t)64), "gradients",
                                 &params->grads, err);
    else
        r = pl_comm_alloc(params->dev->ops->host ? comm : comm->gpu,
                          params->dev->ops->host ? bytes : PL_MAX(bytes, (size_t)64),
                          &params->grads, err);
    if (r == 0 && !params->owns_grads && params->dev->ops->host) {
        params->lent += bytes;
        pl_device_cpu_count((int64_t)bytes);
    }
    if (r == 0)
        params->flag_list = (char *)params->grads + flags * size;
    return r < 0 ? pl_error_wrap(err, r, "memory for gradients") : 0;
}

/* With by_node the node's other ranks write to them. */
static int alloc_values(struct pl_params *params, struct pl_error *err)
{
    size_t bytes = PL_MAX(pl_params_held(params) * pl_real_size(params->real), (size_t)64);
    int r;

    if (!params->by_node)
        return pl_device_alloc_zero(params->dev, bytes, "parameters", &params->values, err);
    r = pl_comm_alloc(params->by_node, bytes, &params->values, err);
    if (r < 0)
        return pl_error_wrap(err, r, "memory for parameters");
    params->lent += bytes;
    pl_device_cpu_count((int64_t)bytes);
    return 0;
}

static int alloc_arenas(struct pl_params *params, struct pl_comm *comm, struct pl_error *err)
{
    int r;

    if (params->shard && params->shards)
        comm = params->shards;
    if (params->shard)
        pl_shard_take(params, comm->rank, comm->size);
    if (pl_params_partial(params))
        params->values_from = params->own_from;
    r = alloc_values(params, err);
    if (r == 0)
        r = alloc_grads(params, comm, err);
    if (r == 0)
        pl_stages_point(params);
    return r;
}

int pl_params_layout(struct pl_params *params,
                     const struct pl_tape *tape,
                     struct pl_comm *comm,
                     struct pl_error *err)
{
    size_t size = pl_real_size(params->real), align = PL_PARAM_ALIGN / size;
    size_t share = (size_t)comm->size * (SHARE_BYTES / size), count = 0;
    int r;

    params->order = calloc(PL_MAX(params->n, (size_t)1), sizeof(struct pl_param *));
    if (!params->order)
        return pl_error_nomem(err);
    find_first_nodes(params, tape);
    sort_by_use(params);
    r = pl_agree_on_layout(params, comm, err);
    if (r < 0)
        return r;
    for (size_t i = 0; i < params->n; i++) {
        params->order[i]->offset = count;
        count += (params->order[i]->tensor->count + align - 1) / align * align;
    }
    params->flags = params->own_to = count;
    params->count = (count + params->n + PL_PARAMS_SIGNALS + share - 1) / share * share;
    if (params->stages.n)
        r = pl_stages_set_bounds(params, err);
    return r < 0 ? r : alloc_arenas(params, comm, err);
}

/* given: the values themselves, or NULL. */
static int put_initial(const struct pl_initial *initial,
                       const double *given,
                       const plume_tensor *t,
                       struct pl_rng *rng,
                       void *data,
                       struct pl_error *err)
{
    if (!given)
        return pl_initial_values(initial, t, rng, data, err);
    pl_initial_put(t, data, 0, t->count, given);
    return 0;
}

static int init_tensor(struct pl_device *dev,
                       const plume_tensor *t,
                       const struct pl_initial *initial,
                       const double *given,
                       struct pl_rng *rng,
                       struct pl_error *err)
{
    struct pl_device_map map;
    int r =
        pl_device_map(dev, t->data, t->count * pl_dtype_size(t->dtype), PL_DEVICE_WRITE, &map, err);

    if (r < 0)
        return r;
    r = put_initial(initial, given, t, rng, map.data, err);
    pl_device_unmap(&map);
    return r;
}

static int
init_whole(const struct pl_param *p, struct pl_rng *rng, void *data, struct pl_error *err)
{
    return put_initial(&p->initial, p->given, p->whole, rng, data, err);
}

/* Of the whole's values this rank keeps its part. */
static int init_part(struct pl_params *params,
                     const struct pl_param *p,
                     struct pl_rng *rng,
                     struct pl_error *err)
{
    _cleanup_free_ void *whole = malloc(p->whole->count * pl_real_size(params->real));
    int r = whole ? init_whole(p, rng, whole, err) : pl_error_nomem(err);

    return r < 0 ? r : pl_param_part_put(params, p, p->tensor->data, NULL, whole, err);
}

/* A module's own values may differ between ranks: rank 0's count. */
static int init_shard(struct pl_params *params,
                      struct pl_comm *comm,
                      const struct pl_param *p,
                      struct pl_rng *rng,
                      struct pl_error *err)
{
    size_t bytes = p->whole->count * pl_real_size(params->real);
    struct pl_shard_span span = pl_shard_span(params, p);
    _cleanup_free_ char *whole = malloc(bytes);
    int r = whole ? init_whole(p, rng, whole, err) : pl_error_nomem(err);

    if (r == 0)
        r = pl_comm_broadcast(comm, whole, bytes, err);
    return r < 0 ? r
                 : pl_param_part_put(params, p, pl_shard_part(params, p, params->values), &span,
                                     whole, err);
}

static int init_param(struct pl_params *params,
                      struct pl_comm *comm,
                      const struct pl_param *p,
                      struct pl_rng *rng,
                      struct pl_error *err)
{
    if (params->shard == PL_SHARD_PARAM)
        return init_shard(params, comm, p, rng, err);
    if (pl_param_is_split(p))
        return init_part(params, p, rng, err);
    return init_tensor(params->dev, p->tensor, &p->initial, p->given, rng, err);
}

struct init {
    struct pl_params *params;
    struct pl_comm *comm;
    uint64_t seed;
    atomic_int result; /* of the first that failed, who sets err */
    struct pl_error *err;
};

/* Each parameter has random numbers of its own, so threads may make them in any order. */
static void init_range(void *ctx, size_t begin, size_t end)
{
    struct init *a = ctx;

    for (size_t i = begin; i < end && atomic_load(&a->result) == 0; i++) {
        struct pl_error err = {0};
        struct pl_rng rng;
        int r, none = 0;

        if (!pl_param_is_own(a->params, a->params->list[i]))
            continue;
        pl_params_stream(a->seed, i, &rng);
        r = init_param(a->params, a->comm, a->params->list[i], &rng, &err);
        if (r < 0 && atomic_compare_exchange_strong(&a->result, &none, r) && a->err)
            *a->err = err;
    }
}

int pl_params_init_values(struct pl_params *params,
                          struct pl_comm *comm,
                          uint64_t seed,
                          struct pl_error *err)
{
    struct init a = {.params = params, .comm = comm, .seed = seed, .err = err};
    int r = 0;

    params->values_version++;
    params->buffers_version++;
    for (size_t i = 0; i < params->n_buffers && r == 0; i++)
        r = init_tensor(params->dev, params->buffers[i].tensor,
                        &(struct pl_initial){.kind = params->buffers[i].init}, NULL, NULL, err);
    if (r < 0)
        return r;
    if (pl_params_drawn_together(params, comm))
        return pl_params_draw(params, comm, seed, err);
    if (params->dev->ops->host && params->shard != PL_SHARD_PARAM && !params->peers)
        pl_pool_parallel(params->n, 1, init_range, &a);
    else /* one thread asks devices and ranks; of parts there is one whole at a time */
        init_range(&a, 0, params->n);
    return atomic_load(&a.result);
}

/* Adds a parameter of which other ranks have parts or shards. */
static int hash_gathered(const struct pl_params *params,
                         struct pl_comm *comm,
                         const struct pl_param *p,
                         struct pl_sha256 *sha,
                         struct pl_error *err)
{
    bool shards = pl_params_partial(params);
    size_t bytes = p->whole->count * pl_real_size(params->real);
    _cleanup_free_ char *whole = malloc(bytes);
    int r = whole ? pl_param_part_gather(params, shards ? comm : NULL, p,
                                         shards ? pl_shard_part(params, p, params->values)
                                                : p->tensor->data,
                                         whole, err)
                  : pl_error_nomem(err);

    if (r == 0)
        pl_sha256_add(sha, whole, bytes);
    return r;
}

int pl_params_hash(const struct pl_params *params,
                   struct pl_comm *comm,
                   char ret[PL_PARAMS_HASH],
                   struct pl_error *err)
{
    uint8_t digest[PL_SHA256_BYTES];
    struct pl_sha256 sha;
    int r = pl_params_fetch(params, err);

    if (r < 0)
        return r;
    pl_sha256_init(&sha);
    for (size_t i = 0; i < params->n; i++) {
        const plume_tensor *t = params->list[i]->tensor;
        struct pl_device_map map;

        if (pl_params_partial(params) || pl_param_is_split(params->list[i])) {
            r = hash_gathered(params, comm, params->list[i], &sha, err);
            if (r < 0)
                return r;
            continue;
        }
        r = pl_device_map(params->dev, t->data, t->count * pl_dtype_size(t->dtype), PL_DEVICE_READ,
                          &map, err);
        if (r < 0)
            return r;
        pl_sha256_add(&sha, map.data, map.bytes);
        pl_device_unmap(&map);
    }
    pl_sha256_final(&sha, digest);
    for (size_t i = 0; i < 8; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
    return 0;
}
