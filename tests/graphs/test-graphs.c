/* SPDX-License-Identifier: MIT */
/* Runs graphs of ops that graphs.py wrote with PyTorch's values and gradients, and compares: every
 * op by the function that modules call, in f64 and f32, on any device (tests/lib/on_device.h).
 *
 *     test-graphs FILE...                     "-" is standard input
 *     test-graphs --pjrt PLUGIN EVERY FILE... in f32 by that XLA device, each EVERYth of the graphs
 *     test-graphs --half f16|bf16 FILE...     at levels O1, O2 and O3; files by halves.py
 *
 * Every op must have a lowering for XLA devices, which is looked up without one.
 * A file has words between white space: "graph NAME", then "leaf" (a tensor), "op" (a call, its
 * result is the next tensor), "out", "grad" and "state" (what is expected of a tensor), "end". */
#include "runtime/engine/ops/ops.h"
#include "tests/graphs/graph.h"
#include "tests/graphs/on_xla.h"
#include "tests/lib/on_device.h"
#include "tests/lib/today.h"

#include <math.h>
#include <string.h>

static enum plume_dtype half;               /* 0: the graphs run in f64 and f32 */
static unsigned level;                      /* of --amp-level, 1 to 3, where half is not 0 */
static size_t xla_every, xla_seen, xla_run; /* graphs; every = 0: not on an XLA device */

/* the engine's half of struct plume_api, as far as ops need it */

static plume_tensor *api_op(struct plume_context *pl,
                            enum plume_op which,
                            plume_tensor *const *in,
                            size_t n_in,
                            const struct plume_op_args *args)
{
    struct graph_run *run = pl->state;
    struct pl_error err = {0};
    plume_tensor *ret = NULL;

    for (size_t i = 0; i < n_in; i++)
        if (!in[i])
            return NULL;
    if (pl_op_call(&run->tape, which, in, n_in, args, &ret, &err) < 0)
        graph_give_up(run->graph->name, pl_error_text(&err));
    return ret;
}

static size_t api_shape(const plume_tensor *t, size_t *ret_shape)
{
    for (size_t d = 0; ret_shape && d < t->rank; d++)
        ret_shape[d] = t->shape[d];
    return t->rank;
}

static int api_fail(struct plume_context *pl, int code, const char *text)
{
    graph_give_up(((struct graph_run *)pl->state)->graph->name, text);
    return code;
}

/* a run */

static void *memory(size_t bytes)
{
    void *ret = NULL;

    if (pl_device_alloc(on_device(), bytes + 1, "a leaf", &ret, NULL) < 0)
        graph_give_up("?", "out of memory");
    return ret;
}

static plume_tensor *make(struct graph_run *run,
                          enum plume_dtype dtype,
                          size_t rank,
                          const size_t *shape,
                          const double *values)
{
    plume_tensor *t = &run->leaf[run->n_leaves++];

    if (pl_tensor_init(t, dtype, rank, shape) < 0)
        graph_give_up(run->graph->name, "a leaf has no valid shape");
    t->data = memory(t->count * 8);
    if (dtype == PLUME_I32) {
        int32_t *numbers = calloc(t->count + 1, sizeof(*numbers));

        for (size_t i = 0; numbers && i < t->count; i++)
            numbers[i] = (int32_t)values[i];
        pl_device_upload(on_device(), t->data, numbers, t->count * sizeof(*numbers));
        free(numbers);
    } else {
        on_device_set(t, values);
    }
    return t;
}

static void begin(struct graph_run *run, const struct graph *graph, bool f64)
{
    *run = (struct graph_run){
        .graph = graph,
        .f64 = f64,
        .api = {
            .struct_size = sizeof(run->api), .op = api_op, .shape = api_shape, .fail = api_fail}};
    run->pl =
        (struct plume_context){.struct_size = sizeof(run->pl), .api = &run->api, .state = run};
    pl_tape_init(&run->tape, on_device(), f64 ? PL_REAL_F64 : PL_REAL_F32, true);
    run->tape.amp_dtype = f64 ? 0 : half;
    run->tape.amp_o2 = level == 2;
    run->tape.amp_o3 = level == 3;
    pl_tape_begin(&run->tape);
    for (size_t i = 0; i < graph->n_leaves; i++) {
        const struct graph_leaf *leaf = &graph->leaf[i];
        plume_tensor *t = make(run,
                               leaf->integer ? PLUME_I32
                               : f64         ? PLUME_F64
                                             : PLUME_F32,
                               leaf->rank, leaf->shape, leaf->values);

        run->t[run->n++] = t;
        if (leaf->integer || leaf->buffer)
            continue;
        t->wants_grad = t->is_param = true;
        t->grad = memory(t->count * 8);
    }
}

/* The sum of y w, w by index as in graphs.py. */
static plume_tensor *weighted(struct graph_run *run, plume_tensor *y)
{
    double *w = calloc(y->count + 1, sizeof(*w));
    plume_tensor *weights;

    for (size_t i = 0; w && i < y->count; i++)
        w[i] = ((double)(i * 3 % 7) - 2.5) / 2;
    weights = make(run, run->f64 ? PLUME_F64 : PLUME_F32, y->rank, y->shape, w);
    free(w);
    return plume_sum(&run->pl, plume_mul(&run->pl, y, weights), 0, PLUME_RANK_MAX);
}

static const char *type_of(const struct graph_run *run)
{
    static const char *const f16[] = {"f16, O1", "f16, O2", "f16, O3"};
    static const char *const bf16[] = {"bf16, O1", "bf16, O2", "bf16, O3"};

    if (!half)
        return run->f64 ? "f64" : "f32";
    return half == PLUME_F16 ? f16[level - 1] : bf16[level - 1];
}

static bool compare(struct graph_run *run, const struct graph_wanted *w)
{
    plume_tensor *t = run->t[w->id];
    void *at = w->grad ? pl_tensor_grad(t) : pl_tensor_data(t);
    double *got =
        t->dtype == PLUME_I32 ? calloc(t->count + 1, sizeof(*got)) : on_device_values(t, at);

    if (t->dtype == PLUME_I32) {
        int32_t *read = on_device_read(at, t->count * sizeof(*read));

        for (size_t i = 0; read && got && i < t->count; i++)
            got[i] = read[i];
        free(read);
    }
    if (!got || t->count != w->n)
        graph_give_up(run->graph->name, "a tensor has another number of elements than PyTorch's");
    for (size_t i = 0; i < w->n; i++) {
        double limit = w->tolerance[run->f64 ? 0 : 1];

        /* the difference of infinities is NaN */
        if (fabs(got[i] - w->values[i]) <= limit || got[i] == w->values[i] ||
            (isnan(got[i]) && isnan(w->values[i])))
            continue;
        fprintf(stderr,
                "%s: graph %s in %s: %s of tensor %zu, element %zu: %.17g, PyTorch: %.17g "
                "(allowed: %g)\n",
                graph_file, run->graph->name, type_of(run),
                w->grad    ? "gradient"
                : w->state ? "state"
                           : "value",
                w->id, i, got[i], w->values[i], limit);
        free(got);
        return false;
    }
    free(got);
    return true;
}

/* Takes the memory of the leaves that backward does not declare to read (pl_op's `needs`), as units
 * of parameters do (runtime/engine/params/units.h). */
static void hide_leaves(struct graph_run *run, void **ret_data)
{
    for (size_t i = 0; i < run->n_leaves; i++) {
        ret_data[i] = run->leaf[i].data;
        run->leaf[i].data = NULL;
    }
    for (size_t i = 0; i < run->tape.n; i++) {
        const struct pl_node *node = &run->tape.nodes[i];

        for (size_t k = 0; k < node->n_in && node->back; k++) {
            plume_tensor *root = node->in[k] ? pl_tensor_root(node->in[k]) : NULL;

            if (root && !root->tape && (node->op->needs & PL_NEEDS_IN(k)))
                root->data = ret_data[root - run->leaf];
        }
    }
}

/* Gradients are compared twice: backward may neither add to old contents nor need them, nor leaves
 * that it does not declare. */
static bool execute(struct graph_run *run)
{
    const struct graph *graph = run->graph;
    plume_tensor *roots[PL_TAPE_ROOTS_MAX], *loss = NULL;
    struct pl_error err = {0};
    void *data[PL_COUNT(run->leaf)];
    size_t n_roots = 1;
    bool good = true;

    for (size_t i = 0; i < graph->n_calls; i++)
        run->t[run->n++] = graph_call(run, &graph->call[i]);
    for (size_t i = 0; i < graph->n_wanted; i++) {
        plume_tensor *y = run->t[graph->wanted[i].id], *part;

        if (graph->wanted[i].grad || graph->wanted[i].state)
            continue;
        if (y->dtype != PLUME_I32 && !pl_tensor_is_dense(y)) /* to read it as it is */
            y = run->t[graph->wanted[i].id] = plume_scale(&run->pl, y, 1, 0);
        if (n_roots < PL_TAPE_ROOTS_MAX)
            roots[n_roots++] = y;
        if (y->dtype == PLUME_I32)
            continue;
        part = weighted(run, y);
        loss = loss ? plume_add(&run->pl, loss, part) : part;
    }
    pl_tape_end(&run->tape);
    roots[0] = loss;
    if (pl_tape_prepare(&run->tape, loss ? roots : roots + 1, n_roots - !loss, loss ? 1 : 0, &err) <
        0)
        graph_give_up(graph->name, pl_error_text(&err));
    if (!run->f64 && !half && !on_xla_takes(&run->tape))
        graph_give_up(graph->name, "has an op that cannot be compiled for an XLA device");
    if (xla_every && xla_seen++ % xla_every)
        return true;
    for (int time = 0; time < 2; time++) {
        if (pl_tape_forward(&run->tape, &err) < 0)
            graph_give_up(graph->name, pl_error_text(&err));
        for (size_t i = 0; i < graph->n_wanted && time == 0; i++)
            if (graph->wanted[i].state)
                good = compare(run, &graph->wanted[i]) && good;
        if (time == 1)
            hide_leaves(run, data);
        if (loss && loss->wants_grad &&
            pl_tape_backward(&run->tape, &(struct pl_backward){.loss = loss, .seed = 1}, &err) < 0)
            graph_give_up(graph->name, pl_error_text(&err));
        for (size_t i = 0; time == 1 && i < run->n_leaves; i++)
            run->leaf[i].data = data[i];
        if (xla_every && time == 0) {
            on_xla_run(&run->tape, run->leaf, run->n_leaves, roots + !loss, n_roots - !loss,
                       loss && loss->wants_grad ? loss : NULL);
            xla_run++;
        }
        for (size_t i = 0; i < graph->n_wanted; i++)
            if (!graph->wanted[i].state)
                good = compare(run, &graph->wanted[i]) && good;
    }
    return good;
}

static void end(struct graph_run *run)
{
    pl_tape_finish(&run->tape);
    for (size_t i = 0; i < run->n_leaves; i++) {
        pl_device_free(on_device(), run->leaf[i].data);
        if (run->leaf[i].grad)
            pl_device_free(on_device(), run->leaf[i].grad);
    }
}
/* Returns the number of graphs; *ret_bad is raised by those that differ. */
static size_t run_file(const char *path, size_t *ret_bad)
{
    static struct graph graph;
    static struct graph_run run;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    size_t n = 0;

    graph_file = path;
    if (!f)
        graph_give_up("?", "cannot be opened");
    for (; graph_read(f, &graph); n++) {
        bool good = true;

        for (int f64 = !xla_every && !half; f64 >= 0; f64--) {
            level = half ? 1 : 0;
            do {
                if (!today(n + (half ? level : (unsigned)f64), half ? 3 : 2))
                    continue;
                begin(&run, &graph, f64);
                good = execute(&run) && good;
                end(&run);
            } while (half && ++level <= 3);
        }
        *ret_bad += !good;
        graph_forget(&graph);
    }
    if (f != stdin)
        fclose(f);
    return n;
}

int main(int argc, char **argv)
{
    size_t n = 0, bad = 0;
    bool xla = argc > 3 && strcmp(argv[1], "--pjrt") == 0;

    if (xla && !argv[2][0]) {
        puts("no PJRT plugin (./dev deps pjrt), or a build with a sanitizer");
        return 77;
    }
    if (xla) {
        xla_every = strtoul(argv[3], NULL, 10);
        on_xla_open(argv[2]);
    }
    if (argc > 3 && strcmp(argv[1], "--half") == 0) {
        half = strcmp(argv[2], "f16") == 0 ? PLUME_F16 : PLUME_BF16;
    }
    for (int i = xla ? 4 : half ? 3 : 1; i < argc; i++)
        n += run_file(argv[i], &bad);
    if (xla) {
        on_xla_close();
        printf("%zu on the XLA device; ", n = xla_run);
    }
    printf("%zu graphs, %zu differ from PyTorch\n", n, bad);
    return n == 0 || bad > 0;
}
