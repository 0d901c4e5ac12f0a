/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape/profile.h"
#include "runtime/engine/tape/tape_private.h"

#include <math.h>
#include <string.h>

struct line {
    const struct pl_node *first;
    size_t calls;
    double ns[2], flops, bytes;
    double least_s; /* by the device's limits; NAN: they are not all known */
    struct pl_device_calls done;
};

static bool alike(const struct pl_node *a, const struct pl_node *b)
{
    return strcmp(a->op->name, b->op->name) == 0 && a->out->dtype == b->out->dtype &&
           a->k == b->k && a->out->rank == b->out->rank &&
           memcmp(a->out->shape, b->out->shape, a->out->rank * sizeof(a->out->shape[0])) == 0;
}

static int dearest_first(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    double dx = x->ns[0] + x->ns[1], dy = y->ns[0] + y->ns[1];

    return (dx < dy) - (dx > dy);
}

/* The number of times that a step runs a node: forward twice where backward computes it again. */
static double runs_of(const struct pl_tape *tape, size_t i, int back)
{
    return !back && pl_tape_runs_again(tape, i) ? 2 : 1;
}

/* The least time of a node by the device's limits: what its products calculate, and what it moves.
 * NAN: what products reach is not known. */
static double least_s(const struct pl_tape *tape, size_t i)
{
    const struct pl_node *node = &tape->nodes[i];
    const struct pl_device_limits *limits = &tape->dev->limits;
    bool product = node->op->product || node->fusion.product;
    double flops = product ? limits->flops[node->k->real] : 0, sum = 0;

    if (product && flops <= 0)
        return NAN;
    for (int back = 0; back < 2; back++) {
        double calculate = flops > 0 ? pl_node_flops(node, back) / flops : 0;
        double move = limits->bytes > 0 ? pl_node_traffic(node, back).all / limits->bytes : 0;

        sum += PL_MAX(calculate, move) * runs_of(tape, i, back);
    }
    return sum;
}

static size_t gather(const struct pl_tape *tape, struct line *lines)
{
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];
        size_t k = 0;

        if (node->op->view || node->unread)
            continue;
        while (k < n && !alike(lines[k].first, node))
            k++;
        if (k == n)
            lines[n++] = (struct line){.first = node};
        lines[k].calls++;
        lines[k].done.library += node->calls.library;
        lines[k].done.own += node->calls.own;
        for (int d = 0; d < 2; d++) {
            double runs = runs_of(tape, i, d);

            lines[k].ns[d] += (double)node->ns[d];
            lines[k].bytes += runs * pl_node_traffic(node, d).all;
            lines[k].flops += runs * pl_node_flops(node, d);
        }
        lines[k].least_s += least_s(tape, i);
    }
    return n;
}

/* Nothing for an op that no library has. */
static void print_done(const struct pl_device_calls *done, double per_step, FILE *out)
{
    if (done->library || done->own)
        fprintf(out, " %7.1f %6.1f", (double)done->library * per_step,
                (double)done->own * per_step);
    fputc('\n', out);
}

void pl_profile_clear(struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        memset(tape->nodes[i].ns, 0, sizeof(tape->nodes[i].ns));
        tape->nodes[i].calls = (struct pl_device_calls){0};
    }
}

void pl_profile_print(const struct pl_tape *tape, uint64_t steps, double seconds, FILE *out)
{
    _cleanup_free_ struct line *lines = calloc(tape->n, sizeof(*lines));
    double per_step = 1 / (double)PL_MAX(steps, (uint64_t)1), to_ms = 1e-6 * per_step;
    double total = seconds * 1e9, in_ops = 0;
    struct pl_device_calls done = {0};
    bool libraries = tape->dev->ops->calls != NULL, limited = tape->dev->limits.bytes > 0;
    size_t n = lines ? gather(tape, lines) : 0;
    char text[96];

    if (n == 0)
        return;
    qsort(lines, n, sizeof(*lines), dearest_first);
    fprintf(out, "%-16s %-4s %-26s %5s %9s %9s %6s %8s %8s%s%s\n", "op", "type", "output", "calls",
            "forward", "backward", "share", "GFLOP/s", "GB/s", limited ? "  limit" : "",
            libraries ? " library    own" : "");
    for (size_t i = 0; i < n; i++) {
        const struct line *l = &lines[i];
        double ns = l->ns[0] + l->ns[1];

        in_ops += ns;
        done.library += l->done.library;
        done.own += l->done.own;
        fprintf(out, "%-16s %-4s %-26s %5zu %9.3f %9.3f %5.1f%% %8.2f %8.2f", l->first->op->name,
                pl_dtype_name(pl_dtype_of_real(l->first->k->real)),
                pl_tensor_text(l->first->out, text, sizeof(text)), l->calls, l->ns[0] * to_ms,
                l->ns[1] * to_ms, 100 * ns / total, ns > 0 ? l->flops * (double)steps / ns : 0,
                ns > 0 ? l->bytes * (double)steps / ns : 0);
        if (limited && isnan(l->least_s))
            fprintf(out, " %6s", "-");
        else if (limited)
            fprintf(out, " %5.1f%%", ns > 0 ? 100 * l->least_s * (double)steps * 1e9 / ns : 0);
        print_done(&l->done, per_step, out);
    }
    fprintf(out, "%-16s %-4s %-26s %5s %9.3f %9s %5.1f%%\n", "rest", "", "data, optimizer, ranks",
            "", (total - in_ops) * to_ms, "", 100 * (total - in_ops) / total);
    if (libraries)
        fprintf(out, "%.1f products and attentions a step by the library, %.1f by own kernels\n",
                (double)done.library * per_step, (double)done.own * per_step);
    fprintf(out, "%.3f ms a step, %llu steps\n", total * to_ms, (unsigned long long)steps);
}
