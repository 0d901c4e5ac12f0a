/* SPDX-License-Identifier: MIT */
/* Batch normalisation over one rank's batch or over all ranks' batches. */
#include "runtime/engine/ops/op_private.h"
#include "runtime/engine/ops/partial.h"

#include <math.h>

/* batchnorm: in = x, weight, bias, running mean, running variance; i[0] = relu; f[0] = eps, f[1] =
 * momentum; saved has mean and inv_std, scratch the sums and the
 * factors made of them */

/* Of sums in scratch, before the factors: whole groups of 16 bytes. */
static size_t sums_bytes(size_t channels)
{
    return (2 + 2 * channels) * sizeof(double);
}

/* The kernel gets 16 bits of this input or output where it computes in f32. */
static bool is_half(const struct pl_call *c, const plume_tensor *t)
{
    return c->k->real == PL_REAL_F32 && pl_dtype_is_16bit(t->dtype) &&
           !pl_node_has_f32_copy(c->node, t);
}

static struct pl_batchnorm_args batchnorm_args(const struct pl_call *c)
{
    const plume_tensor *x = c->node->in[0];
    const struct pl_fusion *f = &c->node->fusion;
    size_t channels = x->shape[1];
    bool training = c->tape->want_grad;
    /* Without a cast: a host's kernel converts them. */
    bool x_half = f->x != x ? pl_dtype_is_16bit(f->x->dtype) : is_half(c, x);
    bool y_half = f->y != c->node->out ? pl_dtype_is_16bit(f->y->dtype) : is_half(c, f->y);

    return (struct pl_batchnorm_args){
        .batch = x->channels_last ? x->count / channels : x->shape[0],
        .channels = channels,
        .inner = x->channels_last ? 1 : x->count / (x->shape[0] * channels),
        .eps = c->attr->f[0],
        .momentum = c->attr->f[1],
        .training = training,
        .alone = !c->tape->allreduce,
        .relu = c->attr->i[0] == PLUME_RELU || f->r,
        .dx_add = c->add[0],
        .dw_add = c->add[1],
        .db_add = c->add[2],
        .x_half = x_half,
        .dr_add = f->r_add,
        .y_half = y_half,
        .relu_of_y = f->y == c->node->out,
        .half = (x_half ? f->x : f->y)->dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16,
        .x = c->in[0],
        .w = c->in[1],
        .b = c->in[2],
        .r = f->r ? pl_tape_data(c->tape, f->r) : NULL,
        .dy = c->out_grad,
        .sums = c->scratch,
        .back_sums = c->scratch,
        .factors = (char *)c->scratch + sums_bytes(channels),
        /* If several devices share the buffers, only the first writes them. */
        .running_mean = training && c->tape->part_index ? NULL : c->in[3],
        .running_var = training && c->tape->part_index ? NULL : c->in[4],
        .mean = pl_op_stats(c, 0),
        .inv_std = pl_op_stats(c, channels),
        .y = c->out,
        .dx = c->in_grad[0],
        .dw = c->in_grad[1],
        .db = c->in_grad[2],
        .dr = f->r && f->r->wants_grad ? pl_tape_grad(c->tape, f->r) : NULL,
    };
}

/* True if the sums of all ranks have lost a variance, in f64 always. All ranks have the same bits
 * (comm.h), and find the same. */
static bool have_lost(const struct pl_call *c, const double *all, size_t channels)
{
    bool lost = c->k->real == PL_REAL_F64;

    for (size_t k = 0; k < channels && !lost; k++) {
        double m = all[1 + k] / all[0];

        lost = pl_batchnorm_lost(all[0], m, all[1 + channels + k] / all[0] - m * m);
    }
    return lost;
}

static int write_means(const struct pl_call *c, const double *all, double *shift, size_t channels)
{
    struct pl_device_map map;
    int r =
        pl_device_map(c->tape->dev, shift, channels * sizeof(*shift), PL_DEVICE_WRITE, &map, NULL);

    if (r < 0)
        return r;
    for (size_t k = 0; k < channels; k++) {
        double m = all[1 + k] / all[0];

        ((double *)map.data)[k] = isfinite(m) ? m : 0;
    }
    pl_device_unmap(&map);
    return 0;
}

/* Sums over the ranks, if the tape has an allreduce. True if forward's sums have lost a variance:
 * their means are in `shift` then. shift: NULL if there is nothing to lose. */
static bool meet(const struct pl_call *c, double *sums, size_t channels, double *shift)
{
    struct pl_tape *tape = (struct pl_tape *)c->tape;
    size_t n = 1 + 2 * channels;
    struct pl_device_map map;
    bool lost;

    if (!tape->allreduce || tape->failed)
        return false;
    tape->failed = pl_device_map(tape->dev, sums, n * sizeof(*sums),
                                 PL_DEVICE_READ | PL_DEVICE_WRITE, &map, NULL);
    if (tape->failed)
        return false;
    tape->failed = tape->allreduce(tape->allreduce_ctx, map.data, n);
    lost = shift && !tape->failed && have_lost(c, map.data, channels);
    if (lost)
        tape->failed = write_means(c, map.data, shift, channels);
    pl_device_unmap(&map);
    return lost && !tape->failed;
}

static void batchnorm_forward(const struct pl_call *c)
{
    struct pl_batchnorm_args args = batchnorm_args(c);
    double *shift = args.factors; /* nobody has made them yet */

    if (args.training) {
        c->k->batchnorm_sums(&args);
        if (meet(c, args.sums, args.channels, shift)) {
            args.shift = shift;
            c->k->batchnorm_sums(&args);
            meet(c, args.sums, args.channels, NULL);
        }
    }
    c->k->batchnorm_forward(&args);
}

static void batchnorm_backward(const struct pl_call *c)
{
    struct pl_batchnorm_args args = batchnorm_args(c);

    c->k->batchnorm_back_sums(&args);
    meet(c, args.back_sums, args.channels, NULL);
    if (args.dx) /* data wants no gradient */
        c->k->batchnorm_backward(&args);
}

static double batchnorm_flops(const struct pl_node *node, bool backward)
{
    return 8.0 * (double)node->out->count;
}

static double size_of(const plume_tensor *t)
{
    return (double)t->count * (double)pl_dtype_size(t->dtype);
}

static double partial_bytes(const struct pl_node *node, bool backward)
{
    const plume_tensor *x = node->in[0];
    size_t channels = x->shape[1],
           inner = x->channels_last ? 1 : x->count / (x->shape[0] * channels);

    if (node->out->tape->dev->ops->host || !node->out->tape->want_grad)
        return 0;
    return pl_partial_of_batchnorm(&(struct pl_partial_batchnorm){
        .batch = x->count / (channels * inner),
        .channels = channels,
        .inner = inner,
        .real = node->k->real,
        .halves = node->fusion.x != x && node->fusion.y != node->out &&
                  pl_dtype_is_16bit(node->fusion.y->dtype),
        .backward = backward,
        .again = node->attr.i[0] == PLUME_RELU && !node->fusion.r,
    });
}

/* Sums take a pass of their own over x, and backward over dy, and over y where something was added
 * to the output before relu. The gradient of that is written then, and has relu's mask. */
static double batchnorm_bytes(const struct pl_node *node, bool backward)
{
    const struct pl_fusion *f = &node->fusion;
    double x = size_of(f->x), y = size_of(f->y), masked = y;
    bool add = f->x == node->in[0] ? node->add[0] : f->x_add;
    bool dr = f->r && f->r->wants_grad;

    if (!backward)
        return x * (node->out->tape->want_grad ? 2 : 1) + y * (f->r ? 2 : 1) +
               partial_bytes(node, false);
    if (f->r)
        masked *= 2;
    return partial_bytes(node, true) + x + masked + (dr ? y * (f->r_add ? 2 : 1) : 0) +
           (f->x->wants_grad ? x + (dr && !f->r_add ? y : masked) + x * (add ? 2 : 1) : 0);
}

static const struct pl_op op_batchnorm = {
    .name = "batchnorm",
    .layout = PL_LAYOUT_IMAGES,
    .fuses = true,
    .casts = true,
    .host_halves = true,
    .joins = true,
    .same_type = true,
    .bytes = batchnorm_bytes,
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .state_inputs = PL_NEEDS_IN(3) | PL_NEEDS_IN(4),
    .forward = batchnorm_forward,
    .backward = batchnorm_backward,
    .flops = batchnorm_flops,
    .collective = true,
};

static const struct pl_op op_batchnorm_relu = {
    .name = "batchnorm",
    .layout = PL_LAYOUT_IMAGES,
    .fuses = true,
    .casts = true,
    .host_halves = true,
    .same_type = true,
    .bytes = batchnorm_bytes,
    .cast = PL_CAST_F32,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1) | PL_NEEDS_IN(2) | PL_NEEDS_OUT,
    .state_inputs = PL_NEEDS_IN(3) | PL_NEEDS_IN(4),
    .forward = batchnorm_forward,
    .backward = batchnorm_backward,
    .flops = batchnorm_flops,
    .collective = true,
};

int pl_build_batchnorm(struct pl_tape *tape,
                       const struct pl_op_request *req,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    const plume_tensor *x = req->in[0];
    bool relu = req->args.i[0] == PLUME_RELU;
    struct pl_apply what = pl_op_like(relu ? &op_batchnorm_relu : &op_batchnorm, req, x);
    int r = pl_op_check_positive(req, "eps", req->args.f[0], err);

    if (r == 0)
        r = pl_op_check_positive(req, "momentum", req->args.f[1], err);
    if (r < 0)
        return r;
    if (!pl_op_all_real(req) || x->rank < 2 || x->count == 0)
        return pl_op_refuse(req, "wanted: x [batch, channels, ...]", err);
    for (size_t i = 1; i < req->n_in; i++)
        if (req->in[i]->count != x->shape[1] || (i > 2 && req->in[i]->wants_grad))
            return pl_op_refuse(
                req, "weight, bias and the two buffers must have one number per channel", err);
    /* The result would be 0, and the running variance shrink towards 0. As PyTorch's. */
    if (tape->want_grad && !tape->lone_norms && x->count == x->shape[1])
        return pl_op_refuse(req,
                            "in training a channel needs more than one value: choose another "
                            "batch_size, or drop_last if it is the epoch's last batch",
                            err);
    what.attr.i[0] = req->args.i[0];
    what.attr.f[0] = req->args.f[0] > 0 ? req->args.f[0] : 1e-5;
    what.attr.f[1] = req->args.f[1] > 0 ? req->args.f[1] : 0.1;
    what.saved_stats = 2 * x->shape[1];
    what.scratch_bytes =
        sums_bytes(x->shape[1]) + PL_BATCHNORM_FACTORS * x->shape[1] * sizeof(double);
    return pl_tape_apply(tape, &what, ret, err);
}
