/* SPDX-License-Identifier: MIT */
/* Measures the ops of a microbatch, and makes the first cut of the pipeline. */
#include "common/base/fs.h"
#include "common/base/memory.h"
#include "runtime/engine/ops/split.h"
#include "runtime/engine/params/stages.h"
#include "runtime/engine/tape/op_times.h"
#include "runtime/engine/train/pipe.h"
#include "runtime/engine/util/xxh64.h"

#include <math.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROBE_BYTES PL_PIPE_PROBE_BYTES
#define PROBES 6 /* the fastest counts: the neighbour was there */

/* The message that each rank sends to all others. */
struct report {
    uint64_t n, hash; /* ops, and what they are */
    double limit;     /* bytes; INFINITY: none known */
    double per_byte;  /* seconds on its slowest link */
};

static int alloc_costs(struct pl_pipe *pipe, size_t n, size_t n_uses, struct pl_error *err)
{
    struct pl_pipe_costs *c = &pipe->costs;

    c->n = n;
    c->ops = calloc(n + 1, sizeof(const struct pl_op *));
    c->seconds = calloc(pipe->n_stages * n + 1, sizeof(double));
    c->kept = calloc(n + 1, sizeof(double));
    c->entering = calloc(n + 1, sizeof(double));
    c->transfer = calloc(n + 1, sizeof(double));
    c->forbidden = calloc(n + 1, sizeof(bool));
    c->uses = calloc(n_uses + 1, sizeof(*c->uses));
    c->buffer_op = calloc(pipe->params->n_buffers + 1, sizeof(*c->buffer_op));
    c->limit = calloc(pipe->n_stages, sizeof(double));
    c->in_flight = calloc(pipe->n_stages, sizeof(double));
    pipe->cut = calloc(pipe->n_stages + 1, sizeof(*pipe->cut));
    return c->ops && c->seconds && c->kept && c->entering && c->transfer && c->forbidden &&
                   c->uses && c->buffer_op && c->limit && c->in_flight && pipe->cut
               ? 0
               : pl_error_nomem(err);
}

static bool uses(const struct pl_tape *tape, size_t op, const plume_tensor *root)
{
    for (size_t k = 0; k < tape->nodes[op].n_in; k++)
        if (tape->nodes[op].in[k] && pl_tensor_root(tape->nodes[op].in[k]) == root)
            return true;
    return false;
}

/* The next op that uses it; SIZE_MAX: none. Parameters that no op uses count at the last op. */
static size_t next_use(const struct pl_tape *tape, size_t from, const plume_tensor *root)
{
    while (from < tape->n && !uses(tape, from, root))
        from++;
    return from < tape->n ? from : SIZE_MAX;
}

static int by_op(const void *a, const void *b)
{
    size_t x = ((const struct pl_cut_use *)a)->op, y = ((const struct pl_cut_use *)b)->op;

    return (x > y) - (x < y);
}

static size_t count_uses(const struct pl_pipe *pipe, const struct pl_tape *tape)
{
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++)
        n += tape->nodes[i].n_in;
    return n + pipe->params->n;
}

static void find_uses(struct pl_pipe *pipe, const struct pl_tape *tape)
{
    struct pl_pipe_costs *c = &pipe->costs;
    size_t size = pl_real_size(pipe->params->real);

    for (size_t i = 0; i < pipe->params->n; i++) {
        const plume_tensor *t = pipe->params->list[i]->tensor;
        size_t at = next_use(tape, 0, t);
        bool first = true;

        if (at == SIZE_MAX && tape->n)
            at = tape->n - 1;
        while (at < tape->n) {
            size_t next = next_use(tape, at + 1, t);

            c->uses[c->n_uses++] =
                (struct pl_cut_use){.op = at,
                                    .next = next,
                                    .first = first,
                                    .bytes = 2.0 * (double)(t->count * size),
                                    .state = (double)(pipe->slots_assumed * t->count * size),
                                    .param = i};
            first = false;
            at = next;
        }
    }
    qsort(c->uses, c->n_uses, sizeof(*c->uses), by_op);
}

/* The ops that use it stay in one stage. Returns the last one; SIZE_MAX: none. */
static size_t
keep_together(struct pl_pipe_costs *c, const struct pl_tape *tape, const plume_tensor *t)
{
    size_t first = next_use(tape, 0, t), last = first;

    for (size_t at = first; at != SIZE_MAX; at = next_use(tape, at + 1, t))
        last = at;
    for (size_t i = first + 1; first != SIZE_MAX && i <= last; i++)
        c->forbidden[i] = true;
    return last;
}

/* Ops that change one buffer stay together; a view stays with the op before it. The gradient of a
 * parameter is added up in another order if two stages use it, and where the cut is depends on
 * measured times: that is not deterministic. */
static void forbid(struct pl_pipe *pipe, const struct pl_tape *tape)
{
    struct pl_pipe_costs *c = &pipe->costs;

    for (size_t i = 1; i < tape->n; i++)
        c->forbidden[i] |= tape->nodes[i].op->view;
    for (size_t b = 0; b < pipe->params->n_buffers; b++)
        c->buffer_op[b] = keep_together(c, tape, pipe->params->buffers[b].tensor);
    for (size_t i = 0; i < pipe->params->n && pipe->options->deterministic; i++)
        (void)keep_together(c, tape, pipe->params->list[i]->tensor);
}

/* Finds the tensors that cross each cut. */
static void find_crossings(struct pl_pipe *pipe,
                           const struct pl_tape *tape,
                           const struct pl_tape_flow *flow,
                           const struct report *all)
{
    struct pl_pipe_costs *c = &pipe->costs;
    double per_byte = 0;

    for (unsigned i = 0; i < pipe->world->size; i++)
        per_byte = PL_MAX(per_byte, all[i].per_byte);
    for (size_t i = 1; i < tape->n; i++) {
        double forward, back;

        if (pl_tape_crossing(tape, flow, i, &forward, &back) > PL_STAGE_PASSES_MAX)
            c->forbidden[i] = true;
        c->entering[i] = forward + back;
        c->transfer[i] = (forward + back) * per_byte;
    }
}

/* ---- the device ---- */

/* Bytes that this process may still take. */
static double memory_limit(struct pl_device *dev, unsigned local_size)
{
    struct pl_device_memory memory = {0};
    struct rlimit space;
    double limit = INFINITY, used;
    double page = (double)sysconf(_SC_PAGESIZE);
    _cleanup_free_ char *text = NULL;

    dev->ops->memory(dev, &memory);
    if (!dev->ops->host)
        return memory.free ? (double)memory.free : INFINITY;
    if (memory.total)
        limit =
            (double)PL_MIN(memory.total, pl_memory_of_groups(NULL, NULL)) / PL_MAX(local_size, 1u);
    if (getrlimit(RLIMIT_AS, &space) < 0 || space.rlim_cur == RLIM_INFINITY)
        return limit;
    if (pl_file_read("/proc/self/statm", 256, &text, NULL, NULL) < 0)
        return limit;
    used = strtod(text, NULL) * page;
    return PL_MIN(limit, PL_MAX((double)space.rlim_cur - used, 1.0));
}

static int time_link(struct pl_pipe *pipe,
                     struct pl_pipe_link *link,
                     size_t bytes,
                     double *ret_seconds,
                     struct pl_error *err)
{
    const size_t offset[] = {0, bytes, 2 * bytes};
    uint64_t best = UINT64_MAX;
    int r = 0;

    for (int i = 0; i < PROBES && r == 0; i++) {
        uint64_t start = pl_now_ns();

        r = pl_comm_allgather_on(link->comm, pipe->params->dev, link->message, offset, err);
        if (r == 0)
            r = pl_device_sync(pipe->params->dev, err);
        best = PL_MIN(best, pl_now_ns() - start);
    }
    *ret_seconds = PL_MAX(*ret_seconds, (double)best * 1e-9);
    return r;
}

/* Links of even stages first, then the others: neighbours meet. A message's own cost is what its
 * bytes take; the rest is waiting, which a cut does not change. */
static int time_links(struct pl_pipe *pipe, struct report *mine, struct pl_error *err)
{
    double small = 0, large = 0;
    int r = 0;

    for (unsigned odd = 0; odd < 2; odd++)
        for (int side = PL_PIPE_PREVIOUS; side <= PL_PIPE_NEXT && r == 0; side++) {
            struct pl_pipe_link *link = &pipe->link[side];
            unsigned index = pipe->stage - (side == PL_PIPE_PREVIOUS);
            void *p;

            if (!link->comm || index % 2 != odd)
                continue;
            if (!link->message) {
                r = pl_device_alloc_zero(pipe->params->dev, 2 * PROBE_BYTES,
                                         "messages between stages", &p, err);
                if (r < 0)
                    return r;
                link->message = p;
                link->cap = 2 * PROBE_BYTES;
            }
            r = time_link(pipe, link, 64, &small, err);
            if (r == 0)
                r = time_link(pipe, link, PROBE_BYTES, &large, err);
        }
    mine->per_byte = PL_MAX(large - small, 0) / (2 * PROBE_BYTES);
    return r;
}

/* ---- agreement ---- */

static uint64_t hash_of(const struct pl_tape *tape)
{
    uint64_t sums[3] = {0};

    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *node = &tape->nodes[i];

        sums[1] = pl_xxh64(node->op->name, strlen(node->op->name));
        sums[2] = pl_xxh64(node->out->shape, node->out->rank * sizeof(*node->out->shape));
        sums[0] = pl_xxh64(sums, sizeof(sums));
    }
    return sums[0];
}

static int gather(struct pl_comm *comm, void *all, size_t bytes, struct pl_error *err)
{
    _cleanup_free_ size_t *offset = calloc((size_t)comm->size + 1, sizeof(*offset));

    if (!offset)
        return pl_error_nomem(err);
    for (size_t i = 0; i <= comm->size; i++)
        offset[i] = i * bytes;
    return pl_comm_allgather(comm, all, offset, err);
}

/* Ranks whose modules trace different ops cannot work on one step. */
static int agree(const struct pl_pipe *pipe, const struct report *all, struct pl_error *err)
{
    for (unsigned i = 1; i < pipe->world->size; i++)
        if (all[i].n != all[0].n || all[i].hash != all[0].hash)
            return pl_error_set(err, -EINVAL,
                                "rank %u's training_step has other ops than rank 0's: strategy "
                                "pipeline needs the same on all ranks",
                                i);
    return 0;
}

int pl_pipe_most_of_peers(struct pl_pipe *pipe, double *list, size_t n, struct pl_error *err)
{
    _cleanup_free_ double *all = NULL;
    int r;

    if (!pipe->peers)
        return 0;
    all = calloc(pipe->peers->size * n + 1, sizeof(*all));
    if (!all)
        return pl_error_nomem(err);
    memcpy(all + pipe->peers->rank * n, list, n * sizeof(*list));
    r = gather(pipe->peers, all, n * sizeof(*list), err);
    for (size_t i = 0; r == 0 && i < pipe->peers->size * n; i++)
        list[i % n] = PL_MAX(list[i % n], all[i]);
    return r;
}

static int agree_with_peers(struct pl_pipe *pipe, struct report *mine, struct pl_error *err)
{
    double list[] = {-mine->limit, mine->per_byte};
    int r = pl_pipe_most_of_peers(pipe, list, PL_COUNT(list), err);

    mine->limit = -list[0];
    mine->per_byte = list[1];
    return r;
}

/* A stage is as slow as the slowest of its copies. */
static int share_seconds(struct pl_pipe *pipe, const double *mine, struct pl_error *err)
{
    size_t n = pipe->costs.n;
    _cleanup_free_ double *all = calloc(pipe->world->size * n + 1, sizeof(*all));
    int r;

    if (!all)
        return pl_error_nomem(err);
    memcpy(all + pipe->world->rank * n, mine, n * sizeof(*mine));
    r = gather(pipe->world, all, n * sizeof(*all), err);
    for (unsigned rank = 0; r == 0 && rank < pipe->world->size; rank++)
        for (size_t i = 0; i < n; i++) {
            double *seconds = &pipe->costs.seconds[(rank % pipe->n_stages) * n + i];

            *seconds = PL_MAX(*seconds, all[rank * n + i]);
        }
    return r;
}

static void set_limits(struct pl_pipe *pipe, const struct report *all, size_t microbatches)
{
    for (unsigned s = 0; s < pipe->n_stages; s++) {
        pipe->costs.limit[s] = INFINITY;
        pipe->costs.in_flight[s] = (double)pl_pipe_kept_by(pipe, s, microbatches);
    }
    for (unsigned i = 0; i < pipe->world->size; i++)
        pipe->costs.limit[i % pipe->n_stages] =
            PL_MIN(pipe->costs.limit[i % pipe->n_stages], all[i].limit);
}

struct pl_cut_problem pl_pipe_problem(const struct pl_pipe *pipe)
{
    const struct pl_pipe_costs *c = &pipe->costs;

    return (struct pl_cut_problem){.n = c->n,
                                   .stages = pipe->n_stages,
                                   .seconds = c->seconds,
                                   .transfer = c->transfer,
                                   .forbidden = c->forbidden,
                                   .kept = c->kept,
                                   .entering = c->entering,
                                   .in_flight = c->in_flight,
                                   .uses = c->uses,
                                   .n_uses = c->n_uses,
                                   .limit = c->limit};
}

/* Rank 0 decides, so that rounding on other machines changes nothing. */
int pl_pipe_choose(struct pl_pipe *pipe,
                   const struct pl_cut_problem *problem,
                   size_t *ret_cut,
                   double *ret_seconds,
                   struct pl_error *err)
{
    struct pl_error own = {0};
    int64_t code = 0;
    int r;

    if (pipe->world->rank == 0)
        code = pl_cut_best(problem, ret_cut, ret_seconds, &own);
    r = pl_comm_broadcast(pipe->world, &code, sizeof(code), err);
    if (r < 0)
        return r;
    if (code < 0) { /* the same text on all ranks */
        if (pipe->world->rank)
            (void)pl_cut_best(problem, ret_cut, ret_seconds, &own);
        (void)pl_comm_barrier(pipe->world, NULL);
        return pl_error_set(err, (int)code, "%s", pl_error_text(&own));
    }
    r = pl_comm_broadcast(pipe->world, ret_cut, (pipe->n_stages + 1) * sizeof(*ret_cut), err);
    return r < 0 ? r : pl_comm_broadcast(pipe->world, ret_seconds, sizeof(*ret_seconds), err);
}

int pl_pipe_choose_first(struct pl_pipe *pipe, size_t *ret_cut, struct pl_error *err)
{
    struct pl_pipe_costs *c = &pipe->costs;
    struct pl_cut_problem problem = pl_pipe_problem(pipe);
    double seconds;
    int r = pl_pipe_choose(pipe, &problem, ret_cut, &seconds, err);

    if (r != -ENOSPC || !pipe->options->recompute)
        return r;
    /* With recomputation a stage keeps only a part, and which one depends on the cut.
     * pl_memory_stages() plans it later. */
    memset(c->kept, 0, c->n * sizeof(*c->kept));
    c->keeps_nothing = true;
    return pl_pipe_choose(pipe, &problem, ret_cut, &seconds, err);
}

static void print_cut(const struct pl_pipe *pipe, size_t microbatches)
{
    const struct pl_cut_problem problem = pl_pipe_problem(pipe);
    double seconds[PL_STAGES_MAX], bytes[PL_STAGES_MAX], all = 0, most = 0;
    unsigned n = pipe->n_stages;
    FILE *out = pipe->options->out;

    if (pipe->world->rank != 0 || (pipe->peers && pipe->peers->rank != 0) || !out ||
        pipe->options->json)
        return;
    pl_cut_stages(&problem, pipe->cut, seconds, bytes);
    fprintf(out, "pipeline: %u stage%s of", n, n == 1 ? "" : "s");
    for (unsigned s = 0; s < n; s++)
        fprintf(out, "%s %zu", s ? "," : "", pipe->cut[s + 1] - pipe->cut[s]);
    fprintf(out, " ops, ");
    for (unsigned s = 0; s < n; s++) {
        fprintf(out, "%s%.3g", s ? ", " : "", seconds[s] * 1e3);
        all += seconds[s];
        most = PL_MAX(most, seconds[s]);
    }
    fprintf(out, " ms and ");
    for (unsigned s = 0; s < n; s++)
        fprintf(out, "%s%.3g", s ? ", " : "", bytes[s] / (1 << 20));
    fprintf(out, " MiB%s; %zu microbatches, %s: bubbles take %.0f %%\n",
            pipe->costs.keeps_nothing ? " without activations" : "", microbatches,
            pl_pipe_order_names[pipe->options->pipe_order],
            100 * (1 - all * (double)microbatches / (most * n * (double)(microbatches + n - 1))));
    fflush(out);
}

static int
time_sum(const struct pl_tape *tape, void *buf, size_t bytes, double *ret, struct pl_error *err)
{
    uint64_t best = UINT64_MAX;
    int r = 0;

    for (int i = 0; i < PROBES && r == 0; i++) {
        uint64_t start = pl_now_ns();

        r = tape->peers->sum(tape->peers->ctx, buf, bytes / pl_real_size(tape->kernels->real),
                             tape->kernels->real, err);
        if (r == 0)
            r = pl_device_sync(tape->dev, err);
        best = PL_MIN(best, pl_now_ns() - start);
    }
    *ret = (double)best * 1e-9;
    return r;
}

/* Adds what sums over the peers take to the ops' times, which were measured without. A single stage
 * has no link, whose memory serves, and no cut. */
static int add_sums(const struct pl_pipe *pipe,
                    const struct pl_tape *tape,
                    double *seconds,
                    struct pl_error *err)
{
    char *next = pipe->link[PL_PIPE_NEXT].message;
    char *buf = next ? next : pipe->link[PL_PIPE_PREVIOUS].message;
    double small = 0, large = 0;
    int r;

    if (!pipe->peers || !buf)
        return 0;
    r = time_sum(tape, buf, 64, &small, err);
    if (r == 0)
        r = time_sum(tape, buf, PROBE_BYTES, &large, err);
    for (size_t i = 0; i < tape->n && r == 0; i++) {
        double bytes = (double)pl_split_summed_bytes(tape, &tape->nodes[i]);

        if (bytes > 0)
            seconds[i] += small + PL_MAX(large - small, 0) * bytes / PROBE_BYTES;
    }
    return r;
}

static int measure(struct pl_pipe *pipe,
                   const struct pl_tape *tape,
                   const plume_tensor *loss,
                   struct report *all,
                   struct pl_error *err)
{
    _cleanup_(pl_tape_flow_finish) struct pl_tape_flow flow = {0};
    _cleanup_free_ double *mine = calloc(tape->n + 1, sizeof(*mine));
    int r = mine ? pl_tape_flow_init(&flow, tape, loss, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    for (size_t i = 0; i < tape->n; i++)
        pipe->costs.ops[i] = tape->nodes[i].op;
    find_uses(pipe, tape);
    forbid(pipe, tape);
    find_crossings(pipe, tape, &flow, all);
    r = pl_op_times(tape, &flow, loss, mine, pipe->costs.kept, err);
    if (r == 0)
        r = add_sums(pipe, tape, mine, err);
    if (r == 0)
        r = pl_pipe_most_of_peers(pipe, mine, tape->n, err);
    return r < 0 ? r : share_seconds(pipe, mine, err);
}

int pl_pipe_cut(struct pl_pipe *pipe, struct pl_error *err)
{
    const struct plume_batch *dry = pl_loader_dry(&pipe->stages[PLUME_TRAIN].loader);
    _cleanup_free_ struct report *all = calloc(pipe->world->size, sizeof(*all));
    struct report *mine = all ? &all[pipe->world->rank] : NULL;
    struct pl_device_memory memory = {0};
    struct pl_pipe_slot *slot = NULL;
    const struct pl_tape *tape;
    struct plume_batch batch;
    size_t chunk, n, ops = 0;
    int r = all ? pl_pipe_slot(pipe, PLUME_TRAIN, 0, &slot, err) : pl_error_nomem(err);

    if (r < 0)
        return r;
    n = pl_pipe_microbatches(pipe, dry->rows, &chunk);
    r = n > 1 ? pl_pipe_check_loss(pipe, slot, dry, err) : 0;
    if (r < 0)
        return r;
    pl_batch_slice(dry, 0, chunk, slot->fields, &batch);
    slot->batch = batch;
    r = pl_lane_trace(&pipe->stages[PLUME_TRAIN], &slot->lane, &slot->batch, &slot->loss, err);
    if (r < 0)
        return r;
    tape = pl_pipe_tape(pipe);
    for (size_t i = 0; i < tape->n; i++)
        ops += !tape->nodes[i].op->view;
    if (ops < pipe->n_stages)
        return pl_error_set(err, -EINVAL,
                            "%u stages are more than the training step's %zu ops: choose fewer by "
                            "--stages",
                            pipe->n_stages, ops);
    *mine = (struct report){
        .n = tape->n,
        .hash = hash_of(tape),
        .limit = memory_limit(pipe->params->dev, pipe->world->world.local_size *
                                                     (pipe->peers ? pipe->peers->size : 1))};
    r = time_links(pipe, mine, err);
    if (r == 0)
        r = agree_with_peers(pipe, mine, err);
    if (r == 0)
        r = gather(pipe->world, all, sizeof(*all), err);
    if (r == 0)
        r = agree(pipe, all, err);
    if (r == 0)
        r = alloc_costs(pipe, tape->n, count_uses(pipe, tape), err);
    if (r == 0)
        r = measure(pipe, tape, slot->loss, all, err);
    if (r < 0)
        return r;
    set_limits(pipe, all, n);
    pipe->costs.rows = chunk;
    pipe->params->dev->ops->memory(pipe->params->dev, &memory);
    pipe->costs.measured_bytes = (double)memory.peak;
    r = pl_pipe_choose_first(pipe, pipe->cut, err);
    if (r == -EINVAL && pipe->options->deterministic)
        return pl_error_wrap(err, r, "--deterministic keeps a parameter's ops in one stage");
    if (r < 0)
        return r;
    pipe->params->stages =
        (struct pl_param_stages){.n = pipe->n_stages, .own = pipe->stage, .cut = pipe->cut};
    print_cut(pipe, n);
    return 0;
}
