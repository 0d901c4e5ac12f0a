/* SPDX-License-Identifier: MIT */
#include "runtime/engine/reduce/reducer.h"
#include "runtime/engine/comm/comm_nccl.h"
#include "runtime/engine/params/shard.h"
#include "runtime/engine/reduce/grad_places.h"
#include "runtime/engine/util/timeline.h"

#include <math.h>

int pl_reducer_init(struct pl_reducer *reducer,
                    struct pl_params *params,
                    const struct pl_optimizer *only,
                    struct pl_comm *comm,
                    size_t first_bytes,
                    size_t max_bytes,
                    struct pl_error *err)
{
    size_t max = first_bytes / pl_real_size(params->real), n = 1, end = params->flags;
    size_t flags = params->shard ? params->n + PL_PARAMS_SIGNALS : params->count - params->flags;
    struct pl_bucket *buckets = calloc(params->n + 1, sizeof(*buckets)), *b = buckets;
    size_t most = 0;
    int r;

    if (!buckets)
        return pl_error_set(err, -ENOMEM, "out of memory");
    *b = (struct pl_bucket){.offset = params->flags, .count = flags};
    for (size_t i = params->n; i-- > 0; end = params->order[i]->offset) {
        const struct pl_param *p = params->order[i];

        if ((only && !pl_optimizer_has(only, p)) || !pl_param_is_own(params, p))
            continue;
        if (b->offset != end || (b->n && b->count + (end - p->offset) > max) ||
            (!b->n && params->shard)) {
            if (b->n)
                max = max_bytes / pl_real_size(params->real);
            b = &buckets[n++];
            *b = (struct pl_bucket){.offset = end};
        }
        b->count += end - p->offset;
        b->offset = p->offset;
        b->first = i;
        b->n++;
    }
    *reducer = (struct pl_reducer){.comm = comm,
                                   .shards = comm,
                                   .params = params,
                                   .buckets = buckets,
                                   .n = n,
                                   .next = n,
                                   .first_bytes = first_bytes,
                                   .max_bytes = max_bytes};
    reducer->parts = calloc((size_t)comm->size + 1, sizeof(*reducer->parts));
    r = reducer->parts ? pl_reducer_replan(reducer, err) : pl_error_nomem(err);
    if (r < 0) {
        pl_reducer_finish(reducer);
        return r;
    }
    for (size_t i = 0; i < n; i++)
        most = PL_MAX(most, buckets[i].count * pl_real_size(params->real));
    if (params->dev->ops->host || comm->size == 1 || comm->gpu || most == 0)
        return 0;
    r = pl_comm_alloc(comm, most, &reducer->stage, err);
    if (r < 0)
        pl_reducer_finish(reducer);
    return r;
}

static bool keeps_shards(const struct pl_reducer *red)
{
    return pl_params_shard_grads(red->params);
}

/* Bytes of an element of a bucket that has no place in the arena. */
static size_t element_size(const struct pl_reducer *red)
{
    return pl_real_size(red->params->real) + (red->half ? sizeof(uint16_t) : 0);
}

/* A bucket's memory lives until the next reduction begins. */
static bool ends_late(const struct pl_reducer *red)
{
    return red->comm->gpu && !red->params->dev->ops->host;
}

/* Places the gradients anew, if they have no arena. */
static int place(struct pl_reducer *red, struct pl_error *err)
{
    if (!keeps_shards(red))
        return 0;
    return pl_grad_places(&red->places, red->params, red->buckets, red->n, element_size(red),
                          ends_late(red), err);
}

static void find_ready(struct pl_reducer *reducer)
{
    for (size_t i = 0; i < reducer->n; i++) {
        struct pl_bucket *b = &reducer->buckets[i];

        b->ready_node = b->free_node = SIZE_MAX;
        for (size_t k = b->first; k < b->first + b->n; k++) {
            b->ready_node = PL_MIN(b->ready_node, reducer->params->order[k]->first_node);
            b->free_node = PL_MIN(b->free_node, reducer->params->order[k]->read_node);
        }
        b->free_node = PL_MIN(b->free_node, b->ready_node);
    }
}

int pl_reducer_replan(struct pl_reducer *reducer, struct pl_error *err)
{
    find_ready(reducer);
    return place(reducer, err);
}

int pl_reducer_measure(struct pl_reducer *reducer, size_t *ret, struct pl_error *err)
{
    size_t bytes = reducer->low ? reducer->params->count * sizeof(*reducer->low) : 0;

    find_ready(reducer);
    if (keeps_shards(reducer))
        bytes = pl_grad_places_measure(reducer->params, reducer->buckets, reducer->n,
                                       element_size(reducer), ends_late(reducer));
    if (bytes == SIZE_MAX)
        return pl_error_nomem(err);
    *ret = PL_MAX(bytes, reducer->places.bytes); /* it never shrinks */
    return 0;
}

int pl_reducer_narrow(struct pl_reducer *reducer, enum pl_half half, struct pl_error *err)
{
    void *low = NULL;
    int r;

    reducer->half = half;
    if (keeps_shards(reducer))
        return place(reducer, err);
    r = pl_device_alloc(reducer->params->dev, reducer->params->count * sizeof(*reducer->low),
                        "gradients in 16 bits", &low, err);
    reducer->low = low;
    return r;
}

void pl_reducer_finish(struct pl_reducer *reducer)
{
    if (reducer->params) {
        pl_device_free(reducer->params->dev, reducer->low);
        pl_device_free(reducer->params->dev, reducer->places.memory);
    }
    free(reducer->buckets);
    free(reducer->parts);
    *reducer = (struct pl_reducer){0};
}

int pl_reducer_rebuild(struct pl_reducer *reducer, struct pl_error *err)
{
    struct pl_reducer old = *reducer;
    int r =
        pl_reducer_init(reducer, old.params, NULL, old.comm, old.first_bytes, old.max_bytes, err);

    if (r == 0) {
        reducer->alone = old.alone;
        reducer->own = old.own;
        reducer->pl = old.pl;
        reducer->timeline = old.timeline;
    }
    if (r == 0 && old.half != PL_HALF_NONE)
        r = pl_reducer_narrow(reducer, old.half, err);
    pl_reducer_finish(&old);
    return r;
}

void pl_reducer_begin(struct pl_reducer *reducer, double scale, bool adds)
{
    reducer->next = 0;
    reducer->scale = scale;
    reducer->adds = adds;
    reducer->posts = false;
}

/* The gradients of a bucket. */
static void *grads_of(const struct pl_reducer *red, const struct pl_bucket *b)
{
    if (!b->n)
        return red->params->flag_list;
    return b->memory ? b->memory : pl_params_grad(red->params, b->offset);
}

/* Arguments to convert a bucket between gradients and 16 bits. */
static struct pl_half_args half_args(const struct pl_reducer *red, const struct pl_bucket *b)
{
    return (struct pl_half_args){
        .n = b->count,
        .type = red->half,
        .half = b->memory ? (uint16_t *)(void *)(b->memory + b->count * sizeof(float))
                          : red->low + b->offset,
        .wide = grads_of(red, b),
    };
}

/* Only the flags of a run that keeps shards have no 16-bit copy. */
static bool in_16_bits(const struct pl_reducer *red, const struct pl_bucket *b)
{
    return red->half != PL_HALF_NONE && (b->memory || red->low);
}

/* The largest power of two up to x. Multiplying 16-bit numbers by it before the sum does not round,
 * and keeps the sum no larger than its terms. */
static double power_of(double x)
{
    int exponent = 0;

    (void)frexp(x, &exponent);
    return ldexp(0.5, exponent);
}

/* Starts an allreduce on comm->gpu, or with `parts` a reduce-scatter between the shards. */
static int start_nccl(struct pl_reducer *red,
                      void *buf,
                      size_t count,
                      const size_t *parts,
                      enum pl_nccl_type type,
                      double scale,
                      struct pl_error *err)
{
    red->started = true;
    return parts ? pl_comm_nccl_start_scatter(red->shards->gpu, buf, parts, type, scale, err)
                 : pl_comm_nccl_start(red->comm->gpu, buf, count, type, scale, err);
}

static enum pl_nccl_type type_of(const struct pl_reducer *red, const struct pl_bucket *b)
{
    if (in_16_bits(red, b))
        return red->half == PL_HALF_BF16 ? PL_NCCL_BF16 : PL_NCCL_F16;
    return red->params->real == PL_REAL_F64 ? PL_NCCL_F64 : PL_NCCL_F32;
}

static int
start(struct pl_reducer *red, const struct pl_bucket *b, const size_t *parts, struct pl_error *err)
{
    struct pl_device *dev = red->params->dev;

    if (in_16_bits(red, b)) {
        struct pl_half_args low = half_args(red, b);

        dev->ops->kernels(dev, red->params->real)->narrow(&low);
        return start_nccl(red, low.half, b->count, parts, type_of(red, b), power_of(red->scale),
                          err);
    }
    return start_nccl(red, grads_of(red, b), b->count, parts, type_of(red, b), red->scale, err);
}

/* Later work on the device waits for what was started between all ranks and between the shards. */
static int join_shards(const struct pl_reducer *red, struct pl_error *err)
{
    int r = pl_comm_nccl_join(red->comm->gpu, err);

    return r < 0 || red->shards == red->comm ? r : pl_comm_nccl_join(red->shards->gpu, err);
}

/* Call after join_shards(): adds the own parts of buckets [from, to) to those of the copies. */
static int sum_copies(const struct pl_reducer *red, size_t from, size_t to, struct pl_error *err)
{
    const struct pl_params *params = red->params;
    size_t size = pl_real_size(params->real);
    int r = 0;

    if (!red->copies || red->own)
        return 0;
    for (size_t i = from; i < to && r == 0; i++) {
        const struct pl_bucket *b = &red->buckets[i];
        size_t first = PL_MAX(b->offset, params->own_from);
        size_t end = PL_MIN(b->offset + b->count, params->own_to);

        if (!b->n || first >= end) /* as many elements on each of these ranks */
            continue;
        r = pl_comm_nccl_start(red->copies->gpu,
                               in_16_bits(red, b)
                                   ? (void *)(half_args(red, b).half + (first - b->offset))
                                   : (char *)grads_of(red, b) + (first - b->offset) * size,
                               end - first, type_of(red, b), 1, err);
    }
    return r < 0 ? r : pl_comm_nccl_join(red->copies->gpu, err);
}

static void widen(const struct pl_reducer *red, const struct pl_bucket *b)
{
    struct pl_device *dev = red->params->dev;
    const struct pl_kernels *k = dev->ops->kernels(dev, red->params->real);
    struct pl_half_args low = half_args(red, b);
    double rest = red->scale / power_of(red->scale);

    k->widen(&low);
    if (rest != 1)
        k->affine(
            &(struct pl_affine_args){.n = low.n, .scale = rest, .x = low.wide, .y = low.wide});
}

/* PL_SHARD_GRAD: takes the own part of a reduced bucket over to the shard. */
static void take(const struct pl_reducer *red, const struct pl_bucket *b)
{
    const struct pl_params *params = red->params;
    struct pl_device *dev = params->dev;
    size_t from = PL_MAX(b->offset, params->own_from);
    size_t to = PL_MIN(b->offset + b->count, params->own_to);
    size_t size = pl_real_size(params->real);
    char *own, *part;

    if (!keeps_shards(red) || !b->n || from >= to)
        return;
    own = pl_params_grad(params, from);
    part = b->memory + (from - b->offset) * size;
    if (red->adds)
        dev->ops->kernels(dev, params->real)
            ->add(
                &(struct pl_add_args){.n = to - from, .scale = 1, .a = own, .b = part, .dst = own});
    else
        dev->ops->copy(dev, own, part, (to - from) * size);
}

/* With PL_SHARD_GRAD one reduction runs at a time. */
static int finish_pending(struct pl_reducer *red, struct pl_error *err)
{
    const struct pl_bucket *b = red->pending;
    int r = b ? join_shards(red, err) : 0;

    red->pending = NULL;
    if (r == 0 && b) {
        size_t index = (size_t)(b - red->buckets);

        r = sum_copies(red, index, index + 1, err);
    }
    if (r < 0 || !b)
        return r;
    if (in_16_bits(red, b))
        widen(red, b);
    take(red, b);
    return 0;
}

/* Later work on the device waits for all reductions that were started. */
static int join(struct pl_reducer *red, struct pl_error *err)
{
    int r;

    red->started = false;
    if (red->params->dev->ops->host)
        return pl_comm_join(red->comm, err);
    if (keeps_shards(red))
        return finish_pending(red, err);
    r = join_shards(red, err);
    if (r == 0)
        r = sum_copies(red, 0, red->n, err);
    for (size_t i = 0; r == 0 && i < red->n; i++)
        if (in_16_bits(red, &red->buckets[i]))
            widen(red, &red->buckets[i]);
    return r;
}

static int sum_on_host(
    struct pl_reducer *red, void *grads, size_t count, const size_t *parts, struct pl_error *err)
{
    enum pl_real real = red->params->real;
    size_t own, n;
    int r;

    /* Sums in the order of ranks are not those of the nodes' sums. */
    if (!parts || (red->copies && red->comm->ordered))
        return pl_comm_allreduce(red->comm, grads, count, real, red->scale, err);
    r = pl_comm_reduce_scatter(red->shards, grads, parts, real, red->scale, err);
    own = parts[red->shards->rank];
    n = parts[red->shards->rank + 1] - own;
    if (r == 0 && red->copies && n) /* as many elements on each of these */
        r = pl_comm_allreduce(red->copies, (char *)grads + own * pl_real_size(real), n, real, 1,
                              err);
    return r;
}

/* parts: NULL, or where the ranks' parts begin; only the own part is defined afterwards. */
static int
sum(struct pl_reducer *red, const struct pl_bucket *b, const size_t *parts, struct pl_error *err)
{
    struct pl_device *dev = red->params->dev;
    enum pl_real real = red->params->real;
    size_t count = b->count, bytes = count * pl_real_size(real), from = 0, to = bytes;
    void *grads = grads_of(red, b);
    int r;

    if (dev->ops->host && !red->alone && !red->params->shard) {
        red->started = true;
        return pl_comm_allreduce_start(red->comm, grads, count, real, red->scale, err);
    }
    if (dev->ops->host && !red->alone)
        return sum_on_host(red, grads, count, parts, err);
    if (red->comm->size == 1 || red->alone) {
        if (red->scale != 1)
            dev->ops->kernels(dev, real)->affine(
                &(struct pl_affine_args){.n = count, .scale = red->scale, .x = grads, .y = grads});
        return 0;
    }
    if (red->comm->gpu)
        return start(red, b, parts, err);
    r = pl_device_download(dev, red->stage, grads, bytes, err);
    if (r == 0)
        r = sum_on_host(red, red->stage, count, parts, err);
    if (parts) {
        from = parts[red->shards->rank] * pl_real_size(real);
        to = parts[red->shards->rank + 1] * pl_real_size(real);
    }
    if (r == 0)
        pl_device_upload(dev, (char *)grads + from, (char *)red->stage + from, to - from);
    return r;
}

/* Clears what no node has written: from the end of a parameter to the next one, where a
 * reduce-scatter may write; with PL_SHARD_GRAD also parameters without a gradient. */
static void clear_unwritten(const struct pl_reducer *red, const struct pl_bucket *b)
{
    const struct pl_params *params = red->params;
    size_t size = pl_real_size(params->real), next = b->offset + b->count;
    char *grads = grads_of(red, b);

    for (size_t i = b->first + b->n; i-- > b->first; next = params->order[i]->offset) {
        const struct pl_param *p = params->order[i];
        size_t end = p->offset + (keeps_shards(red) && !p->written ? 0 : p->tensor->count);

        pl_device_zero(params->dev, grads + (end - b->offset) * size, (next - end) * size);
    }
}

/* The module's own function gets host memory. */
static int
reduce_own(struct pl_reducer *red, const struct pl_bucket *b, void *grads, struct pl_error *err)
{
    size_t size = pl_real_size(red->params->real);
    struct plume_bucket own = {
        .struct_size = sizeof(own),
        .index = (unsigned)(b - red->buckets),
        .real_bytes = size,
        .count = b->count,
        .scale = red->scale,
    };
    struct pl_device_map map;
    int r = pl_device_map(red->params->dev, grads, b->count * size,
                          PL_DEVICE_READ | PL_DEVICE_WRITE, &map, err);

    if (r < 0)
        return r;
    own.grads = map.data;
    r = red->own(red->pl, &own);
    pl_device_unmap(&map);
    return r < 0 ? pl_error_errno(err, r, "the module's own reduction failed") : 0;
}

static int reduce(struct pl_reducer *red, const struct pl_bucket *b, struct pl_error *err)
{
    const struct pl_params *params = red->params;
    size_t *parts = params->shard && b->n && !red->own ? red->parts : NULL;
    int r = finish_pending(red, err);

    if (params->shard && b->n)
        clear_unwritten(red, b);
    if (parts)
        pl_shard_offsets(params, red->shards->size, b->offset, b->offset + b->count, parts);
    if (r == 0)
        r = red->own ? reduce_own(red, b, grads_of(red, b), err) : sum(red, b, parts, err);
    if (r < 0 || !keeps_shards(red))
        return r;
    if (red->started)
        red->pending = b;
    else
        take(red, b);
    return 0;
}

/* The node whose backward ends the next bucket. */
static size_t next_node(const struct pl_reducer *red)
{
    const struct pl_bucket *b = &red->buckets[red->next];

    return red->posts ? b->free_node : b->ready_node;
}

int pl_reducer_after_node(void *ctx, size_t index, struct pl_error *err)
{
    struct pl_reducer *red = ctx;
    uint64_t begin;
    int r = 0;

    for (; red->posts && red->next < red->n && next_node(red) >= index; red->next++)
        pl_comm_node_post(red->comm);
    while (r == 0 && red->next < red->n && next_node(red) >= index) {
        begin = pl_timeline_begin(red->timeline);

        r = reduce(red, &red->buckets[red->next++], err);
        pl_timeline_end(red->timeline, 0, "ranks", "reduce", NULL, begin);
    }
    if (r < 0 || !red->started || red->next < red->n)
        return r;
    begin = pl_timeline_begin(red->timeline);
    r = join(red, err);
    pl_timeline_end(red->timeline, 0, "ranks", "join", NULL, begin);
    return r;
}

size_t pl_reducer_stop(const void *ctx)
{
    const struct pl_reducer *red = ctx;

    if (red->next == red->n || ((red->comm->size == 1 || red->alone) && !red->own))
        return 0;
    return next_node(red);
}
