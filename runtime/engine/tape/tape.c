/* SPDX-License-Identifier: MIT */
/* Tracing: hooks' calls become nodes. */
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

void pl_tape_init(struct pl_tape *tape, struct pl_device *dev, enum pl_real real, bool want_grad)
{
    *tape = (struct pl_tape){.dev = dev,
                             .kernels = dev->ops->kernels(dev, real),
                             .want_grad = want_grad,
                             .on_tables = dev->ops->host,
                             .channels_last = dev->ops->channels_last};
}

void pl_tape_finish(struct pl_tape *tape)
{
    pl_tape_graphs_finish(tape);
    free(tape->nodes);
    free(tape->places);
    free(tape->again);
    free(tape->profile.lines);
    if (tape->dev)
        pl_device_free(tape->dev, tape->memory);
    pl_bump_finish(&tape->bump);
    pl_bump_finish(&tape->tensors);
    *tape = (struct pl_tape){0};
}

void pl_tape_begin(struct pl_tape *tape)
{
    tape->cursor = 0;
    tape->changed = false;
}

static void note_change(struct pl_tape *tape)
{
    if (!tape->changed)
        tape->recordings++;
    tape->changed = true;
    tape->planned = false;
}

/* Drops the nodes from the cursor on. */
static void cut(struct pl_tape *tape)
{
    if (tape->cursor == tape->n)
        return;
    pl_bump_reset(&tape->bump, tape->nodes[tape->cursor].before);
    tape->n = tape->cursor;
    note_change(tape);
}

static bool same(const struct pl_node *node, const struct pl_apply *what, enum plume_dtype dtype)
{
    const plume_tensor *out = node->out;
    size_t bytes = what->rank * sizeof(what->shape[0]);

    if (node->op != what->op || node->n_in != what->n_in || out->dtype != dtype ||
        memcmp(&node->attr, &what->attr, sizeof(node->attr)) != 0 || out->rank != what->rank ||
        out->channels_last != what->channels_last || memcmp(out->shape, what->shape, bytes) != 0)
        return false;
    if (what->op->view && (memcmp(out->stride, what->stride, bytes) != 0 ||
                           out->offset != what->offset + what->in[0]->offset))
        return false;
    for (size_t i = 0; i < what->n_in; i++)
        if (node->in[i] != what->in[i] || (what->in[i] && node->in_count[i] != what->in[i]->count))
            return false;
    return true;
}

static int grow(struct pl_tape *tape)
{
    size_t cap = tape->cap ? tape->cap * 2 : 32;
    struct pl_node *nodes;

    if (tape->n < tape->cap)
        return 0;
    nodes = reallocarray(tape->nodes, cap, sizeof(*nodes));
    if (!nodes)
        return -ENOMEM;
    tape->nodes = nodes;
    tape->cap = cap;
    return 0;
}

/* The place of the next node; NULL: no memory. Its tensor whose turn it is has memory. */
static struct pl_tape_place *next_place(struct pl_tape *tape)
{
    struct pl_tape_place *place;
    size_t n = PL_MAX(2 * tape->n_places, (size_t)32);

    if (tape->n >= tape->n_places) {
        place = reallocarray(tape->places, n, sizeof(*place));
        if (!place)
            return NULL;
        memset(place + tape->n_places, 0, (n - tape->n_places) * sizeof(*place));
        tape->places = place;
        tape->n_places = n;
    }
    place = &tape->places[tape->n];
    if (!place->turn[place->next])
        place->turn[place->next] = pl_bump_alloc(&tape->tensors, sizeof(plume_tensor));
    return place->turn[place->next] ? place : NULL;
}

static void set_view(plume_tensor *out, const struct pl_apply *what)
{
    out->base = pl_tensor_root(what->in[0]);
    out->offset = what->offset + what->in[0]->offset;
    memcpy(out->stride, what->stride, sizeof(out->stride));
}

/* The kernel table of a 16-bit type, NULL if kernels do not use it. A CPU has no 16-bit arithmetic,
 * so copies in f32 are faster there. */
static const struct pl_kernels *low_table(const struct pl_tape *tape, enum plume_dtype dtype)
{
    if (!pl_dtype_is_16bit(dtype) || tape->dev->ops->host)
        return NULL;
    return tape->dev->ops->kernels(tape->dev, dtype == PLUME_F16 ? PL_REAL_F16 : PL_REAL_BF16);
}

/* For an op that writes f32: the table that reads this input in 16 bits, else NULL. */
static const struct pl_kernels *
table_reading(const struct pl_tape *tape, const struct pl_op *op, const plume_tensor *in, size_t i)
{
    return in && (op->reads_half & PL_NEEDS_IN(i)) ? low_table(tape, in->dtype) : NULL;
}

/* True if all real inputs are of this 16-bit type, and state inputs of the tape's own type. */
static bool is_all(const struct pl_tape *tape, const struct pl_apply *what, enum plume_dtype dtype)
{
    for (size_t i = 0; i < what->n_in; i++) {
        const plume_tensor *in = what->in[i];
        bool state = what->op->state_inputs & PL_NEEDS_IN(i);

        if (in && pl_dtype_is_real(in->dtype) &&
            in->dtype != (state ? pl_dtype_of_real(tape->kernels->real) : dtype))
            return false;
    }
    return true;
}

static const struct pl_kernels *
table_for(const struct pl_tape *tape, const struct pl_apply *what, enum plume_dtype dtype)
{
    const struct pl_kernels *low = NULL;

    for (size_t i = 0; i < what->n_in && !low && dtype == PLUME_F32; i++)
        low = table_reading(tape, what->op, what->in[i], i);
    if (!what->op->raw && !what->op->in_f32 && is_all(tape, what, dtype))
        low = low_table(tape, dtype);
    return low ? low : tape->kernels;
}

static size_t saved_bytes(const struct pl_apply *what, enum pl_real real)
{
    return what->saved_bytes + what->saved_reals * pl_real_size(real) +
           what->saved_stats * pl_real_size(pl_real_of_stats(real));
}

static int record(struct pl_tape *tape, const struct pl_apply *what, enum plume_dtype dtype)
{
    size_t n = what->n_in;
    struct pl_node node = {.op = what->op,
                           .k = table_for(tape, what, dtype),
                           .n_in = n,
                           .attr = what->attr,
                           .scratch_bytes = what->scratch_bytes,
                           .before = pl_bump_mark(&tape->bump)};
    struct pl_tape_place *place = next_place(tape);
    plume_tensor *out = place ? place->turn[place->next] : NULL;
    char *lists = pl_bump_alloc(&tape->bump,
                                PL_MAX(n, (size_t)1) *
                                    (sizeof(*node.in) + sizeof(*node.in_count) + sizeof(*node.add) +
                                     sizeof(*node.first) + sizeof(*node.alias)));
    int r;

    if (!out || !lists || grow(tape) < 0)
        return -ENOMEM;
    node.saved_bytes = saved_bytes(what, node.k->real);
    /* A product rounds the values that it keeps for backward like its output. */
    if (what->op->cast == PL_CAST_LOW && pl_dtype_is_16bit(dtype) && node.k->real == PL_REAL_F32 &&
        node.saved_bytes == what->saved_reals * sizeof(float)) {
        node.saved_half = what->saved_reals;
        node.saved_bytes = node.saved_half * pl_dtype_size(dtype);
    }
    r = pl_tensor_init(out, dtype, what->rank, what->shape);
    if (r < 0)
        return r;
    node.in = (plume_tensor **)lists;
    node.in_count = (size_t *)(node.in + n);
    node.add = (bool *)(node.in_count + n);
    node.first = node.add + n;
    node.alias = node.first + n;
    for (size_t i = 0; i < n; i++) {
        node.in[i] = what->in[i];
        node.in_count[i] = what->in[i] ? what->in[i]->count : 0;
        if (tape->want_grad && !what->op->no_grad && what->in[i] && what->in[i]->wants_grad)
            out->wants_grad = true;
    }
    if (what->op->view)
        set_view(out, what);
    if (what->channels_last)
        pl_tensor_set_channels_last(out);
    out->tape = tape;
    out->node = tape->n;
    place->next = (place->next + 1) % PL_TAPE_TURNS;
    node.out = out;
    tape->nodes[tape->n++] = node;
    return 0;
}

static int
refuse_record(const struct pl_apply *what, enum plume_dtype dtype, int r, struct pl_error *err)
{
    plume_tensor t = {.dtype = dtype, .rank = what->rank};
    char text[160];

    if (r != -ERANGE)
        return pl_error_errno(err, r, "cannot record op '%s'", what->op->name);
    memcpy(t.shape, what->shape, sizeof(t.shape));
    return pl_error_set(err, r, "%s: 64 bits cannot count the elements of its result %s",
                        what->op->name, pl_tensor_text(&t, text, sizeof(text)));
}

/* Traces the op on inputs that it accepts. */
static int trace(struct pl_tape *tape,
                 const struct pl_apply *what,
                 enum plume_dtype dtype,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    if (tape->cursor < tape->n && !same(&tape->nodes[tape->cursor], what, dtype))
        cut(tape);
    if (tape->cursor == tape->n) {
        struct pl_bump_mark before = pl_bump_mark(&tape->bump);
        int r = record(tape, what, dtype);

        if (r < 0) {
            pl_bump_reset(&tape->bump, before);
            return refuse_record(what, dtype, r, err);
        }
        note_change(tape);
    }
    *ret = tape->nodes[tape->cursor++].out;
    return 0;
}

/* copy: makes a tensor dense or gives it another order, or gives a tensor that is used twice a
 * second gradient; also converts types that cast cannot */

_Static_assert(PLUME_RANK_MAX <= PL_COPY_RANK, "any tensor can be copied");

static bool same_order(const plume_tensor *a, const plume_tensor *b)
{
    return (pl_tensor_is_dense(a) && pl_tensor_is_dense(b)) ||
           (a->channels_last && b->channels_last);
}

/* Copies from (forward) or to (backward) the tensor's strided elements. */
static void copy(const struct pl_call *call, bool back)
{
    const plume_tensor *t = call->node->in[0], *out = call->node->out;
    struct pl_copy_args a = {
        .rank = 1,
        .shape = {t->count},
        .src_stride = {1},
        .dst_stride = {1},
        .bytes = pl_dtype_is_real(t->dtype) ? pl_real_size(call->k->real) : pl_dtype_size(t->dtype),
        .add = back && call->add[0],
        .src = back ? call->out_grad : call->in[0],
        .dst = back ? call->in_grad[0] : call->out,
    };

    if (!same_order(t, out)) {
        a.rank = t->rank;
        memcpy(a.shape, t->shape, t->rank * sizeof(*t->shape));
        memcpy(a.src_stride, (back ? out : t)->stride, t->rank * sizeof(*t->stride));
        memcpy(a.dst_stride, (back ? t : out)->stride, t->rank * sizeof(*t->stride));
    }
    call->k->copy(&a);
}

static void copy_forward(const struct pl_call *call)
{
    copy(call, false);
}

static void copy_backward(const struct pl_call *call)
{
    copy(call, true);
}

static const struct pl_op op_copy = {
    .name = "copy",
    .cast = PL_CAST_NONE,
    .strided = true,
    .forward = copy_forward,
    .backward = copy_backward,
    .split = PL_SPLIT_EACH,
};

static const struct pl_op op_keep = {
    .name = "copy",
    .cast = PL_CAST_NONE,
    .strided = true,
    .keeps = true,
    .forward = copy_forward,
    .backward = copy_backward,
    .split = PL_SPLIT_EACH,
};

/* cast: between f32 and a 16-bit type; it accesses the tensors directly */

static void convert(const struct pl_call *call, bool back)
{
    enum plume_dtype in = call->node->in[0]->dtype, out = call->node->out->dtype;
    void *from = back ? call->out_grad : call->in[0], *to = back ? call->in_grad[0] : call->out;
    bool widen = pl_dtype_is_16bit(in) != back;
    struct pl_half_args a = {
        .n = call->node->out->count,
        .type = pl_tape_half_of(pl_dtype_is_16bit(in) ? in : out),
        .add = back && call->add[0],
        .half = widen ? from : to,
        .wide = widen ? to : from,
    };

    if (widen)
        call->k->widen(&a);
    else
        call->k->narrow(&a);
}

static void cast_forward(const struct pl_call *call)
{
    convert(call, false);
}

static void cast_backward(const struct pl_call *call)
{
    convert(call, true);
}

static const struct pl_op op_cast = {
    .name = "cast",
    .cast = PL_CAST_NONE,
    .raw = true,
    .forward = cast_forward,
    .backward = cast_backward,
    .split = PL_SPLIT_EACH,
};

bool pl_tape_is_cast(const struct pl_node *node)
{
    return node->op == &op_cast;
}

static bool can_cast(const plume_tensor *t, enum plume_dtype dtype)
{
    return (pl_tensor_is_dense(t) || t->channels_last) &&
           ((t->dtype == PLUME_F32 && pl_dtype_is_16bit(dtype)) ||
            (pl_dtype_is_16bit(t->dtype) && dtype == PLUME_F32));
}

/* A copy of another type, in the same order; or of the same type, dense or with channels last. */
static int copy_of(struct pl_tape *tape,
                   plume_tensor **t,
                   enum plume_dtype dtype,
                   bool channels_last,
                   struct pl_error *err)
{
    bool cast = can_cast(*t, dtype);
    struct pl_apply what = {.op = cast ? &op_cast : &op_copy,
                            .in = (plume_tensor *[]){*t},
                            .n_in = 1,
                            .rank = (*t)->rank,
                            .channels_last = cast ? (*t)->channels_last : channels_last};

    memcpy(what.shape, (*t)->shape, sizeof(what.shape));
    return trace(tape, &what, dtype, t, err);
}

int pl_tape_keep(struct pl_tape *tape, plume_tensor **t, struct pl_error *err)
{
    struct pl_apply what = {
        .op = &op_keep, .in = (plume_tensor *[]){*t}, .n_in = 1, .rank = (*t)->rank};

    memcpy(what.shape, (*t)->shape, sizeof(what.shape));
    return trace(tape, &what, (*t)->dtype, t, err);
}

/* A weight is cast once per step; all its uses share the result. */
static int
cast(struct pl_tape *tape, plume_tensor **t, enum plume_dtype dtype, struct pl_error *err)
{
    for (size_t i = 0; i < tape->cursor; i++) {
        const struct pl_node *node = &tape->nodes[i];

        if ((node->op == &op_cast || node->op == &op_copy) && node->in[0] == *t &&
            node->out->dtype == dtype && dtype != (*t)->dtype) {
            *t = node->out;
            return 0;
        }
    }
    return copy_of(tape, t, dtype, false, err);
}

/* A copy with channels last; all uses share it. */
static int put_channels_last(struct pl_tape *tape, plume_tensor **t, struct pl_error *err)
{
    for (size_t i = 0; i < tape->cursor; i++) {
        const struct pl_node *node = &tape->nodes[i];

        if (node->op == &op_copy && node->in[0] == *t && node->out->channels_last &&
            node->out->dtype == (*t)->dtype) {
            *t = node->out;
            return 0;
        }
    }
    return copy_of(tape, t, (*t)->dtype, true, err);
}

static bool wider(enum plume_dtype a, enum plume_dtype b)
{
    if (pl_dtype_size(a) != pl_dtype_size(b))
        return pl_dtype_size(a) > pl_dtype_size(b);
    return a == PLUME_BF16 &&
           b == PLUME_F16; /* PyTorch promotes the two to f32; the case does not occur here */
}

/* The type that an op runs in; 0 if it takes its inputs as they are. */
static enum plume_dtype run_dtype(const struct pl_tape *tape, const struct pl_apply *what)
{
    enum plume_dtype widest = 0;
    enum pl_cast_class class = what->op->cast;

    if (class == PL_CAST_NONE || tape->kernels->real == PL_REAL_F64)
        return 0;
    for (size_t i = 0; i < what->n_in; i++)
        if (what->in[i] && pl_dtype_is_real(what->in[i]->dtype) &&
            (widest == 0 || wider(what->in[i]->dtype, widest)))
            widest = what->in[i]->dtype;
    if (widest == 0)
        return 0;
    if (tape->always_f32)
        return PLUME_F32;
    if (tape->amp_dtype &&
        (class == PL_CAST_LOW || tape->amp_o3 || (tape->amp_o2 && class == PL_CAST_PROMOTE)))
        return tape->amp_dtype;
    return class == PL_CAST_F32 ? PLUME_F32 : widest;
}

/* True if two dense inputs share an element. */
static bool overlap(plume_tensor *a, plume_tensor *b)
{
    return pl_tensor_root(a) == pl_tensor_root(b) && a->offset < b->offset + b->count &&
           b->offset < a->offset + a->count;
}

/* True if the op gets, and makes, channels that are last. */
static bool
has_channels_last(const struct pl_tape *tape, const struct pl_apply *what, enum plume_dtype dtype)
{
    bool any = false;

    switch (what->op->layout) {
    case PL_LAYOUT_CONV:
        return tape->channels_last && pl_dtype_is_16bit(dtype) &&
               what->shape[1] % PL_CHANNELS_LAST == 0;
    case PL_LAYOUT_IMAGES:
        return what->in[0]->channels_last;
    case PL_LAYOUT_EACH:
        for (size_t i = 0; i < what->n_in; i++) {
            const plume_tensor *in = what->in[i];

            if (!in || in->rank != what->rank ||
                memcmp(in->shape, what->shape, in->rank * sizeof(*in->shape)) != 0)
                return false;
            any |= in->channels_last;
        }
        return any;
    case PL_LAYOUT_DENSE:
        break;
    }
    return false;
}

/* True if input i has the order of the output. */
static bool is_ordered(const struct pl_op *op, size_t i)
{
    return op->layout == PL_LAYOUT_EACH || i == 0 || (op->layout == PL_LAYOUT_CONV && i == 1);
}

/* Casts or copies in[] to what the op accepts. */
static int prepare(struct pl_tape *tape,
                   const struct pl_apply *what,
                   enum plume_dtype dtype,
                   plume_tensor **in,
                   struct pl_error *err)
{
    bool last;

    int r = 0;

    for (size_t i = 0; i < what->n_in && r == 0; i++) {
        if (!in[i])
            continue;
        if (dtype && pl_dtype_is_real(in[i]->dtype) && in[i]->dtype != dtype &&
            !(what->op->state_inputs & PL_NEEDS_IN(i)) &&
            !(dtype == PLUME_F32 && table_reading(tape, what->op, in[i], i)))
            r = cast(tape, &in[i], dtype, err);
        last = what->channels_last && is_ordered(what->op, i);
        if (r == 0 && last && !pl_tensor_fits_channels_last(in[i]))
            r = put_channels_last(tape, &in[i], err);
        else if (r == 0 && !last && !what->op->strided && !what->op->view &&
                 !pl_tensor_is_dense(in[i]))
            r = copy_of(tape, &in[i], in[i]->dtype, false, err);
        /* Kernels write the gradients of their inputs in any order. */
        for (size_t k = 0; k < i && r == 0; k++)
            if (in[k] && in[i]->wants_grad && tape->want_grad && overlap(in[k], in[i]))
                r = copy_of(tape, &in[i], in[i]->dtype, last, err);
    }
    return r;
}

int pl_tape_apply(struct pl_tape *tape,
                  const struct pl_apply *what,
                  plume_tensor **ret,
                  struct pl_error *err)
{
    enum plume_dtype dtype = run_dtype(tape, what), out = what->dtype;
    plume_tensor *in[PL_NODE_INPUTS_MAX];
    struct pl_apply fitting = *what;
    int r;

    if (what->n_in > PL_NODE_INPUTS_MAX)
        return pl_error_set(err, -E2BIG, "%s: more than %d inputs", what->op->name,
                            PL_NODE_INPUTS_MAX);
    if (what->n_in) /* arange has no inputs, and in is NULL */
        memcpy(in, what->in, what->n_in * sizeof(*in));
    fitting.channels_last = has_channels_last(tape, what, dtype);
    r = prepare(tape, &fitting, dtype, in, err);
    if (r < 0)
        return r;
    if (!out)
        out = dtype ? dtype : in[0]->dtype;
    fitting.in = in;
    r = trace(tape, &fitting, out, ret, err);
    if (r == 0 && what->op->same_type && !tape->dev->ops->host && out == PLUME_F32 &&
        pl_dtype_is_16bit(what->in[0]->dtype))
        r = cast(tape, ret, what->in[0]->dtype, err);
    return r;
}

int pl_tape_dense(struct pl_tape *tape, plume_tensor **t, struct pl_error *err)
{
    return pl_tensor_is_dense(*t) ? 0 : copy_of(tape, t, (*t)->dtype, false, err);
}

void pl_tape_end(struct pl_tape *tape)
{
    cut(tape);
}

double pl_tape_flops(const struct pl_tape *tape, bool backward)
{
    double sum = 0;

    for (size_t i = 0; i < tape->n; i++)
        if (tape->nodes[i].op->flops && !tape->nodes[i].unread)
            sum += tape->nodes[i].op->flops(&tape->nodes[i], backward);
    return sum;
}
