/* SPDX-License-Identifier: MIT */
#include "runtime/engine/tape/profile.h"
#include "runtime/engine/tape/tape_private.h"

#include <math.h>
#include <string.h>

struct pl_profile_line {
    const char *op;
    enum pl_real real;
    plume_tensor out; /* its type and shape; the nodes of earlier recordings are gone */
    uint64_t calls;
    uint64_t ns[2];
    struct pl_node_work work; /* of all runs */
    struct pl_device_calls done;
};

static bool alike(const struct pl_profile_line *a, const struct pl_profile_line *b)
{
    return strcmp(a->op, b->op) == 0 && a->out.dtype == b->out.dtype && a->real == b->real &&
           a->out.rank == b->out.rank &&
           memcmp(a->out.shape, b->out.shape, a->out.rank * sizeof(a->out.shape[0])) == 0;
}

/* Batches of many shapes, as those of texts, would have a line for each shape. */
#define LINES_MAX 200

static double ns_of(const struct pl_profile_line *line)
{
    return (double)line->ns[0] + (double)line->ns[1];
}

static int dearest_first(const void *a, const void *b)
{
    double dx = ns_of(a), dy = ns_of(b);

    return (dx < dy) - (dx > dy);
}

/* The least time of a run by the device's limits: what products calculate, and what is moved. NAN:
 * what products reach is not known. */
static double
least_s(const struct pl_tape *tape, const struct pl_node *node, double flops, double bytes)
{
    const struct pl_device_limits *limits = &tape->dev->limits;
    bool product = node->op->product || node->fusion.product;
    double rate = product ? limits->flops[node->k->real] : 0;
    double calculate = rate > 0 ? flops / rate : 0;
    double move = limits->bytes > 0 ? bytes / limits->bytes : 0;

    return product && rate <= 0 ? NAN : PL_MAX(calculate, move);
}

/* Finds the line of what is like `key`, or adds an empty one. -ENOMEM. */
static int line_of(struct pl_profile *profile, const struct pl_profile_line *key, size_t *ret)
{
    size_t k = 0, cap = PL_MAX(2 * profile->cap, (size_t)32);
    struct pl_profile_line *lines;

    while (k < profile->n && !alike(&profile->lines[k], key))
        k++;
    if (k == profile->cap) {
        lines = reallocarray(profile->lines, cap, sizeof(*lines));
        if (!lines)
            return -ENOMEM;
        profile->lines = lines;
        profile->cap = cap;
    }
    if (k == profile->n)
        profile->lines[profile->n++] =
            (struct pl_profile_line){.op = key->op, .real = key->real, .out = key->out};
    *ret = k;
    return 0;
}

static bool is_shown(const struct pl_node *node)
{
    return !node->op->view && !node->unread;
}

/* Gives the nodes of a new plan their lines, and notes their work: later the shapes of the batch
 * that they read are those of the next batch. */
static int find_lines(struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        struct pl_node *node = &tape->nodes[i];
        struct pl_profile_line key = {
            .op = node->op->name, .real = node->k->real, .out = *node->out};

        if (!is_shown(node))
            continue;
        if (line_of(&tape->profile, &key, &node->line) < 0)
            return -ENOMEM;
        for (int d = 0; d < 2; d++) {
            double flops = pl_node_flops(node, d), bytes = pl_node_traffic(node, d).all;

            node->work[d] = (struct pl_node_work){flops, bytes, least_s(tape, node, flops, bytes)};
        }
    }
    tape->profile.plans = tape->plans;
    return 0;
}

int pl_profile_begin(struct pl_tape *tape, struct pl_error *err)
{
    if (tape->profile.plans != tape->plans && find_lines(tape) < 0)
        return pl_error_nomem(err);
    for (size_t i = 0; i < tape->n; i++)
        if (is_shown(&tape->nodes[i]))
            tape->profile.lines[tape->nodes[i].line].calls++;
    return 0;
}

static void add_work(struct pl_node_work *to, const struct pl_node_work *work)
{
    to->flops += work->flops;
    to->bytes += work->bytes;
    to->least_s += work->least_s;
}

void pl_profile_add(struct pl_tape *tape,
                    const struct pl_node *node,
                    bool backward,
                    uint64_t ns,
                    struct pl_device_calls done)
{
    struct pl_profile_line *line = &tape->profile.lines[node->line];

    line->ns[backward] += ns;
    add_work(&line->work, &node->work[backward]);
    line->done.library += done.library;
    line->done.own += done.own;
}

static void add_line(struct pl_profile_line *to, const struct pl_profile_line *line)
{
    to->calls += line->calls;
    for (int d = 0; d < 2; d++)
        to->ns[d] += line->ns[d];
    add_work(&to->work, &line->work);
    to->done.library += line->done.library;
    to->done.own += line->done.own;
}

int pl_profile_merge(struct pl_tape *to, struct pl_tape *from, struct pl_error *err)
{
    for (size_t i = 0, k; i < from->profile.n; i++) {
        const struct pl_profile_line *add = &from->profile.lines[i];

        if (line_of(&to->profile, add, &k) < 0)
            return pl_error_nomem(err);
        add_line(&to->profile.lines[k], add);
    }
    pl_profile_clear(from);
    return 0;
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
    tape->profile.n = 0;
    tape->profile.plans = 0;
}

/* A line of a shorter last batch has less than one call per step. */
static void print_calls(double per_step, FILE *out)
{
    if (per_step > 0 && per_step < 0.01)
        fprintf(out, " %5s", "<0.01");
    else
        fprintf(out, " %5.*f", per_step == rint(per_step) ? 0 : 2, per_step);
}

static void
print_line(const struct pl_profile_line *l, double per_step, double total, bool limited, FILE *out)
{
    double ns = ns_of(l), to_ms = 1e-6 * per_step;
    char text[96];

    fprintf(out, "%-16s %-4s %-26s", l->op, pl_dtype_name(pl_dtype_of_real(l->real)),
            pl_tensor_text(&l->out, text, sizeof(text)));
    print_calls((double)l->calls * per_step, out);
    fprintf(out, " %9.3f %9.3f %5.1f%% %8.2f %8.2f", (double)l->ns[0] * to_ms,
            (double)l->ns[1] * to_ms, 100 * ns / total, ns > 0 ? l->work.flops / ns : 0,
            ns > 0 ? l->work.bytes / ns : 0);
    if (limited && isnan(l->work.least_s))
        fprintf(out, " %6s", "-");
    else if (limited)
        fprintf(out, " %5.1f%%", ns > 0 ? 100 * l->work.least_s * 1e9 / ns : 0);
    print_done(&l->done, per_step, out);
}

static void
print_others(const struct pl_profile_line *l, size_t n, double per_step, double total, FILE *out)
{
    char text[40];

    snprintf(text, sizeof(text), "%zu more shapes", n);
    fprintf(out, "%-16s %-4s %-26s", "others", "", text);
    print_calls((double)l->calls * per_step, out);
    fprintf(out, " %9.3f %9.3f %5.1f%%\n", (double)l->ns[0] * per_step * 1e-6,
            (double)l->ns[1] * per_step * 1e-6, 100 * ns_of(l) / total);
}

void pl_profile_print(struct pl_tape *tape, uint64_t steps, double seconds, FILE *out)
{
    struct pl_profile *profile = &tape->profile;
    double per_step = 1 / (double)PL_MAX(steps, (uint64_t)1), to_ms = 1e-6 * per_step;
    double total = seconds * 1e9, in_ops = 0;
    struct pl_profile_line others = {0};
    struct pl_device_calls done = {0};
    bool libraries = tape->dev->ops->calls != NULL, limited = tape->dev->limits.bytes > 0;

    if (profile->n == 0)
        return;
    qsort(profile->lines, profile->n, sizeof(*profile->lines), dearest_first);
    profile->plans = 0; /* their lines are elsewhere now */
    fprintf(out, "%-16s %-4s %-26s %5s %9s %9s %6s %8s %8s%s%s\n", "op", "type", "output", "calls",
            "forward", "backward", "share", "GFLOP/s", "GB/s", limited ? "  limit" : "",
            libraries ? " library    own" : "");
    for (size_t i = 0; i < profile->n; i++) {
        const struct pl_profile_line *l = &profile->lines[i];

        in_ops += ns_of(l);
        done.library += l->done.library;
        done.own += l->done.own;
        if (i < LINES_MAX)
            print_line(l, per_step, total, limited, out);
        else
            add_line(&others, l);
    }
    if (profile->n > LINES_MAX)
        print_others(&others, profile->n - LINES_MAX, per_step, total, out);
    fprintf(out, "%-16s %-4s %-26s %5s %9.3f %9s %5.1f%%\n", "rest", "", "data, optimizer, ranks",
            "", (total - in_ops) * to_ms, "", 100 * (total - in_ops) / total);
    if (libraries)
        fprintf(out, "%.1f products and attentions a step by the library, %.1f by own kernels\n",
                (double)done.library * per_step, (double)done.own * per_step);
    fprintf(out, "%.3f ms a step, %llu steps\n", total * to_ms, (unsigned long long)steps);
}
