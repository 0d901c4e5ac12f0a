/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/xla_private.h"

#include <string.h>

/* The arguments of a run, in the order of program.h. Those from `own` on are freed after it. */
struct arguments {
    struct pl_pjrt_array **in, ***place; /* place: of an argument that the program replaces */
    size_t n, own;
};

static void pass(struct arguments *a, struct pl_pjrt_array **array)
{
    a->place[a->n] = array;
    a->in[a->n++] = *array;
}

static int pass_new(struct pl_xla *x,
                    struct arguments *a,
                    enum pl_pjrt_type type,
                    size_t rank,
                    const size_t *shape,
                    const void *const *data,
                    struct pl_error *err)
{
    int r = x->table->upload(x->client, type, rank, shape, data, &a->in[a->n], err);

    a->n += r == 0;
    return r;
}

static int
pass_numbers(struct pl_xla *x, const struct pl_recent *e, struct arguments *a, struct pl_error *err)
{
    size_t count = PL_UPDATE_NUMBERS * PL_MAX(e->plan.n_classes, 1u);
    _cleanup_free_ float *numbers = calloc(count, sizeof(*numbers));
    const void *all[PL_PJRT_DEVICES_MAX];

    if (!numbers)
        return pl_error_nomem(err);
    for (size_t i = 0; i < x->params->n; i++) {
        struct pl_update_owner owner = pl_update_owner(x->optimizers, i);

        if (e->plan.grad[i] && owner.optimizer)
            pl_update_numbers(&owner, x->params->order[i]->missed,
                              &numbers[PL_UPDATE_NUMBERS * e->plan.class_of[i]]);
    }
    for (size_t i = 0; i < x->replicas; i++)
        all[i] = numbers;
    return pass_new(x, a, PL_PJRT_F32, 1, &count, all, err);
}

/* parts: by replica, of the same program. */
static int pass_batches(struct pl_xla *x,
                        const struct pl_xla_step *s,
                        const struct pl_xla_part *const *parts,
                        struct arguments *a,
                        struct pl_error *err)
{
    const void *all[PL_PJRT_DEVICES_MAX];
    uint32_t draw[PL_PJRT_DEVICES_MAX][4];
    size_t four = PL_COUNT(draw[0]);
    int r = 0;

    for (size_t f = 0; f < parts[0]->batch->n_fields && r == 0; f++) {
        const plume_tensor *t = parts[0]->batch->field[f];

        for (size_t i = 0; i < x->replicas; i++)
            all[i] = parts[i]->batch->field[f]->data;
        r = pass_new(x, a, t->dtype == PLUME_I32 ? PL_PJRT_I32 : PL_PJRT_F32, t->rank, t->shape,
                     all, err);
    }
    for (size_t i = 0; i < x->replicas; i++) {
        uint64_t seed = parts[i]->tape->seed;

        memcpy(draw[i],
               (uint32_t[]){(uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)s->draw,
                            (uint32_t)(s->draw >> 32)},
               sizeof(draw[i]));
        all[i] = draw[i];
    }
    return r < 0 ? r : pass_new(x, a, PL_PJRT_U32, 1, &four, all, err);
}

static int pass_all(struct pl_xla *x,
                    const struct pl_program_spec *spec,
                    const struct pl_xla_part *const *parts,
                    const struct pl_recent *e,
                    struct arguments *a,
                    struct pl_error *err)
{
    int r = 0;

    for (size_t i = 0; i < x->params->n; i++)
        pass(a, &x->value[i]);
    for (size_t i = 0; spec->training && i < x->params->n; i++)
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS; k++)
            if (x->slot[i][k])
                pass(a, &x->slot[i][k]);
    for (size_t i = 0; i < x->params->n_buffers; i++)
        pass(a, &x->buffer[i]);
    for (size_t i = 0; spec->training && i < x->params->n; i++)
        if (x->summed[i])
            pass(a, &x->sum[i]);
    a->own = a->n;
    r = pass_batches(x, spec->step, parts, a, err);
    if (r == 0 && spec->training && spec->step->due)
        r = pass_numbers(x, e, a, err);
    return r;
}

/* Takes the results of a training program in place of the arguments. Returns the number taken. */
static size_t take_state(struct pl_xla *x,
                         const struct pl_recent *e,
                         const struct arguments *a,
                         bool due,
                         struct pl_pjrt_array **out)
{
    size_t n = 0, sums = 0;

    for (size_t i = 0; i < x->params->n; i++)
        sums += x->summed[i];
    for (; n < a->own - sums; n++) {
        pl_xla_forget(x, a->place[n]);
        *a->place[n] = out[n];
    }
    for (size_t i = 0; i < x->params->n; i++) {
        if (x->summed[i] || (!due && e->plan.grad[i]))
            pl_xla_forget(x, &x->sum[i]);
        x->summed[i] = !due && e->plan.grad[i];
        if (x->summed[i])
            x->sum[i] = out[n++];
    }
    x->newer = true;
    x->apart = x->world > 1;
    return n;
}

/* The values of the replicas that took part in the run. */
static int take_values(struct pl_xla *x,
                       const struct pl_program_spec *spec,
                       const bool *takes_part,
                       const struct pl_pjrt_array *from,
                       double *ret,
                       struct pl_error *err)
{
    size_t n = spec->step->n_values;
    float values[PL_TAPE_ROOTS_MAX + 1];
    int r = 0;

    for (size_t k = 0; k < x->replicas && r == 0; k++) {
        if (!takes_part[k])
            continue;
        r = x->table->download(x->client, from, k, values, PL_MAX(n, (size_t)1) * sizeof(*values),
                               err);
        for (size_t i = 0; i < n && r == 0; i++)
            ret[k * n + i] = values[i];
    }
    return r;
}

static int run_with(struct pl_xla *x,
                    const struct pl_program_spec *spec,
                    const struct pl_recent *e,
                    const bool *takes_part,
                    struct arguments *a,
                    struct pl_pjrt_array **out,
                    double *ret,
                    struct pl_error *err)
{
    const struct pl_compiled *c = &x->compiled[e->compiled];
    const struct pl_xla_part *parts[PL_PJRT_DEVICES_MAX];
    size_t at = 0;
    int r;

    for (size_t k = 0; k < x->replicas; k++)
        parts[k] = takes_part[k] ? &spec->step->parts[k] : spec->part;
    r = pass_all(x, spec, parts, e, a, err);
    if (r == 0)
        r = x->table->run(x->client, c->program, a->in, a->n, out, err);
    if (r < 0)
        return r;
    if (spec->training)
        at = take_state(x, e, a, spec->step->due, out);
    r = take_values(x, spec, takes_part, out[at], ret, err);
    pl_xla_forget(x, &out[at]);
    return r;
}

/* Runs the program of spec->part. The other replicas run it as well: those that do not take part
 * with that part's batch, for nothing. */
static int run(struct pl_xla *x,
               const struct pl_program_spec *spec,
               const struct pl_recent *e,
               const bool *takes_part,
               double *ret,
               struct pl_error *err)
{
    size_t most = x->params->n * (2 + PL_OPTIMIZER_SLOTS) + x->params->n_buffers +
                  spec->part->batch->n_fields + 3;
    _cleanup_free_ struct pl_pjrt_array **in = calloc(most, sizeof(struct pl_pjrt_array *));
    _cleanup_free_ struct pl_pjrt_array **out = calloc(most, sizeof(struct pl_pjrt_array *));
    _cleanup_free_ struct pl_pjrt_array ***place = calloc(most, sizeof(struct pl_pjrt_array **));
    struct arguments a = {.in = in, .place = place, .own = most};
    int r = in && out && place ? 0 : pl_error_nomem(err);

    if (r == 0)
        r = run_with(x, spec, e, takes_part, &a, out, ret, err);
    for (size_t i = a.own; i < a.n; i++)
        pl_xla_forget(x, &in[i]);
    return r;
}

/* Finds the programs of all parts that have a batch. which: by part, index in compiled[]. *ret is
 * the entry of the first of them, and spec->part that part. */
static int find_programs(struct pl_xla *x,
                         struct pl_program_spec *spec,
                         size_t *which,
                         struct pl_recent **ret,
                         struct pl_error *err)
{
    int r = pl_xla_load_state(x, err);

    if (r == 0 && spec->step->n_values > PL_TAPE_ROOTS_MAX)
        r = pl_error_set(err, -E2BIG, "more than %d logged values", PL_TAPE_ROOTS_MAX);
    for (size_t k = x->replicas; k-- > 0 && r == 0;) {
        if (!spec->step->parts[k].batch)
            continue;
        spec->part = &spec->step->parts[k];
        r = pl_xla_find_program(x, spec, ret, err);
        if (r == 0)
            which[k] = (*ret)->compiled;
    }
    return r;
}

static struct pl_program_spec
spec_of(const struct pl_xla *x, const struct pl_xla_step *step, bool training)
{
    return (struct pl_program_spec){.replicas = training ? x->world : x->replicas,
                                    .params = x->params,
                                    .optimizers = x->optimizers,
                                    .clip = &x->clip,
                                    .step = step,
                                    .training = training,
                                    .summed = x->summed};
}

int pl_xla_train(struct pl_xla *x,
                 const struct pl_xla_step *step,
                 double *ret,
                 struct pl_error *err)
{
    struct pl_program_spec spec = spec_of(x, step, true);
    size_t which[PL_PJRT_DEVICES_MAX];
    bool all[PL_PJRT_DEVICES_MAX];
    struct pl_recent *e = NULL;
    int r;

    for (size_t i = 0; step->due && i < x->optimizers->n; i++)
        x->optimizers->list[i].steps++;
    r = find_programs(x, &spec, which, &e, err);
    for (size_t k = 0; k < x->replicas && r == 0; k++) {
        all[k] = true;
        if (which[k] != which[0])
            r = pl_error_set(err, -ENOTSUP,
                             "the training steps of replicas 0 and %zu differ, and XLA devices run "
                             "one program: a step must not depend on the batch's contents, or on "
                             "how often it was called",
                             k);
    }
    if (r == 0 && step->agree)
        r = step->agree(step->ctx, x->compiled[e->compiled].hash, err);
    if (r == 0)
        r = run(x, &spec, e, all, ret, err);
    for (size_t i = 0; r == 0 && step->due && i < x->params->n; i++)
        x->params->order[i]->missed +=
            !e->plan.grad[i] && pl_update_owner(x->optimizers, i).optimizer;
    return r;
}

int pl_xla_forward(struct pl_xla *x,
                   const struct pl_xla_step *step,
                   double *ret,
                   struct pl_error *err)
{
    struct pl_program_spec spec = spec_of(x, step, false);
    size_t which[PL_PJRT_DEVICES_MAX];
    bool done[PL_PJRT_DEVICES_MAX] = {false}, now[PL_PJRT_DEVICES_MAX];
    struct pl_recent *e = NULL;
    int r = find_programs(x, &spec, which, &e, err);

    for (size_t k = 0; k < x->replicas && r == 0; k++) {
        if (!step->parts[k].batch || done[k])
            continue;
        spec.part = &step->parts[k];
        for (size_t i = 0; i < x->replicas; i++) {
            now[i] = step->parts[i].batch && which[i] == which[k];
            done[i] |= now[i];
        }
        r = pl_xla_find_program(x, &spec, &e, err);
        if (r == 0)
            r = run(x, &spec, e, now, ret, err);
    }
    return r;
}
