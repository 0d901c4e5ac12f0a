/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape/op_times.h"
#include "common/base/fs.h"

#include <string.h>

/* An op is run this often, or twice if it takes long: the first run warms caches up, and others may
 * have the processor meanwhile. Ops that do the same are measured a few times in all. */
#define REPEATS 3
#define REPEAT_NS 30000000
#define EQUALS 3

static int run_once(struct pl_stage_tape *s, uint64_t *ret_ns, struct pl_error *err)
{
    uint64_t begin = pl_now_ns();
    int r = pl_tape_forward(&s->tape, err);

    if (r == 0 && s->tape.nodes[0].back)
        r = pl_tape_backward(&s->tape, &(struct pl_backward){.loss = s->loss, .seed = 1}, err);
    if (r == 0)
        r = pl_device_sync(s->tape.dev, err);
    *ret_ns = pl_now_ns() - begin;
    return r;
}

static int time_node(struct pl_stage_tape *s,
                     const struct pl_tape *whole,
                     const struct pl_tape_flow *flow,
                     size_t index,
                     const plume_tensor *loss,
                     double *ret_seconds,
                     struct pl_error *err)
{
    uint64_t best = UINT64_MAX, sum = 0, ns = 0;
    int r = pl_stage_tape_build(s, whole, flow, index, index + 1,
                                &(struct pl_stage_build){.loss = loss, .alone = true}, err);

    if (r == 0)
        r = pl_stage_tape_prepare(s, NULL, 0, err);
    for (int i = 0; r == 0 && i < REPEATS && (i < 2 || sum < REPEAT_NS); i++) {
        r = run_once(s, &ns, err);
        best = PL_MIN(best, ns);
        sum += ns;
    }
    *ret_seconds = (double)best * 1e-9;
    return r;
}

/* Bytes of node i's output, if some backward reads it. */
static double kept_output(const struct pl_tape *whole, const struct pl_tape_flow *flow, size_t i)
{
    const plume_tensor *out = whole->nodes[i].out;
    bool kept = flow->back[i] && (whole->nodes[i].op->needs & PL_NEEDS_OUT);

    for (size_t n = i + 1; n <= flow->last_use[i] && !kept; n++) {
        const struct pl_node *node = &whole->nodes[n];

        for (size_t k = 0; flow->back[n] && k < node->n_in; k++)
            kept |= node->in[k] && (node->op->needs & PL_NEEDS_IN(k)) &&
                    pl_tensor_root(node->in[k]) == out;
    }
    return kept ? (double)(out->count * pl_dtype_size(out->dtype)) : 0;
}

static bool same_shape(const plume_tensor *a, const plume_tensor *b)
{
    if (!a || !b)
        return a == b;
    return a->dtype == b->dtype && a->rank == b->rank && a->wants_grad == b->wants_grad &&
           memcmp(a->shape, b->shape, a->rank * sizeof(*a->shape)) == 0 &&
           memcmp(a->stride, b->stride, a->rank * sizeof(*a->stride)) == 0;
}

/* True if both nodes do the same on other numbers. */
static bool same_work(const struct pl_node *a, const struct pl_node *b)
{
    if (a->op != b->op || a->k != b->k || a->n_in != b->n_in ||
        memcmp(&a->attr, &b->attr, sizeof(a->attr)) != 0 || !same_shape(a->out, b->out))
        return false;
    for (size_t k = 0; k < a->n_in; k++)
        if (!same_shape(a->in[k], b->in[k]))
            return false;
    return true;
}

/* The first node that does the same as node i, and so backward. */
static size_t leader_of(const struct pl_tape *whole, const struct pl_tape_flow *flow, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (flow->back[k] == flow->back[i] && same_work(&whole->nodes[k], &whole->nodes[i]))
            return k;
    return i;
}

/* Times each node, or takes the time of others that do the same. */
static int time_nodes(const struct pl_tape *whole,
                      const struct pl_tape_flow *flow,
                      const plume_tensor *loss,
                      double *ret_seconds,
                      struct pl_error *err)
{
    _cleanup_free_ size_t *leader = calloc(whole->n + 1, sizeof(*leader));
    _cleanup_free_ unsigned *measured = calloc(whole->n + 1, sizeof(*measured));
    struct pl_stage_tape stage = {0};
    int r = leader && measured ? 0 : pl_error_nomem(err);

    for (size_t i = 0; i < whole->n && r == 0; i++) {
        double seconds = 0;
        size_t first = leader_of(whole, flow, i);

        leader[i] = first;
        if (measured[first]++ >= EQUALS)
            continue;
        if (!whole->nodes[i].op->view)
            r = time_node(&stage, whole, flow, i, loss, &seconds, err);
        ret_seconds[first] = first == i ? seconds : PL_MIN(ret_seconds[first], seconds);
    }
    for (size_t i = 0; i < whole->n && r == 0; i++)
        ret_seconds[i] = ret_seconds[leader[i]];
    pl_stage_tape_finish(&stage);
    return r;
}

int pl_op_times(const struct pl_tape *whole,
                const struct pl_tape_flow *flow,
                const plume_tensor *loss,
                double *ret_seconds,
                double *ret_kept,
                struct pl_error *err)
{
    int r = time_nodes(whole, flow, loss, ret_seconds, err);

    if (r < 0)
        return pl_error_wrap(err, r, "while measuring the step's ops one by one");
    for (size_t i = 0; i < whole->n; i++) {
        const struct pl_node *node = &whole->nodes[i];

        ret_kept[i] = node->op->view ? 0
                                     : kept_output(whole, flow, i) +
                                           (flow->back[i] ? (double)node->saved_bytes : 0);
    }
    return 0;
}
