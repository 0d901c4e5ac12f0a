/* SPDX-License-Identifier: MIT */
#include "kernels/pool/pool.h"
#include "runtime/engine/train/parts_private.h"
#include "runtime/engine/util/rng.h"

#include <string.h>

#define ADD_GRAIN 16384 /* elements of the arenas that are added at a time */

int pl_parts_create(struct pl_replicas *replicas,
                    enum pl_real real,
                    bool training,
                    uint64_t seed,
                    struct pl_parts **ret,
                    struct pl_error *err)
{
    struct pl_parts *p = calloc(1, sizeof(*p));
    unsigned k = replicas->n;

    if (k > PL_PARTS_MAX) {
        free(p);
        return pl_error_set(err, -E2BIG, "a process has at most %d devices, not %u", PL_PARTS_MAX,
                            k);
    }
    if (p)
        p->list = calloc(k, sizeof(*p->list));
    if (!p || !p->list) {
        free(p);
        return pl_error_set(err, -ENOMEM, "out of memory");
    }
    p->k = k;
    p->replicas = replicas;
    pl_tape_init(&p->root, replicas->params->dev, real, training);
    for (unsigned i = 0; i < k; i++) {
        pl_tape_init(&p->list[i].tape, replicas->list[i].dev, real, training);
        p->list[i].tape.device = i;
        p->list[i].tape.seed = pl_rng_seed(seed, i); /* parts drop other elements */
    }
    p->root.device = k;
    p->root.seed = pl_rng_seed(seed, k);
    *ret = p;
    return 0;
}

void pl_parts_destroy(struct pl_parts *parts)
{
    if (!parts)
        return;
    for (unsigned i = 0; i < parts->k; i++) {
        pl_dp_release(parts, &parts->list[i]);
        pl_device_free(parts->list[i].tape.dev, parts->list[i].grads);
        pl_tape_finish(&parts->list[i].tape);
    }
    pl_device_free(parts->root.dev, parts->room.memory);
    pl_tape_finish(&parts->root);
    free(parts->list);
    free(parts);
}

void pl_parts_split(struct pl_parts *parts, const struct plume_batch *batch)
{
    size_t chunk = (batch->rows + parts->k - 1) / parts->k;

    parts->n = (unsigned)((batch->rows + chunk - 1) / chunk);
    for (unsigned i = 0; i < parts->n; i++) {
        struct pl_part *part = &parts->list[i];
        size_t first = i * chunk, rows = PL_MIN(chunk, batch->rows - first);

        part->batch = *batch;
        part->batch.rows = rows;
        for (size_t f = 0; f < batch->n_fields; f++) {
            plume_tensor *t = &part->fields[f];
            size_t per_row = batch->field[f]->count / batch->rows;

            *t = *batch->field[f];
            t->shape[0] = rows;
            t->count = rows * per_row;
            t->data = (char *)t->data + first * per_row * pl_dtype_size(t->dtype);
            part->slices[f] = t->data;
            part->batch.field[f] = t;
        }
    }
}

void pl_parts_begin_root(struct pl_parts *parts, struct plume_outputs *outputs)
{
    bool changed = pl_dp_make_leaves(parts, outputs);

    for (unsigned i = 0; i < parts->n; i++)
        changed |= parts->list[i].tape.changed;
    pl_tape_begin(&parts->root);
    if (!changed)
        return;
    /* A new tensor may stand where an old one was: addresses do not tell. */
    pl_tape_end(&parts->root);
    pl_tape_begin(&parts->root);
}

/* the mean of one-element tensors */

static void mean_forward(const struct pl_call *call)
{
    size_t size = pl_real_size(call->k->real), n = call->node->n_in;

    for (size_t i = 0; i < n; i++)
        call->k->copy(&(struct pl_copy_args){
            .bytes = size, .src = call->in[i], .dst = (char *)call->scratch + i * size});
    call->k->reduce_forward(&(struct pl_reduce_args){.outer = 1,
                                                     .n = n,
                                                     .inner = 1,
                                                     .scale = 1.0 / (double)n,
                                                     .x = call->scratch,
                                                     .y = call->out});
}

static void mean_backward(const struct pl_call *call)
{
    for (size_t i = 0; i < call->node->n_in; i++)
        if (call->in_grad[i])
            call->k->reduce_backward(
                &(struct pl_reduce_args){.outer = 1,
                                         .n = 1,
                                         .inner = 1,
                                         .scale = 1.0 / (double)call->node->n_in,
                                         .dx_add = call->add[i],
                                         .dy = call->out_grad,
                                         .dx = call->in_grad[i]});
}

static const struct pl_op op_mean = {
    .name = "mean of parts",
    .cast = PL_CAST_F32,
    .forward = mean_forward,
    .backward = mean_backward,
};

int pl_parts_mean(struct pl_parts *parts,
                  const struct plume_outputs *outputs,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    struct pl_apply what = {
        .op = &op_mean,
        .in = outputs->list[0].part,
        .n_in = parts->n,
        .rank = 0,
        .scratch_bytes = parts->n * pl_real_size(parts->root.kernels->real),
    };

    for (unsigned i = 0; i < parts->n; i++)
        if (outputs->list[0].part[i]->count != 1)
            return pl_error_set(err, -EINVAL,
                                "the loss must have one element: without training_step_end the "
                                "parts' losses are averaged");
    return pl_tape_apply(&parts->root, &what, ret, err);
}

/* running */

static int prepare(struct pl_parts *parts,
                   struct plume_outputs *outputs,
                   plume_tensor *loss,
                   struct pl_logs *root_logs,
                   struct pl_error *err)
{
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    size_t n;
    int r = 0;

    for (unsigned i = 0; i < parts->n && r == 0; i++) {
        struct pl_part *part = &parts->list[i];

        n = 0;
        for (size_t o = 0; o < outputs->n; o++) {
            plume_tensor *given = pl_dp_output(parts, outputs, o, i);

            if (given)
                roots[n++] = given;
        }
        for (size_t l = 0; l < part->logs.n_pending; l++)
            roots[n + l] = part->logs.pending[l].value;
        r = pl_tape_prepare(&part->tape, roots, n + part->logs.n_pending, loss ? n : 0, err);
    }
    n = 0;
    if (loss)
        roots[n++] = loss;
    for (size_t l = 0; l < root_logs->n_pending; l++)
        roots[n++] = root_logs->pending[l].value;
    return r == 0 ? pl_tape_prepare(&parts->root, roots, n, loss ? 1 : 0, err) : r;
}

/* Runs body for each part: on the CPU in groups of its threads; devices of another kind are asked
 * one after another, which is not when they are done. */
static int side_by_side(const struct pl_parts *parts, int (*body)(void *, unsigned), void *ctx)
{
    int r = 0;

    if (parts->root.dev->ops->host)
        return pl_pool_devices(parts->n, body, ctx);
    for (unsigned i = 0; i < parts->n && r == 0; i++)
        r = body(ctx, i);
    return r;
}

static int forward_one(void *ctx, unsigned device)
{
    struct pl_part *part = &((struct pl_parts *)ctx)->list[device];

    return pl_tape_forward(&part->tape, &part->err);
}

/* The text of the lowest device that failed. */
static int report(struct pl_parts *parts, int r, struct pl_error *err)
{
    for (unsigned i = 0; r < 0 && i < parts->n; i++)
        if (parts->list[i].err.code)
            return pl_error_set(err, r, "device %u: %s", i, pl_error_text(&parts->list[i].err));
    return r;
}

int pl_parts_forward(struct pl_parts *parts,
                     struct plume_outputs *outputs,
                     plume_tensor *loss,
                     struct pl_logs *root_logs,
                     uint64_t step,
                     struct pl_error *err)
{
    int r = prepare(parts, outputs, loss, root_logs, err);

    if (r == 0)
        r = pl_dp_scatter(parts, err);
    if (r < 0)
        return r;
    for (unsigned i = 0; i < parts->n; i++) {
        parts->list[i].tape.step = step;
        parts->list[i].err = (struct pl_error){0};
    }
    parts->root.step = step;
    r = report(parts, side_by_side(parts, forward_one, parts), err);
    if (r == 0) {
        pl_parts_gather(parts);
        r = pl_tape_forward(&parts->root, err);
    }
    if (parts->root.want_grad) /* training moves running statistics */
        parts->replicas->params->buffers_version++;
    /* The root has waited for them all, and the host will wait for the loss: nothing is lost. */
    if (r == 0)
        r = pl_replicas_sync(parts->replicas, err);
    for (unsigned i = 0; i < parts->n && r == 0; i++)
        r = pl_logs_collect(&parts->list[i].logs, parts->list[i].tape.dev, parts->root.dev, err);
    return r < 0 ? r : pl_logs_collect(root_logs, parts->root.dev, parts->root.dev, err);
}

struct backward {
    struct pl_parts *parts;
    bool accumulate;
};

static int backward_one(void *ctx, unsigned device)
{
    const struct backward *b = ctx;
    struct pl_part *part = &b->parts->list[device];

    return pl_tape_backward(
        &part->tape, &(struct pl_backward){.accumulate = device == 0 && b->accumulate}, &part->err);
}

/* Arenas for the parts behind the first, zero where the tape does not write. */
static int make_arenas(struct pl_parts *parts, const struct pl_params *params, struct pl_error *err)
{
    size_t bytes = params->count * pl_real_size(params->real);

    for (unsigned i = 1; i < parts->n; i++) {
        struct pl_part *part = &parts->list[i];
        bool fresh = !part->grads;
        int r = fresh ? pl_device_alloc(part->tape.dev, PL_MAX(bytes, (size_t)64), "gradients",
                                        &part->grads, err)
                      : 0;

        if (r < 0)
            return r;
        if (fresh || part->tape.changed)
            pl_device_zero(part->tape.dev, part->grads, bytes);
        part->tape.param_shift = (char *)part->grads - (char *)params->grads;
    }
    return 0;
}

/* Whether training_step_end has parameters of its own. */
static bool root_has_params(const struct pl_parts *parts, const struct pl_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (pl_tape_reaches(&parts->root, params->list[i]->tensor))
            return true;
    return false;
}

struct sum {
    const struct pl_parts *parts;
    struct pl_params *params;
};

static void add_arenas(void *ctx, size_t begin, size_t end)
{
    const struct sum *s = ctx;
    const struct pl_kernels *k = s->parts->root.kernels;
    size_t size = pl_real_size(s->params->real);
    char *to = (char *)s->params->grads + begin * size;

    for (unsigned i = 1; i < s->parts->n; i++)
        k->add(&(struct pl_add_args){.n = end - begin,
                                     .scale = 1,
                                     .a = to,
                                     .b = (const char *)s->parts->list[i].grads + begin * size,
                                     .dst = to});
}

/* In the order of parts, wherever they are. */
static int add_parts(struct pl_parts *parts, struct pl_params *params, struct pl_error *err)
{
    int r = 0;

    pl_device_enter(params->dev);
    for (unsigned i = 1; i < parts->n && r == 0; i++) {
        struct pl_part *part = &parts->list[i];

        if (pl_replicas_elsewhere(parts->replicas, i))
            r = pl_parts_add_from(parts, part, params, err);
        else
            parts->root.kernels->add(&(struct pl_add_args){.n = params->count,
                                                           .scale = 1,
                                                           .a = params->grads,
                                                           .b = part->grads,
                                                           .dst = params->grads});
    }
    return r;
}

/* What the root does not use of the parts' outputs has no gradient. A parameter that is given has
 * its gradient from the root in the parameters' arena, beside what else is there; a part's own
 * arena begins anew where it is, since the part's tape takes it for given, and adds. */
static void clear_outputs(const struct pl_parts *parts,
                          const struct plume_outputs *outputs,
                          const struct pl_params *params)
{
    for (size_t o = 0; o < outputs->n; o++)
        for (unsigned i = 0; i < parts->n; i++) {
            plume_tensor *t = outputs->list[o].part[i], *root = t ? pl_tensor_root(t) : NULL;
            const struct pl_part *part = &parts->list[i];

            if (!t || !t->wants_grad || !pl_tensor_grad(t))
                continue;
            if (!root->is_param)
                pl_device_zero(params->dev, root->grad, root->count * pl_dtype_size(t->dtype));
            else if (i > 0)
                pl_device_zero(part->tape.dev, (char *)root->grad + part->tape.param_shift,
                               root->count * pl_dtype_size(t->dtype));
        }
}

int pl_parts_backward(struct pl_parts *parts,
                      struct plume_outputs *outputs,
                      struct pl_params *params,
                      plume_tensor *loss,
                      double seed,
                      bool accumulate,
                      struct pl_error *err)
{
    struct backward b = {parts, accumulate};
    struct sum sum = {parts, params};
    int r = make_arenas(parts, params, err);

    if (r < 0)
        return r;
    if (root_has_params(parts, params) && !accumulate) {
        for (size_t i = 0; i < params->n; i++)
            if (params->list[i]->tensor->wants_grad) /* others may be another turn's */
                pl_device_zero(params->dev, params->list[i]->tensor->grad,
                               params->list[i]->tensor->count * pl_real_size(params->real));
        b.accumulate = true;
    }
    clear_outputs(parts, outputs, params);
    r = pl_tape_backward(
        &parts->root, &(struct pl_backward){.loss = loss, .seed = seed, .accumulate = b.accumulate},
        err);
    if (r == 0) {
        pl_dp_scatter_grads(parts);
        r = report(parts, side_by_side(parts, backward_one, &b), err);
    }
    if (r < 0)
        return r;
    if (!params->dev->ops->host)
        return add_parts(parts, params, err);
    pl_pool_parallel(params->count, ADD_GRAIN, add_arenas, &sum);
    return 0;
}
