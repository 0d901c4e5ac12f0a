/* SPDX-License-Identifier: MIT */
/* Images [batch, channels, height, width]: convolution and pooling. */
#include "runtime/engine/ops/op_private.h"

/* Indices of a node's numbers: stride and padding of both directions, then the activation or the
 * window. */
enum { STRIDE_H, STRIDE_W, PAD_H, PAD_W, REST };

static struct pl_conv2d_args conv_args(const struct pl_call *c)
{
    const plume_tensor *x = c->node->in[0], *w = c->node->in[1];
    bool bias = c->node->n_in > 2;

    return (struct pl_conv2d_args){
        .batch = c->rows,
        .in = x->shape[1],
        .height = x->shape[2],
        .width = x->shape[3],
        .out = w->shape[0],
        .kernel_h = w->shape[2],
        .kernel_w = w->shape[3],
        .stride_h = (size_t)c->attr->i[STRIDE_H],
        .stride_w = (size_t)c->attr->i[STRIDE_W],
        .pad_h = (size_t)c->attr->i[PAD_H],
        .pad_w = (size_t)c->attr->i[PAD_W],
        .relu = c->attr->i[REST] == PLUME_RELU,
        .last = c->node->out->channels_last,
        .dx_add = c->add[0],
        .dw_add = c->add[1],
        .db_add = bias && c->add[2],
        .x = c->in[0],
        .w = c->in[1],
        .b = bias ? c->in[2] : NULL,
        .dy = c->out_grad,
        .y = c->out,
        .dx = c->in_grad[0],
        .dw = c->in_grad[1],
        .db = bias ? c->in_grad[2] : NULL,
    };
}

static void conv_forward(const struct pl_call *c)
{
    struct pl_conv2d_args args = conv_args(c);

    c->k->conv2d_forward(&args);
}

static void conv_backward(const struct pl_call *c)
{
    struct pl_conv2d_args args = conv_args(c);

    c->k->conv2d_backward(&args);
}

static double conv_flops(const struct pl_node *node, bool backward)
{
    const plume_tensor *w = node->in[1];
    double product = 2.0 * (double)node->out->count * (double)(w->count / w->shape[0]);
    double small = (double)node->out->count * ((node->n_in > 2) + (node->attr.i[REST] != 0));

    if (!backward)
        return product + small;
    return product * (node->in[0]->wants_grad + w->wants_grad) + small;
}

/* Backward relu's slope is a pass of its own, which writes dz, and so is the gradient of a bias. */
static double conv_side_bytes(const struct pl_node *node, bool backward)
{
    bool bias = node->n_in > 2 && node->in[2]->wants_grad;

    return backward ? ((node->attr.i[REST] == PLUME_RELU ? 3.0 : 0) + bias) *
                          (double)node->out->count * (double)pl_real_size(node->k->real)
                    : 0;
}

static const struct pl_op op_conv = {
    .name = "conv2d",
    .layout = PL_LAYOUT_CONV,
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1),
    .by_row = true,
    .product = true,
    .two_products = true,
    .forward = conv_forward,
    .backward = conv_backward,
    .side_bytes = conv_side_bytes,
    .flops = conv_flops,
};

static const struct pl_op op_conv_relu = {
    .name = "conv2d",
    .layout = PL_LAYOUT_CONV,
    .cast = PL_CAST_LOW,
    .needs = PL_NEEDS_IN(0) | PL_NEEDS_IN(1) | PL_NEEDS_OUT,
    .by_row = true,
    .product = true,
    .two_products = true,
    .forward = conv_forward,
    .backward = conv_backward,
    .side_bytes = conv_side_bytes,
    .flops = conv_flops,
};

/* Number of windows of one direction; 0 if none fits. */
static size_t windows(size_t size, size_t kernel, int64_t stride, int64_t pad)
{
    if (stride < 1 || pad < 0 || kernel < 1 || stride > INT32_MAX || pad > INT32_MAX)
        return 0;
    return pl_conv_size(size, kernel, (size_t)stride, (size_t)pad);
}

int pl_build_conv2d(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1], *b = req->n_in > 2 ? req->in[2] : NULL;
    int64_t stride = req->args.i[0], pad = req->args.i[1], act = req->args.i[2];

    if (!pl_op_all_real(req) || x->rank != 4 || w->rank != 4 || x->count == 0 || w->count == 0 ||
        x->shape[1] != w->shape[1] || (b && (b->rank != 1 || b->shape[0] != w->shape[0])))
        return pl_op_refuse(
            req, "wanted: x [batch, in, height, width], w [out, in, kh, kw], b [out]", err);
    if (act != PLUME_IDENTITY && act != PLUME_RELU)
        return pl_error_set(err, -EINVAL, "conv2d: only relu can be fused; call plume_activate()");
    for (size_t d = 0; d < 2; d++)
        if (windows(x->shape[2 + d], w->shape[2 + d], stride, pad) == 0)
            return pl_op_refuse_as(req, err,
                                   "the kernel does not fit with stride %lld and padding %lld",
                                   (long long)stride, (long long)pad);
    return pl_op_plain_conv(tape, req, (size_t[]){(size_t)stride, (size_t)stride},
                            (size_t[]){(size_t)pad, (size_t)pad}, act, ret, err);
}

int pl_op_plain_conv(struct pl_tape *tape,
                     const struct pl_op_request *req,
                     const size_t stride[2],
                     const size_t pad[2],
                     bool relu,
                     plume_tensor **ret,
                     struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1];
    struct pl_apply what = pl_op_like(relu ? &op_conv_relu : &op_conv, req, x);

    what.shape[1] = w->shape[0];
    for (size_t d = 0; d < 2; d++) {
        what.shape[2 + d] = pl_conv_size(x->shape[2 + d], w->shape[2 + d], stride[d], pad[d]);
        what.attr.i[STRIDE_H + d] = (int64_t)stride[d];
        what.attr.i[PAD_H + d] = (int64_t)pad[d];
    }
    what.attr.i[REST] = relu ? PLUME_RELU : PLUME_IDENTITY;
    return pl_tape_apply(tape, &what, ret, err);
}

static struct pl_pool2d_args pool_args(const struct pl_call *c)
{
    const plume_tensor *x = c->node->in[0];
    size_t kernel = (size_t)c->attr->i[REST];

    return (struct pl_pool2d_args){
        .planes = x->channels_last ? x->shape[0] : x->shape[0] * x->shape[1],
        .inner = x->channels_last ? x->shape[1] : 1,
        .height = x->shape[2],
        .width = x->shape[3],
        .kernel_h = kernel,
        .kernel_w = kernel,
        .stride_h = (size_t)c->attr->i[STRIDE_H],
        .stride_w = (size_t)c->attr->i[STRIDE_W],
        .pad_h = (size_t)c->attr->i[PAD_H],
        .pad_w = (size_t)c->attr->i[PAD_W],
        .dx_add = c->add[0],
        .x = c->in[0],
        .dy = c->out_grad,
        .which = c->saved,
        .y = c->out,
        .dx = c->in_grad[0],
    };
}

static void max_forward(const struct pl_call *c)
{
    struct pl_pool2d_args args = pool_args(c);

    c->k->max_pool2d_forward(&args);
}

static void max_backward(const struct pl_call *c)
{
    struct pl_pool2d_args args = pool_args(c);

    c->k->max_pool2d_backward(&args);
}

static void avg_forward(const struct pl_call *c)
{
    struct pl_pool2d_args args = pool_args(c);

    c->k->avg_pool2d_forward(&args);
}

static void avg_backward(const struct pl_call *c)
{
    struct pl_pool2d_args args = pool_args(c);

    c->k->avg_pool2d_backward(&args);
}

/* One comparison or addition per tap. */
static double pool_flops(const struct pl_node *node, bool backward)
{
    double taps = (double)(node->attr.i[REST] * node->attr.i[REST]);

    return (double)node->out->count * (backward ? 1 : taps);
}

static const struct pl_op op_max_pool = {
    .name = "max_pool2d",
    .layout = PL_LAYOUT_IMAGES,
    .forward = max_forward,
    .backward = max_backward,
    .flops = pool_flops,
};

static const struct pl_op op_avg_pool = {
    .name = "avg_pool2d",
    .layout = PL_LAYOUT_IMAGES,
    .forward = avg_forward,
    .backward = avg_backward,
    .flops = pool_flops,
};

int pl_build_pool2d(struct pl_tape *tape,
                    const struct pl_op_request *req,
                    plume_tensor **ret,
                    struct pl_error *err)
{
    const plume_tensor *x = req->in[0];
    int64_t kernel = req->args.i[0], stride = req->args.i[1], pad = req->args.i[2];
    bool average = req->args.i[3] != 0;
    struct pl_apply what = pl_op_like(average ? &op_avg_pool : &op_max_pool, req, x);

    if (!pl_op_all_real(req) || x->rank != 4 || x->count == 0)
        return pl_op_refuse(req, "wanted: x [batch, channels, height, width]", err);
    if (kernel < 1 || kernel > 16 || pad < 0 || 2 * pad > kernel)
        return pl_error_set(err, -EINVAL,
                            "%s: windows are 1 to 16 wide, and the padding at most half of that, "
                            "not %lld and %lld",
                            req->name, (long long)kernel, (long long)pad);
    for (size_t d = 0; d < 2; d++) {
        what.shape[2 + d] = windows(x->shape[2 + d], (size_t)kernel, stride, pad);
        if (what.shape[2 + d] == 0)
            return pl_op_refuse_as(req, err,
                                   "a window of %lld does not fit with stride %lld and padding "
                                   "%lld",
                                   (long long)kernel, (long long)stride, (long long)pad);
        what.attr.i[STRIDE_H + d] = stride;
        what.attr.i[PAD_H + d] = pad;
    }
    what.attr.i[REST] = kernel;
    if (!average)
        what.saved_bytes = what.shape[0] * what.shape[1] * what.shape[2] * what.shape[3];
    return pl_tape_apply(tape, &what, ret, err);
}
