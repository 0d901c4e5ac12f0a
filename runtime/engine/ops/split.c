/* SPDX-License-Identifier: MIT */
#include "runtime/engine/ops/split.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/ops/split_private.h"

#include <string.h>

int pl_split_init(struct pl_split *split, size_t numbers, struct pl_error *err)
{
    split->numbers = numbers;
    split->params = calloc(numbers + 1, sizeof(*split->params));
    split->local = calloc(numbers + 1, sizeof(*split->local));
    return split->params && split->local ? 0 : pl_error_nomem(err);
}

void pl_split_finish(struct pl_split *split)
{
    free(split->params);
    free(split->local);
    *split = (struct pl_split){0};
}

void pl_split_tape_finish(struct pl_split_tape *tape)
{
    pl_tape_finish(&tape->whole);
    free(tape->made);
    *tape = (struct pl_split_tape){0};
}

/* ---- the decision ---- */

/* Takes over what one tape splits. Returns the number of a parameter that an earlier tape splits in
 * another way; 0: none. */
static unsigned merge(struct pl_split *split, const struct pl_split_regions *g, bool *used)
{
    for (size_t i = 0; i < split->numbers; i++) {
        const struct pl_split_at *mine = &g->params[i];

        if (g->param_first[i + 1] == g->param_first[i])
            continue;
        if (used[i] &&
            (mine->groups != split->params[i].groups || mine->dim != split->params[i].dim))
            return (unsigned)i + 1;
        used[i] = true;
        split->params[i] = *mine;
    }
    return 0;
}

/* Looks through all tapes once. *ret_differs: the number of a parameter that two of them split
 * differently; 0: all is decided. */
static int look(struct pl_split *split,
                const struct pl_split_tape *const *tapes,
                size_t n_tapes,
                const bool *banned,
                bool *used,
                struct pl_split_counts *ret_counts,
                unsigned *ret_differs,
                struct pl_error *err)
{
    *ret_differs = 0;
    memset(used, 0, split->numbers * sizeof(*used));
    memset(split->params, 0, split->numbers * sizeof(*split->params));
    for (size_t i = 0; i < n_tapes && !*ret_differs; i++) {
        struct pl_split_regions g;
        int r = pl_split_regions_find(&g, split, tapes[i], banned, err);

        if (r < 0)
            return r;
        *ret_differs = merge(split, &g, used);
        if (i == 0)
            *ret_counts = g.counts;
        pl_split_regions_finish(&g);
    }
    return 0;
}

int pl_split_find(struct pl_split *split,
                  const struct pl_split_tape *const *tapes,
                  size_t n_tapes,
                  struct pl_split_counts *ret_counts,
                  struct pl_error *err)
{
    _cleanup_free_ bool *banned = calloc(split->numbers + 1, sizeof(*banned));
    _cleanup_free_ bool *used = calloc(split->numbers + 1, sizeof(*used));
    unsigned differs;
    int r;

    if (!banned || !used)
        return pl_error_nomem(err);
    do { /* each time one parameter more stays whole */
        r = look(split, tapes, n_tapes, banned, used, ret_counts, &differs, err);
        if (r == 0 && differs)
            banned[differs - 1] = true;
    } while (r == 0 && differs);
    split->decided = r == 0;
    return r;
}

/* ---- the tape that runs ---- */

struct tracer {
    const struct pl_split *split;
    struct pl_split_tape *from;
    const struct pl_split_regions *regions;
    struct pl_tape *run;
    plume_tensor **entered; /* by node of the whole tape: its output, for the ranks' parts */
    plume_tensor *in[PL_NODE_INPUTS_MAX]; /* of the node at hand */
};

plume_tensor *pl_split_made(const struct pl_split_tape *from, plume_tensor *t)
{
    return t && t->tape == &from->whole ? from->made[t->node] : t;
}

/* The rank's own tensor for an input of the whole tape. */
static plume_tensor *stand_in(const struct tracer *tr, plume_tensor *t)
{
    plume_tensor *local = t && !t->tape && t->number && t->number <= tr->split->numbers
                              ? tr->split->local[t->number - 1]
                              : NULL;

    return local ? local : pl_split_made(tr->from, t);
}

/* True if the whole tape has cast all inputs to f32, or none was of another type. */
static bool runs_in_f32(const struct pl_node *node)
{
    for (size_t i = 0; i < node->n_in; i++)
        if (node->in[i] && pl_dtype_is_real(node->in[i]->dtype) && node->in[i]->dtype != PLUME_F32)
            return false;
    return node->out->dtype == PLUME_F32;
}

/* Traces `what`, which has the shape of the rank's part, with the node's op, inputs and memory. */
static int apply(struct tracer *tr,
                 const struct pl_node *node,
                 struct pl_apply *what,
                 size_t parts,
                 plume_tensor **ret,
                 struct pl_error *err)
{
    int r;

    what->op = node->op;
    what->in = tr->in;
    what->n_in = node->n_in;
    what->dtype = node->out->dtype;
    what->saved_bytes = node->saved_bytes / parts;
    what->scratch_bytes = node->scratch_bytes;
    tr->run->always_f32 = runs_in_f32(node);
    r = pl_tape_apply(tr->run, what, ret, err);
    tr->run->always_f32 = false;
    if (r == 0) /* these bytes are of 16-bit numbers */
        tr->run->nodes[(*ret)->node].saved_half = node->saved_half / parts;
    return r;
}

static struct pl_apply like(const struct pl_node *node)
{
    const plume_tensor *out = node->out;
    struct pl_apply what = {.attr = node->attr, .rank = out->rank};

    memcpy(what.shape, out->shape, sizeof(what.shape));
    if (node->op->view) {
        memcpy(what.stride, out->stride, sizeof(what.stride));
        what.offset = out->offset - node->in[0]->offset;
    }
    return what;
}

static int
trace_whole(struct tracer *tr, const struct pl_node *node, plume_tensor **ret, struct pl_error *err)
{
    struct pl_apply what = like(node);

    if (pl_tape_is_cast(node) && tr->in[0] != node->in[0]) /* of a part of a parameter */
        memcpy(what.shape, tr->in[0]->shape, sizeof(what.shape));
    return apply(tr, node, &what, 1, ret, err);
}

/* The random numbers of a part are those of its elements in the whole. */
static void place_random(const struct tracer *tr,
                         const plume_tensor *whole,
                         const struct pl_split_at *at,
                         struct pl_attr *attr)
{
    struct pl_split_part part = pl_split_part(whole, *at);
    size_t run = part.size / tr->split->n * part.inner;

    attr->i[1] = (int64_t)run;
    attr->i[2] = (int64_t)(part.size * part.inner);
    attr->i[3] = (int64_t)(tr->split->rank * run);
}

/* Views whose strides are others for a part. */
static int trace_shape(struct tracer *tr,
                       const struct pl_node *node,
                       const struct pl_split_at *at,
                       plume_tensor **ret,
                       struct pl_error *err)
{
    bool reshapes = node->op->split == PL_SPLIT_RESHAPE;
    const plume_tensor *out = node->out;
    struct plume_op_args args = {.i = {(int64_t)out->rank}};

    for (size_t d = 0; d < out->rank; d++)
        if (reshapes)
            args.i[1 + d] = (int64_t)(out->shape[d] / (d == at->dim ? tr->split->n : 1));
        else
            args.i[d] = node->attr.i[0] >> (4 * d) & 15;
    return pl_op_call(tr->run, reshapes ? PLUME_OP_RESHAPE : PLUME_OP_PERMUTE, tr->in, 1, &args,
                      ret, err);
}

/* The number among outer, repeated and inner that the split dimension is a factor of. */
static size_t place_in_expand(const struct pl_node *node, const struct pl_split_at *at)
{
    const plume_tensor *in = node->in[0], *out = node->out;

    if (pl_split_repeats(node, 0, *at))
        return 1;
    for (size_t d = at->dim; d < out->rank; d++)
        if (in->shape[d] != out->shape[d])
            return 0;
    return 2;
}

static int trace_part(struct tracer *tr,
                      const struct pl_node *node,
                      const struct pl_split_at *at,
                      plume_tensor **ret,
                      struct pl_error *err)
{
    struct pl_apply what = like(node);
    size_t n = tr->split->n;

    if (node->op->split == PL_SPLIT_RESHAPE || node->op->split == PL_SPLIT_PERMUTE)
        return trace_shape(tr, node, at, ret, err);
    what.shape[at->dim] /= n;
    if (node->op->split == PL_SPLIT_HEADS || node->op->split == PL_SPLIT_TURN)
        what.attr.i[0] /= (int64_t)n;
    if (node->op->split == PL_SPLIT_EXPAND)
        what.attr.i[place_in_expand(node, at)] /= (int64_t)n;
    if (node->op->split == PL_SPLIT_RANDOM)
        place_random(tr, node->out, at, &what.attr);
    if (node->op->view) { /* a slice: of the part's dimension, a part from its first element on */
        const plume_tensor *in = node->in[0], *part = tr->in[0];

        for (size_t d = 0; d < in->rank; d++) {
            size_t first = in->shape[d] != node->out->shape[d] && in->stride[d]
                               ? what.offset / in->stride[d]
                               : 0;

            if (in->shape[d] != node->out->shape[d])
                what.offset = (d == at->dim ? first / n : first) * part->stride[d];
        }
        memcpy(what.stride, part->stride, sizeof(what.stride));
    }
    return apply(tr, node, &what, n, ret, err);
}

/* Input k is whole, and the ranks' parts of the output need it: its gradient is the sum of theirs.
 */
static int enter(struct tracer *tr, const struct pl_node *node, size_t k, struct pl_error *err)
{
    plume_tensor *x = node->in[k], **entered = &tr->in[k];
    int r = 0;

    if (!tr->run->want_grad || !tr->in[k]->wants_grad)
        return 0;
    if (x->tape == &tr->from->whole)
        entered = &tr->entered[x->node];
    if (entered == &tr->in[k] || !*entered)
        r = pl_split_enter(tr->run, tr->in[k], entered, err);
    tr->in[k] = *entered;
    return r;
}

static int trace_columns(struct tracer *tr,
                         const struct pl_node *node,
                         const struct pl_split_at *at,
                         plume_tensor **ret,
                         struct pl_error *err)
{
    int r = enter(tr, node, 0, err);

    return r < 0 ? r : trace_part(tr, node, at, ret, err);
}

static int trace_inside(struct tracer *tr,
                        const struct pl_node *node,
                        const struct pl_split_at *at,
                        plume_tensor **ret,
                        struct pl_error *err)
{
    int r = 0;

    bool repeats = node->op->split == PL_SPLIT_EACH || node->op->split == PL_SPLIT_EXPAND;

    for (size_t k = 0; k < node->n_in && r == 0 && repeats; k++)
        if (pl_split_repeats(node, k, *at))
            r = enter(tr, node, k, err);
    return r < 0 ? r : trace_part(tr, node, at, ret, err);
}

/* The bias and the activation follow the sum. */
static int
trace_rows(struct tracer *tr, const struct pl_node *node, plume_tensor **ret, struct pl_error *err)
{
    struct plume_op_args args = {{node->attr.i[0]}, {0}};
    plume_tensor *y, *two[2];
    int r = pl_op_call(tr->run, PLUME_OP_LINEAR, tr->in, 2, NULL, &y, err);

    if (r == 0)
        r = pl_split_sum(tr->run, y, &y, err);
    if (r == 0 && node->n_in > 2) {
        two[0] = y;
        two[1] = tr->in[2];
        r = pl_op_call(tr->run, PLUME_OP_BINARY, two, 2, NULL, &y, err);
    }
    if (r == 0 && args.i[0] != PLUME_IDENTITY)
        r = pl_op_call(tr->run, PLUME_OP_UNARY, &y, 1, &args, &y, err);
    *ret = y;
    return r;
}

static int trace_node(struct tracer *tr, size_t index, struct pl_error *err)
{
    const struct pl_node *node = &tr->from->whole.nodes[index];
    const struct pl_split_mark *mark = &tr->regions->marks[index];
    plume_tensor **ret = &tr->from->made[index];

    for (size_t k = 0; k < node->n_in; k++)
        tr->in[k] = stand_in(tr, node->in[k]);
    switch (mark->role) {
    case PL_SPLIT_COLUMNS:
        return trace_columns(tr, node, &mark->at, ret, err);
    case PL_SPLIT_INSIDE:
        return trace_inside(tr, node, &mark->at, ret, err);
    case PL_SPLIT_ROWS:
        return trace_rows(tr, node, ret, err);
    case PL_SPLIT_WHOLE:
        break;
    }
    return trace_whole(tr, node, ret, err);
}

static int trace(struct tracer *tr, struct pl_error *err)
{
    size_t n = tr->from->whole.n;
    plume_tensor **made = reallocarray(tr->from->made, n + 1, sizeof(plume_tensor *));
    _cleanup_free_ plume_tensor **entered = calloc(n + 1, sizeof(plume_tensor *));
    int r = 0;

    if (made)
        tr->from->made = made;
    if (!made || !entered)
        return pl_error_nomem(err);
    tr->entered = entered;
    /* A new tensor may have the address of an old one: drop the record. */
    pl_tape_begin(tr->run);
    pl_tape_end(tr->run);
    pl_tape_begin(tr->run);
    for (size_t i = 0; i < n && r == 0; i++)
        r = trace_node(tr, i, err);
    pl_tape_end(tr->run);
    return r;
}

int pl_split_trace(const struct pl_split *split,
                   struct pl_split_tape *from,
                   struct pl_tape *run,
                   unsigned *ret_number,
                   struct pl_error *err)
{
    struct pl_split_regions regions;
    struct tracer tr = {.split = split, .from = from, .regions = &regions, .run = run};
    int r;

    *ret_number = 0;
    if (from->ready && !from->whole.changed) {
        run->changed = false;
        return 0;
    }
    from->ready = false;
    r = pl_split_regions_find(&regions, split, from, NULL, err);
    if (r < 0)
        return r;
    *ret_number = pl_split_regions_differ(&regions);
    r = *ret_number ? pl_error_set(err, -EINVAL, "a parameter is used in another way")
                    : trace(&tr, err);
    pl_split_regions_finish(&regions);
    from->ready = r == 0;
    return r;
}
