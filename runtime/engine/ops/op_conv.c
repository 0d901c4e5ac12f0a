/* SPDX-License-Identifier: MIT */
/* Convolutions with groups, dilation and two strides, transposed ones, and resampling. All but the
 * plain convolution are made of ops: windows as rows (unfold), a product with the weights, and the
 * sum of windows (fold) for transposed ones. */
#include "runtime/engine/ops/op_private.h"

enum { HEIGHT, WIDTH };

/* The numbers of two directions in one of an op's. */
static int64_t pack(const size_t two[2])
{
    return (int64_t)(two[HEIGHT] | two[WIDTH] << 32);
}

static void unpack(int64_t packed, size_t ret[2])
{
    ret[HEIGHT] = (uint64_t)packed & UINT32_MAX;
    ret[WIDTH] = (uint64_t)packed >> 32;
}

/* unfold and fold: attr.i has the packed kernel, stride, padding and dilation, and the groups. The
 * image is unfold's input and fold's output. */

struct windows {
    size_t kernel[2], stride[2], pad[2], dilation[2], groups;
};

static struct pl_attr attr_of(const struct windows *w)
{
    return (struct pl_attr){
        {pack(w->kernel), pack(w->stride), pack(w->pad), pack(w->dilation), (int64_t)w->groups},
        {0}};
}

static struct pl_unfold_args unfold_args(const struct pl_call *c, const plume_tensor *image)
{
    struct windows w;

    unpack(c->attr->i[0], w.kernel);
    unpack(c->attr->i[1], w.stride);
    unpack(c->attr->i[2], w.pad);
    unpack(c->attr->i[3], w.dilation);
    return (struct pl_unfold_args){
        .batch = image->shape[0],
        .channels = image->shape[1],
        .height = image->shape[2],
        .width = image->shape[3],
        .groups = (size_t)c->attr->i[4],
        .kernel_h = w.kernel[HEIGHT],
        .kernel_w = w.kernel[WIDTH],
        .stride_h = w.stride[HEIGHT],
        .stride_w = w.stride[WIDTH],
        .pad_h = w.pad[HEIGHT],
        .pad_w = w.pad[WIDTH],
        .dilation_h = w.dilation[HEIGHT],
        .dilation_w = w.dilation[WIDTH],
    };
}

static void windows_forward(const struct pl_call *c, struct pl_unfold_args *a)
{
    a->src = c->in[0];
    a->dst = c->out;
}

static void windows_backward(const struct pl_call *c, struct pl_unfold_args *a)
{
    a->src = c->out_grad;
    a->dst = c->in_grad[0];
    a->add = c->add[0];
}

static void unfold_forward(const struct pl_call *c)
{
    struct pl_unfold_args a = unfold_args(c, c->node->in[0]);

    windows_forward(c, &a);
    c->k->unfold(&a);
}

static void unfold_backward(const struct pl_call *c)
{
    struct pl_unfold_args a = unfold_args(c, c->node->in[0]);

    windows_backward(c, &a);
    c->k->fold(&a);
}

static void fold_forward(const struct pl_call *c)
{
    struct pl_unfold_args a = unfold_args(c, c->node->out);

    windows_forward(c, &a);
    c->k->fold(&a);
}

static void fold_backward(const struct pl_call *c)
{
    struct pl_unfold_args a = unfold_args(c, c->node->out);

    windows_backward(c, &a);
    c->k->unfold(&a);
}

static const struct pl_op op_unfold = {
    .name = "unfold",
    .forward = unfold_forward,
    .backward = unfold_backward,
};

static const struct pl_op op_fold = {
    .name = "fold",
    .forward = fold_forward,
    .backward = fold_backward,
};

/* the convolutions */

static int reshape(
    struct pl_tape *tape, plume_tensor **t, size_t rank, const size_t *shape, struct pl_error *err)
{
    struct pl_op_request req = {.name = "reshape", .in = t, .n_in = 1};

    req.args.i[0] = (int64_t)rank;
    for (size_t d = 0; d < rank; d++)
        req.args.i[1 + d] = (int64_t)shape[d];
    return pl_build_reshape(tape, &req, t, err);
}

/* [a, b, c, d] -> [b, a, d, c], which is its own inverse. */
static int swap_pairs(struct pl_tape *tape, plume_tensor **t, struct pl_error *err)
{
    struct pl_op_request req = {.name = "permute", .in = t, .n_in = 1, .args = {{1, 0, 3, 2}, {0}}};

    return pl_build_permute(tape, &req, t, err);
}

static int product(struct pl_tape *tape,
                   plume_tensor *a,
                   plume_tensor *b,
                   bool b_transposed,
                   plume_tensor **ret,
                   struct pl_error *err)
{
    struct pl_op_request req = {.name = "matmul",
                                .in = (plume_tensor *[]){a, b},
                                .n_in = 2,
                                .args = {{0, b_transposed}, {0}}};

    return pl_build_matmul(tape, &req, ret, err);
}

/* Adds b [channels], if there is one, to each channel of *y, and applies the activation. */
static int
finish(struct pl_tape *tape, plume_tensor *b, int64_t act, plume_tensor **y, struct pl_error *err)
{
    struct pl_op_request add = {.name = "add", .n_in = 2};
    struct pl_op_request activate = {
        .name = "activation", .in = y, .n_in = 1, .args = {{act}, {0}}};
    int r;

    if (b) {
        r = reshape(tape, &b, 3, (size_t[]){b->count, 1, 1}, err);
        if (r < 0)
            return r;
        add.in = (plume_tensor *[]){*y, b};
        r = pl_build_binary(tape, &add, y, err);
        if (r < 0)
            return r;
    }
    return act == PLUME_IDENTITY ? 0 : pl_build_unary(tape, &activate, y, err);
}

/* A request, checked. */
struct conv {
    plume_tensor *x, *w, *b;
    struct windows windows;
    size_t out_pad[2], channels, size[2]; /* of the result */
    int64_t act;
};

/* Reads what both kinds have. -EINVAL. */
static int read_request(const struct pl_op_request *req, struct conv *ret, struct pl_error *err)
{
    const plume_tensor *x = req->in[0], *w = req->in[1];
    struct windows *s = &ret->windows;

    *ret = (struct conv){.x = req->in[0],
                         .w = req->in[1],
                         .b = req->n_in > 2 ? req->in[2] : NULL,
                         .act = req->args.i[5]};
    if (!pl_op_all_real(req) || x->rank != 4 || w->rank != 4 || x->count == 0 || w->count == 0 ||
        (ret->b && ret->b->rank != 1))
        return pl_op_refuse(
            req, "wanted: x [batch, in, height, width], w with 4 dimensions, b [out]", err);
    unpack(req->args.i[0], s->stride);
    unpack(req->args.i[1], s->pad);
    unpack(req->args.i[2], s->dilation);
    unpack(req->args.i[3], ret->out_pad);
    s->groups = req->args.i[4] > 0 ? (size_t)req->args.i[4] : 0;
    for (size_t d = 0; d < 2; d++) {
        s->kernel[d] = w->shape[2 + d];
        if (s->stride[d] < 1 || s->dilation[d] < 1 || s->groups < 1 || s->stride[d] > INT32_MAX ||
            s->dilation[d] > INT32_MAX || s->pad[d] > INT32_MAX || s->kernel[d] > INT32_MAX)
            return pl_op_refuse(req, "stride, dilation and groups must be at least 1", err);
    }
    return 0;
}

/* Groups: of the input's channels, which must have `of` weights, and of the result's. */
static int
check_groups(const struct pl_op_request *req, const struct conv *c, size_t in, struct pl_error *err)
{
    if (c->x->shape[1] % c->windows.groups || c->channels % c->windows.groups)
        return pl_op_refuse(req, "the channels cannot be divided into these groups", err);
    if (c->x->shape[1] != in)
        return pl_op_refuse(req, "x has not the channels of w", err);
    if (c->b && c->b->count != c->channels)
        return pl_op_refuse(req, "b has not one number per channel of the result", err);
    return 0;
}

static size_t reach(const struct windows *w, size_t d)
{
    return w->dilation[d] * (w->kernel[d] - 1) + 1;
}

static int
convolve(struct pl_tape *tape, const struct conv *c, plume_tensor **ret, struct pl_error *err)
{
    size_t groups = c->windows.groups, batch = c->x->shape[0], each = c->channels / groups;
    size_t places = c->size[HEIGHT] * c->size[WIDTH], taps = c->w->count / c->channels;
    struct pl_apply what = {.op = &op_unfold,
                            .in = (plume_tensor *[]){c->x},
                            .n_in = 1,
                            .attr = attr_of(&c->windows),
                            .rank = 3,
                            .shape = {groups, batch * places, taps}};
    plume_tensor *w = c->w, *y = NULL;
    int r = pl_tape_apply(tape, &what, &y, err);

    if (r == 0)
        r = reshape(tape, &w, 3, (size_t[]){groups, each, taps}, err);
    if (r == 0)
        r = product(tape, y, w, true, &y, err);
    if (r == 0)
        r = reshape(tape, &y, 4, (size_t[]){groups, batch, places, each}, err);
    if (r == 0)
        r = swap_pairs(tape, &y, err);
    if (r == 0)
        r = reshape(tape, &y, 4, (size_t[]){batch, c->channels, c->size[HEIGHT], c->size[WIDTH]},
                    err);
    if (r == 0)
        r = finish(tape, c->b, c->act, &y, err);
    if (r == 0)
        *ret = y;
    return r;
}

int pl_build_conv(struct pl_tape *tape,
                  const struct pl_op_request *req,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    struct conv c;
    int r = read_request(req, &c, err);

    if (r < 0)
        return r;
    c.channels = c.w->shape[0];
    r = check_groups(req, &c, c.w->shape[1] * c.windows.groups, err);
    if (r < 0)
        return r;
    for (size_t d = 0; d < 2; d++) {
        c.size[d] = pl_window_count(c.x->shape[2 + d], c.windows.kernel[d], c.windows.stride[d],
                                    c.windows.pad[d], c.windows.dilation[d]);
        if (c.size[d] == 0)
            return pl_op_refuse(req, "the kernel is larger than the padded image", err);
    }
    if (c.windows.groups > 1 || c.windows.dilation[HEIGHT] > 1 || c.windows.dilation[WIDTH] > 1)
        return convolve(tape, &c, ret, err);
    r = pl_op_plain_conv(tape, req, c.windows.stride, c.windows.pad, c.act == PLUME_RELU, ret, err);
    return r < 0 || c.act == PLUME_RELU ? r : finish(tape, NULL, c.act, ret, err);
}

/* The image that the windows of x's elements cover. */
static int
deconvolve(struct pl_tape *tape, const struct conv *c, plume_tensor **ret, struct pl_error *err)
{
    size_t groups = c->windows.groups, batch = c->x->shape[0], in = c->x->shape[1] / groups;
    size_t places = c->x->shape[2] * c->x->shape[3], taps = c->w->count / c->x->shape[1];
    struct pl_apply what = {.op = &op_fold,
                            .n_in = 1,
                            .attr = attr_of(&c->windows),
                            .rank = 4,
                            .shape = {batch, c->channels, c->size[HEIGHT], c->size[WIDTH]}};
    plume_tensor *w = c->w, *y = c->x;
    int r = reshape(tape, &y, 4, (size_t[]){batch, groups, in, places}, err);

    if (r == 0)
        r = swap_pairs(tape, &y, err);
    if (r == 0)
        r = reshape(tape, &y, 3, (size_t[]){groups, batch * places, in}, err);
    if (r == 0)
        r = reshape(tape, &w, 3, (size_t[]){groups, in, taps}, err);
    if (r == 0)
        r = product(tape, y, w, false, &y, err);
    what.in = &y;
    if (r == 0)
        r = pl_tape_apply(tape, &what, &y, err);
    if (r == 0)
        r = finish(tape, c->b, c->act, &y, err);
    if (r == 0)
        *ret = y;
    return r;
}

int pl_build_conv_transpose(struct pl_tape *tape,
                            const struct pl_op_request *req,
                            plume_tensor **ret,
                            struct pl_error *err)
{
    struct conv c;
    int r = read_request(req, &c, err);

    if (r < 0)
        return r;
    if (__builtin_mul_overflow(c.w->shape[1], c.windows.groups, &c.channels))
        return pl_op_refuse(req, "too many groups", err);
    r = check_groups(req, &c, c.w->shape[0], err);
    if (r < 0)
        return r;
    for (size_t d = 0; d < 2; d++) {
        size_t all = (c.x->shape[2 + d] - 1) * c.windows.stride[d] + reach(&c.windows, d);

        if (c.out_pad[d] >= c.windows.stride[d])
            return pl_op_refuse(req, "the output padding must be smaller than the stride", err);
        if (all + c.out_pad[d] <= 2 * c.windows.pad[d])
            return pl_op_refuse(req, "nothing is left after the padding is cut off", err);
        c.size[d] = all + c.out_pad[d] - 2 * c.windows.pad[d];
    }
    return deconvolve(tape, &c, ret, err);
}

/* resample: attr.i[0..3] are outer, n, m, inner; i[4] the mode */

static struct pl_resample_args resample_args(const struct pl_call *c)
{
    return (struct pl_resample_args){
        .outer = (size_t)c->attr->i[0],
        .n = (size_t)c->attr->i[1],
        .m = (size_t)c->attr->i[2],
        .inner = (size_t)c->attr->i[3],
        .mode = (enum pl_resample)c->attr->i[4],
        .dx_add = c->add[0],
        .x = c->in[0],
        .dy = c->out_grad,
        .y = c->out,
        .dx = c->in_grad[0],
    };
}

static void resample_forward(const struct pl_call *c)
{
    struct pl_resample_args args = resample_args(c);

    c->k->resample_forward(&args);
}

static void resample_backward(const struct pl_call *c)
{
    struct pl_resample_args args = resample_args(c);

    c->k->resample_backward(&args);
}

static double two_flops(const struct pl_node *node, bool backward)
{
    (void)backward;
    return 2.0 * (double)PL_MAX(node->out->count, node->in[0]->count);
}

static const struct pl_op op_resample = {
    .name = "resample",
    .forward = resample_forward,
    .backward = resample_backward,
    .flops = two_flops,
};

int pl_build_resample(struct pl_tape *tape,
                      const struct pl_op_request *req,
                      plume_tensor **ret,
                      struct pl_error *err)
{
    struct pl_apply what = pl_op_like(&op_resample, req, req->in[0]);
    int64_t dim = req->args.i[0], m = req->args.i[1], mode = req->args.i[2], size[3];
    int r = pl_op_split_at(req, req->in[0], dim, size, err);

    if (r < 0)
        return r;
    if (m < 1 || m > INT32_MAX || size[1] > INT32_MAX)
        return pl_error_set(err, -EINVAL, "%s: %lld is not a size", req->name, (long long)m);
    if (mode < PL_RESAMPLE_NEAREST || mode > PL_RESAMPLE_AREA)
        return pl_error_set(err, -EINVAL, "%s: unknown mode %lld", req->name, (long long)mode);
    what.shape[dim] = (size_t)m;
    what.attr = (struct pl_attr){{size[0], size[1], m, size[2], mode}, {0}};
    return pl_tape_apply(tape, &what, ret, err);
}
