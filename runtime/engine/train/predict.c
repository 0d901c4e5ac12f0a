/* SPDX-License-Identifier: MIT */
#include "runtime/engine/train/predict.h"
#include "runtime/engine/report/array_file.h"
#include "runtime/engine/train/eval.h"

#include <string.h>

/* One round: each rank runs a batch, and rank 0 writes the rows of all. Ranks have every
 * world_size-th sample (sampler.h), so that a round's rows are neighbours in the file. */
struct rounds {
    struct pl_trainer *t;
    struct pl_stage *s;
    size_t batch_size, n;               /* rounds */
    uint64_t *rows;                     /* by rank, in all rounds */
    size_t rank, shape[PLUME_RANK_MAX]; /* of the file */
    size_t row_bytes;
    bool f64;
    unsigned giver; /* the rank that hands over the rows that this one computes: itself, or the
                       first of its group */
    size_t *offset; /* by rank, in `all` */
    char *all;      /* the rows of a round */
    struct pl_array_file file;
};

static void finish(struct rounds *q)
{
    pl_array_file_close(&q->file);
    free(q->rows);
    free(q->offset);
    free(q->all);
}

/* Rows of a rank in round `round`. */
static size_t rows_in(const struct rounds *q, unsigned rank, size_t round)
{
    uint64_t done = (uint64_t)round * q->batch_size;

    return q->rows[rank] <= done ? 0
                                 : (size_t)PL_MIN(q->rows[rank] - done, (uint64_t)q->batch_size);
}

/* The shape of a batch's output, and of a row. The trace of a full batch tells it. */
static int learn_shape(struct rounds *q, struct pl_error *err)
{
    const struct plume_batch *dry = pl_loader_dry(&q->s->loader);
    plume_tensor *out = NULL;
    size_t width = 1;
    int r = pl_lane_trace(q->s, &q->s->lanes[0], dry, &out, err);

    if (r < 0)
        return r;
    if (!out || out->rank == 0 || out->shape[0] != dry->rows)
        return pl_error_set(err, -EINVAL,
                            "hook predict_step: the output must be a tensor whose first dimension "
                            "is the batch's %zu rows",
                            dry->rows);
    if (!pl_dtype_is_real(out->dtype))
        return pl_error_set(err, -EINVAL, "hook predict_step: the output must be of real numbers");
    q->rank = out->rank;
    memcpy(q->shape, out->shape, sizeof(q->shape));
    for (size_t d = 1; d < q->rank; d++)
        width *= q->shape[d];
    q->f64 = q->t->ctx.params.real == PL_REAL_F64;
    q->row_bytes = width * (q->f64 ? sizeof(double) : sizeof(float));
    return 0;
}

/* All ranks learn the number of each one's rows. */
static int agree_on_rows(struct rounds *q, struct pl_error *err)
{
    unsigned n = q->t->comm->size;
    uint64_t batches = pl_eval_batches(q->t, PLUME_TEST), most = 0;
    int r;

    q->giver = q->t->pipe.on ? q->t->pipe.comm->world_ranks[0] : q->t->comm->rank;
    if (q->t->tp.on) { /* that of the first of the ranks that share a stage, or all */
        r = pl_comm_broadcast(q->t->tp.peers, &q->giver, sizeof(q->giver), err);
        if (r < 0)
            return r;
    }
    q->batch_size = q->s->loader.options.batch_size;
    q->rows = calloc(n, sizeof(*q->rows));
    q->offset = calloc((size_t)n + 1, sizeof(*q->offset));
    if (!q->rows || !q->offset)
        return pl_error_nomem(err);
    if (q->giver == q->t->comm->rank)
        q->rows[q->giver] = PL_MIN((uint64_t)q->s->loader.sampler.count, batches * q->batch_size);
    for (unsigned i = 0; i <= n; i++)
        q->offset[i] = i * sizeof(*q->rows);
    r = pl_comm_allgather(q->t->comm, q->rows, q->offset, err);
    if (r < 0)
        return r;
    q->shape[0] = 0;
    for (unsigned i = 0; i < n; i++) {
        q->shape[0] += (size_t)q->rows[i];
        most = PL_MAX(most, q->rows[i]);
    }
    q->n = (size_t)((most + q->batch_size - 1) / q->batch_size);
    q->all = malloc(PL_MAX(n * q->batch_size * q->row_bytes, (size_t)1));
    return q->all ? 0 : pl_error_nomem(err);
}

/* Numbers of any real type as the file's. */
static void
convert(const struct rounds *q, enum plume_dtype dtype, const void *from, size_t n, char *to)
{
    for (size_t i = 0; i < n; i++) {
        double v = dtype == PLUME_F64    ? ((const double *)from)[i]
                   : dtype == PLUME_F32  ? (double)((const float *)from)[i]
                   : dtype == PLUME_BF16 ? (double)pl_f32_of_bf16(((const uint16_t *)from)[i])
                                         : (double)pl_f32_of_f16(((const uint16_t *)from)[i]);

        if (q->f64)
            ((double *)(void *)to)[i] = v;
        else
            ((float *)(void *)to)[i] = (float)v;
    }
}

static int
check_shape(const struct rounds *q, const plume_tensor *out, size_t rows, struct pl_error *err)
{
    if (out && out->rank == q->rank && out->shape[0] == rows &&
        memcmp(out->shape + 1, q->shape + 1, (q->rank - 1) * sizeof(*q->shape)) == 0)
        return 0;
    return pl_error_set(err, -EINVAL,
                        "hook predict_step: the output of %zu rows has another shape than that of "
                        "a full batch",
                        rows);
}

/* Copies a tensor to `to`, in the file's type. */
static int fetch(const struct rounds *q,
                 struct pl_device *dev,
                 const plume_tensor *out,
                 char *to,
                 struct pl_error *err)
{
    struct pl_device_map map;
    int r = pl_device_map(dev, pl_tensor_data(out), out->count * pl_dtype_size(out->dtype),
                          PL_DEVICE_READ, &map, err);

    if (r < 0)
        return r;
    convert(q, out->dtype, map.data, out->count, to);
    pl_device_unmap(&map);
    return 0;
}

/* The batch goes through the stages; the one that makes the output hands it to all of them. */
static int
run_piped(struct rounds *q, const struct plume_batch *batch, size_t rows, struct pl_error *err)
{
    struct pl_pipe *pipe = &q->t->pipe;
    unsigned n = pipe->comm->size;
    _cleanup_free_ char *makes = calloc(n, 1),
                        *data = malloc(PL_MAX(rows * q->row_bytes, (size_t)1));
    _cleanup_free_ size_t *offset = calloc((size_t)n + 1, sizeof(*offset));
    struct pl_pipe_slot *slot;
    bool any = false;
    int r = makes && data && offset
                ? pl_pipe_evaluate(pipe, PLUME_TEST, batch, pl_trainer_draw(q->t), err)
                : pl_error_nomem(err);

    if (r == 0)
        r = pl_pipe_slot(pipe, PLUME_TEST, 0, &slot, err);
    if (r == 0)
        r = check_shape(q, slot->loss, rows, err);
    if (r < 0)
        return r;
    makes[pipe->comm->rank] = slot->own.loss != NULL;
    for (unsigned i = 0; i <= n; i++)
        offset[i] = i;
    r = pl_comm_allgather(pipe->comm, makes, offset, err);
    for (unsigned i = 0; i < n; i++) {
        offset[i + 1] = offset[i] + (makes[i] ? rows * q->row_bytes : 0);
        any |= makes[i];
    }
    if (r == 0 && !any)
        return pl_error_set(err, -ENOTSUP,
                            "hook predict_step: strategy pipeline needs an output that ops make");
    if (r == 0 && slot->own.loss)
        r = fetch(q, slot->own.tape.dev, slot->own.loss, data, err);
    if (r == 0)
        r = pl_comm_allgather(pipe->comm, data, offset, err);
    if (r == 0 && q->giver == q->t->comm->rank)
        memcpy(q->all + q->offset[q->giver], data, rows * q->row_bytes);
    return r;
}

/* Runs this rank's next batch into `all`. */
static int run_batch(struct rounds *q, size_t rows, struct pl_error *err)
{
    struct pl_lane *lane = &q->s->lanes[0];
    const struct plume_batch *batch = pl_loader_next(&q->s->loader);
    plume_tensor *out = NULL;
    int r;

    if (!batch) {
        r = pl_loader_result(&q->s->loader, err);
        return r < 0 ? r : pl_error_set(err, -EINVAL, "the data of the test ended early");
    }
    if (q->t->pipe.on)
        return run_piped(q, batch, rows, err);
    r = pl_lane_trace(q->s, lane, batch, &out, err);
    if (r == 0)
        r = check_shape(q, out, rows, err);
    if (r == 0)
        r = pl_lane_forward(lane, out, pl_trainer_draw(q->t), err);
    if (r == 0 && q->giver == q->t->comm->rank)
        r = fetch(q, lane->parts.root->tape.dev, out, q->all + q->offset[q->giver], err);
    return r;
}

/* A signal on any rank ends all. */
static int look_for_signals(struct pl_trainer *t, struct pl_error *err)
{
    double seen = pl_trainer_signal(t) != 0;
    int r = pl_comm_allreduce(t->comm, &seen, 1, PL_REAL_F64, 1, err);

    if (r < 0 || seen == 0)
        return r;
    pl_trainer_interrupt(t, false, true);
    return pl_error_set(err, -EINTR, "interrupted: there is no result");
}

static int write_round(struct rounds *q, size_t round, struct pl_error *err)
{
    int r = 0;

    for (size_t k = 0; k < q->batch_size; k++)
        for (unsigned i = 0; i < q->t->comm->size && r == 0; i++)
            if (k < rows_in(q, i, round))
                r = pl_array_file_row(&q->file, q->all + q->offset[i] + k * q->row_bytes, err);
    return r;
}

static int run_round(struct rounds *q, size_t round, struct pl_error *err)
{
    unsigned n = q->t->comm->size, rank = q->t->comm->rank;
    size_t mine = rows_in(q, q->giver, round);
    int r = look_for_signals(q->t, err);

    for (unsigned i = 0; i < n; i++)
        q->offset[i + 1] = q->offset[i] + rows_in(q, i, round) * q->row_bytes;
    if (r == 0 && mine)
        r = run_batch(q, mine, err);
    else if (r == 0 && q->t->ctx.params.units)
        r = pl_lane_assist(q->s, &q->s->lanes[0], true, err);
    if (r == 0)
        r = pl_comm_allgather(q->t->comm, q->all, q->offset, err);
    return r == 0 && rank == 0 ? write_round(q, round, err) : r;
}

static int finish_file(struct rounds *q, struct pl_error *err)
{
    FILE *out = q->t->options->out;
    int r = pl_array_file_finish(&q->file, err);

    if (r == 0 && out) {
        fprintf(out, "wrote %zu rows to '%s'\n", q->shape[0], q->t->options->predictions);
        fflush(out);
    }
    return r;
}

int pl_predict(struct pl_trainer *t, struct pl_error *err)
{
    _cleanup_(finish) struct rounds q = {.t = t, .s = &t->stage[PLUME_TEST]};
    int r;

    if (!q.s->present)
        return pl_error_set(err, -ENOENT, "module '%s' makes no predictions: it has no %s",
                            t->module->name,
                            t->module->predict_step ? "data for the test" : "predict_step");
    r = pl_eval_need_batches(t, PLUME_TEST, err);
    if (r == 0)
        r = learn_shape(&q, err);
    if (r == 0)
        r = agree_on_rows(&q, err);
    if (r == 0 && t->comm->rank == 0)
        r = pl_array_file_open(&q.file, t->options->predictions, q.f64, q.rank, q.shape, err);
    if (r == 0)
        r = t->pipe.on ? pl_pipe_spread_buffers(&t->pipe, err)
                       : pl_params_spread_buffers(&t->ctx.params, t->comm, err);
    if (r < 0)
        return r;
    pl_loader_begin(&q.s->loader, 0, 0);
    q.offset[0] = 0;
    for (size_t round = 0; round < q.n && r == 0; round++) {
        t->eval_batch = round;
        r = run_round(&q, round, err);
    }
    t->eval_batch = 0;
    return r == 0 && t->comm->rank == 0 ? finish_file(&q, err) : r;
}
