/* SPDX-License-Identifier: MIT */
#include "kernels/pool/pool.h"
#include "runtime/engine/params/halves.h"
#include "runtime/engine/train/dp.h"
#include "runtime/engine/util/rng.h"

#include <string.h>

#define ADD_GRAIN 16384 /* elements of the arenas that are added at a time */

static bool is_split(const struct pl_parts *parts)
{
    return parts->n_devices > 1;
}

int pl_parts_init(struct pl_parts *parts,
                  struct pl_replicas *replicas,
                  enum pl_real real,
                  bool training,
                  uint64_t seed,
                  struct pl_error *err)
{
    unsigned k = replicas->n, n = k > 1 ? k + 1 : 1;

    *parts = (struct pl_parts){0};
    if (k > PL_PARTS_MAX)
        return pl_error_set(err, -E2BIG, "a process has at most %d devices, not %u", PL_PARTS_MAX,
                            k);
    parts->list = calloc(n, sizeof(*parts->list));
    if (!parts->list)
        return pl_error_set(err, -ENOMEM, "out of memory");
    parts->n_devices = k;
    parts->n_tapes = n;
    parts->root = &parts->list[n - 1];
    parts->replicas = replicas;
    for (unsigned i = 0; i < n; i++) {
        struct pl_tape *tape = &parts->list[i].tape;

        pl_tape_init(tape, replicas->list[i < k ? i : 0].dev, real, training);
        tape->part_index = i;
        tape->seed = k > 1 ? pl_rng_seed(seed, i) : seed; /* parts drop different elements */
    }
    return 0;
}

void pl_parts_finish(struct pl_parts *parts)
{
    for (unsigned i = 0; i < parts->n_devices; i++) {
        pl_dp_release(parts, &parts->list[i]);
        pl_device_free(parts->list[i].tape.dev, parts->list[i].grads);
    }
    pl_unit_plan_finish(&parts->units);
    if (parts->staging.memory)
        pl_device_free(parts->root->tape.dev, parts->staging.memory);
    for (unsigned i = 0; i < parts->n_tapes; i++) {
        pl_tape_finish(&parts->list[i].tape);
        pl_split_tape_finish(&parts->list[i].traced);
    }
    free(parts->list);
    *parts = (struct pl_parts){0};
}

void pl_batch_slice(const struct plume_batch *batch,
                    size_t first,
                    size_t rows,
                    plume_tensor fields[PLUME_FIELDS_MAX],
                    struct plume_batch *ret)
{
    *ret = *batch;
    ret->rows = rows;
    for (size_t f = 0; f < batch->n_fields; f++) {
        plume_tensor *t = &fields[f];
        size_t per_row = batch->field[f]->count / batch->rows;

        *t = *batch->field[f];
        t->shape[0] = rows;
        t->count = rows * per_row;
        t->data = (char *)t->data + first * per_row * pl_dtype_size(t->dtype);
        ret->field[f] = t;
    }
}

static void slice(struct pl_part *part, const struct plume_batch *batch, size_t first, size_t rows)
{
    pl_batch_slice(batch, first, rows, part->fields, &part->batch);
    for (size_t f = 0; f < batch->n_fields; f++)
        part->slices[f] = part->fields[f].data;
}

void pl_parts_split(struct pl_parts *parts, const struct plume_batch *batch)
{
    size_t chunk = (batch->rows + parts->n_devices - 1) / parts->n_devices;

    if (!is_split(parts)) {
        parts->n = 1;
        parts->list[0].batch = *batch;
        return;
    }
    parts->n = (unsigned)((batch->rows + chunk - 1) / chunk);
    for (unsigned i = 0; i < parts->n; i++)
        slice(&parts->list[i], batch, i * chunk, PL_MIN(chunk, batch->rows - i * chunk));
}

int pl_parts_begin_root(struct pl_parts *parts, struct plume_outputs *outputs, struct pl_error *err)
{
    struct pl_tape *root = &parts->root->tape;
    bool changed;
    int r;

    if (!is_split(parts))
        return 0;
    parts->root->logs.n_pending = 0;
    r = pl_outputs_check(outputs, err);
    if (r < 0)
        return r;
    changed = pl_dp_make_leaves(parts, outputs);
    for (unsigned i = 0; i < parts->n; i++)
        changed |= parts->list[i].tape.changed;
    pl_tape_begin(root);
    if (!changed)
        return 0;
    /* A new tensor may have the address of an old one: drop the record. */
    pl_tape_end(root);
    pl_tape_begin(root);
    return 0;
}

size_t pl_parts_tapes(const struct pl_parts *parts, const struct pl_tape **ret)
{
    size_t n = 0;

    for (unsigned i = 0; i < parts->n; i++)
        ret[n++] = &parts->list[i].tape;
    if (is_split(parts))
        ret[n++] = &parts->root->tape;
    return n;
}

/* ---- mean of one-element tensors ---- */

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
        .scratch_bytes = parts->n * pl_real_size(parts->root->tape.kernels->real),
    };

    if (!is_split(parts)) {
        *ret = outputs->list[0].part[0];
        return 0;
    }
    for (unsigned i = 0; i < parts->n; i++)
        if (outputs->list[0].part[i]->count != 1)
            return pl_error_set(err, -EINVAL,
                                "the loss must have one element: without training_step_end the "
                                "parts' losses are averaged");
    return pl_tape_apply(&parts->root->tape, &what, ret, err);
}

/* ---- running ---- */

/* The tensors that a tape keeps: the seeds of its gradients first, then the logged values. */
static int
prepare(struct pl_part *part, plume_tensor **roots, size_t n, bool grads, struct pl_error *err)
{
    for (size_t i = 0; i < part->logs.n_pending; i++)
        roots[n + i] = part->logs.pending[i].value;
    return pl_tape_prepare(&part->tape, roots, n + part->logs.n_pending, grads ? n : 0, err);
}

/* Tells the tapes what they may expect of the parameters' memory. */
static void set_tapes(struct pl_parts *parts)
{
    const struct pl_params *params = parts->replicas->params;
    bool halves = pl_halves_are_used(params);

    for (unsigned i = 0; i < parts->n_tapes; i++) {
        struct pl_tape *tape = &parts->list[i].tape;
        bool root = tape == &parts->root->tape;

        tape->lends_all = halves && tape->dev == params->dev;
        tape->lends = tape->lends_all || (root && params->units);
        /* With O3 gradients, too, have 16 bits. */
        tape->wide_grads = !pl_params_shard_grads(params) && !tape->amp_o3;
    }
}

static int lend_halves(struct pl_parts *parts, struct pl_error *err)
{
    struct pl_params *params = parts->replicas->params;
    int r = pl_halves_refresh(params, parts->root->tape.kernels, err);

    for (unsigned i = 0; i < parts->n_tapes && r == 0; i++)
        if (parts->list[i].tape.lends_all)
            pl_halves_lend(params, &parts->list[i].tape);
    return r;
}

int pl_parts_prepare(struct pl_parts *parts,
                     const struct plume_outputs *outputs,
                     plume_tensor *loss,
                     struct pl_error *err)
{
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    bool grads = loss && parts->root->tape.want_grad; /* else it is a prediction */
    int r = 0;

    set_tapes(parts);
    for (unsigned i = 0; is_split(parts) && i < parts->n && r == 0; i++) {
        size_t n = 0;

        for (size_t o = 0; o < outputs->n; o++) {
            plume_tensor *given = pl_dp_output(parts, outputs, o, i);

            if (given)
                roots[n++] = given;
        }
        r = prepare(&parts->list[i], roots, n, grads, err);
    }
    roots[0] = loss;
    return r == 0 ? prepare(parts->root, roots, loss ? 1 : 0, grads, err) : r;
}

/* Runs body for each part: on the CPU at the same time, each on a share of the threads; other
 * devices work asynchronously and are started one after another. */
static int side_by_side(struct pl_parts *parts,
                        int (*body)(void *ctx, unsigned device),
                        void *ctx,
                        struct pl_error *err)
{
    int r = 0;

    for (unsigned i = 0; i < parts->n; i++)
        parts->list[i].err = (struct pl_error){0};
    if (parts->root->tape.dev->ops->host)
        r = pl_pool_devices(parts->n, body, ctx);
    else
        for (unsigned i = 0; i < parts->n && r == 0; i++)
            r = body(ctx, i);
    /* The text of the lowest device that failed. */
    for (unsigned i = 0; r < 0 && i < parts->n; i++)
        if (parts->list[i].err.code)
            return pl_error_set(err, r, "device %u: %s", i, pl_error_text(&parts->list[i].err));
    return r;
}

static int forward_one(void *ctx, unsigned device)
{
    struct pl_part *part = &((struct pl_parts *)ctx)->list[device];

    return pl_tape_forward(&part->tape, &part->err);
}

static int forward_parts(struct pl_parts *parts, struct pl_error *err)
{
    int r = pl_dp_scatter(parts, err);

    if (r == 0)
        r = side_by_side(parts, forward_one, parts, err);
    if (r == 0)
        pl_dp_gather(parts);
    return r;
}

int pl_parts_forward(struct pl_parts *parts,
                     struct plume_outputs *outputs,
                     plume_tensor *loss,
                     uint64_t draw,
                     struct pl_error *err)
{
    struct pl_units *units = parts->replicas->params->units;
    struct pl_tape *root = &parts->root->tape;
    int r = pl_parts_prepare(parts, outputs, loss, err);

    for (unsigned i = 0; i < parts->n_tapes; i++)
        parts->list[i].tape.step = draw;
    if (r == 0 && units)
        r = pl_units_begin(units, &parts->units, root, err);
    if (r == 0)
        r = lend_halves(parts, err);
    if (r == 0 && is_split(parts))
        r = forward_parts(parts, err);
    if (r == 0)
        r = pl_tape_forward(root, err);
    if (root->want_grad) /* training updates running statistics */
        parts->replicas->params->buffers_version++;
    /* The root tape has waited for the parts, and the host waits for the loss anyway. */
    if (r == 0)
        r = pl_replicas_sync(parts->replicas, err);
    for (struct pl_part *part = parts->list; part < &parts->list[parts->n] && r == 0; part++)
        r = pl_logs_collect(&part->logs, part->tape.dev, root->dev, err);
    return r == 0 && is_split(parts)
               ? pl_logs_collect(&parts->root->logs, root->dev, root->dev, err)
               : r;
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

/* Gradient arenas for all parts but the first. Elements that the tape does not write are 0. */
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

/* True if training_step_end uses parameters. */
static bool root_has_params(const struct pl_parts *parts, const struct pl_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (pl_tape_reaches(&parts->root->tape, params->list[i]->tensor))
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
    const struct pl_kernels *k = s->parts->root->tape.kernels;
    size_t size = pl_real_size(s->params->real);
    char *to = (char *)s->params->grads + begin * size;

    for (unsigned i = 1; i < s->parts->n; i++)
        k->add(&(struct pl_add_args){.n = end - begin,
                                     .scale = 1,
                                     .a = to,
                                     .b = (const char *)s->parts->list[i].grads + begin * size,
                                     .dst = to});
}

/* Adds in the order of the parts, on any device. */
static int add_parts(struct pl_parts *parts, struct pl_params *params, struct pl_error *err)
{
    int r = 0;

    pl_device_enter(params->dev);
    for (unsigned i = 1; i < parts->n && r == 0; i++) {
        struct pl_part *part = &parts->list[i];

        if (pl_replicas_elsewhere(parts->replicas, i))
            r = pl_dp_add_grads(parts, part, params, err);
        else
            parts->root->tape.kernels->add(&(struct pl_add_args){.n = params->count,
                                                                 .scale = 1,
                                                                 .a = params->grads,
                                                                 .b = part->grads,
                                                                 .dst = params->grads});
    }
    return r;
}

/* An output that the root does not use has gradient 0. The root adds the gradient of a parameter
 * that is an output to the parameters' arena. The part's tape treats it as given and adds to it, so
 * it starts from 0 in the part's own arena. */
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

/* Gradients of parameters may get a sum of the root's and the first part's. */
static void clear_grads(struct pl_params *params)
{
    for (size_t i = 0; i < params->n; i++)
        if (params->list[i]->tensor->wants_grad) /* the others belong to another optimizer */
            pl_device_zero(params->dev, params->list[i]->tensor->grad,
                           params->list[i]->tensor->count * pl_real_size(params->real));
}

static int backward_parts(struct pl_parts *parts,
                          struct pl_params *params,
                          bool accumulate,
                          struct pl_error *err)
{
    struct backward b = {parts, accumulate};
    struct sum sum = {parts, params};
    int r;

    pl_dp_scatter_grads(parts);
    r = side_by_side(parts, backward_one, &b, err);
    if (r < 0)
        return r;
    if (!params->dev->ops->host)
        return add_parts(parts, params, err);
    pl_pool_parallel(params->count, ADD_GRAIN, add_arenas, &sum);
    return 0;
}

int pl_parts_backward(struct pl_parts *parts,
                      struct plume_outputs *outputs,
                      struct pl_params *params,
                      const struct pl_backward *what,
                      struct pl_error *err)
{
    struct pl_backward root = {
        .loss = what->loss, .seed = what->seed, .accumulate = what->accumulate};
    int r;

    if (!is_split(parts))
        return pl_tape_backward(&parts->root->tape, what, err);
    r = make_arenas(parts, params, err);
    if (r < 0)
        return r;
    if (root_has_params(parts, params) && !root.accumulate) {
        clear_grads(params);
        root.accumulate = true;
    }
    clear_outputs(parts, outputs, params);
    r = pl_tape_backward(&parts->root->tape, &root, err);
    return r == 0 ? backward_parts(parts, params, root.accumulate, err) : r;
}
