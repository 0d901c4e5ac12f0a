/* SPDX-License-Identifier: MIT */
#include "runtime/engine/util/plugin.h"
#include "runtime/engine/xla/xla_private.h"

#include <dlfcn.h>
#include <string.h>

#define FILE_NAME "plume-pjrt.so"

static int load_table(const struct pl_pjrt_table **ret, struct pl_error *err)
{
    const struct pl_pjrt_table *table;
    struct pl_error why = {0};
    void *handle;
    int r = pl_plugin_load(FILE_NAME, RTLD_NOW | RTLD_LOCAL, &handle, &why);

    if (r < 0)
        return pl_error_set(err, r,
                            "cannot use XLA devices: %s; run ./dev deps pjrt and build with "
                            "-Dpjrt=enabled",
                            pl_error_text(&why));
    table = dlsym(handle, PL_PJRT_TABLE_SYMBOL);
    if (!table || table->version != PL_PJRT_TABLE_VERSION) {
        dlclose(handle);
        return pl_error_set(err, -ENOTSUP,
                            "cannot use XLA devices: " FILE_NAME " is of another release; install "
                            "the one that was built with this program");
    }
    *ret = table;
    return 0;
}

int pl_xla_open(const char *plugin, const char *dump, struct pl_xla **ret, struct pl_error *err)
{
    struct pl_xla *x = calloc(1, sizeof(*x));
    int r = x ? load_table(&x->table, err) : pl_error_nomem(err);

    if (r == 0)
        r = x->table->open(plugin, &x->client, err);
    if (r < 0) {
        free(x);
        return r;
    }
    x->dump = dump;
    *ret = x;
    return 0;
}

static void forget(struct pl_xla *x, struct pl_pjrt_array **array)
{
    if (*array)
        x->table->array_free(x->client, *array);
    *array = NULL;
}

static void forget_state(struct pl_xla *x)
{
    for (size_t i = 0; i < x->n_params; i++) {
        forget(x, &x->value[i]);
        forget(x, &x->sum[i]);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS; k++)
            forget(x, &x->slot[i][k]);
    }
    for (size_t i = 0; i < x->n_buffers; i++)
        forget(x, &x->buffer[i]);
}

void pl_xla_close(struct pl_xla *x)
{
    if (!x)
        return;
    forget_state(x);
    for (size_t i = 0; i < x->n_compiled; i++)
        x->table->program_free(x->client, x->compiled[i].program);
    for (size_t i = 0; i < x->n_recent; i++) {
        free(x->recent[i].plan.grad);
        free(x->recent[i].plan.class_of);
        free(x->recent[i].summed);
    }
    x->table->close(x->client);
    free(x->compiled);
    free(x->recent);
    free(x->value);
    free(x->sum);
    free(x->slot);
    free(x->buffer);
    free(x->summed);
    free(x);
}

const char *pl_xla_platform(const struct pl_xla *x)
{
    return x->table->platform(x->client);
}

int pl_xla_attach(struct pl_xla *x,
                  struct pl_params *params,
                  struct pl_optimizers *optimizers,
                  const struct pl_clip_rule *clip,
                  struct pl_error *err)
{
    x->params = params;
    x->optimizers = optimizers;
    x->clip = *clip;
    x->value = calloc(params->n + 1, sizeof(*x->value));
    x->sum = calloc(params->n + 1, sizeof(*x->sum));
    x->slot = calloc(params->n + 1, sizeof(*x->slot));
    x->buffer = calloc(params->n_buffers + 1, sizeof(*x->buffer));
    if (x->value && x->sum && x->slot && x->buffer)
        x->summed = calloc(params->n + 1, sizeof(*x->summed));
    if (!x->summed)
        return pl_error_nomem(err);
    x->n_params = params->n;
    x->n_buffers = params->n_buffers;
    return 0;
}

/* ---- the state, to the device and back ---- */

/* A slot of a parameter on the host; NULL if it has none. */
static void *host_slot(const struct pl_xla *x, size_t i, size_t k)
{
    struct pl_update_owner owner = pl_update_owner(x->optimizers, i);
    size_t from, count;

    if (!owner.optimizer || k >= pl_optimizer_slots(owner.optimizer))
        return NULL;
    return pl_optimizer_state(x->optimizers, owner.optimizer, k, x->params->order[i], &from,
                              &count);
}

static int put(struct pl_xla *x,
               const plume_tensor *t,
               const void *data,
               struct pl_pjrt_array **ret,
               struct pl_error *err)
{
    forget(x, ret);
    return x->table->upload(x->client, t->dtype == PLUME_I32 ? PL_PJRT_I32 : PL_PJRT_F32, t->rank,
                            t->shape, data, ret, err);
}

static int load_state(struct pl_xla *x, struct pl_error *err)
{
    const struct pl_params *p = x->params;
    int r = 0;

    if (x->loaded)
        return 0;
    for (size_t i = 0; i < p->n && r == 0; i++) {
        const struct pl_param *param = p->order[i];

        r = put(x, param->tensor, pl_params_value(p, param->offset), &x->value[i], err);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS && r == 0; k++)
            if (host_slot(x, i, k))
                r = put(x, param->tensor, host_slot(x, i, k), &x->slot[i][k], err);
    }
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = put(x, p->buffers[i].tensor, p->buffers[i].tensor->data, &x->buffer[i], err);
    x->loaded = r == 0;
    return r;
}

static int get(struct pl_xla *x,
               const struct pl_pjrt_array *array,
               void *to,
               size_t count,
               struct pl_error *err)
{
    return x->table->download(x->client, array, to, count * sizeof(float), err);
}

int pl_xla_fetch(struct pl_xla *x, struct pl_error *err)
{
    struct pl_params *p = x->params;
    int r = 0;

    if (!x->newer)
        return 0;
    for (size_t i = 0; i < p->n && r == 0; i++) {
        size_t count = p->order[i]->tensor->count;

        r = get(x, x->value[i], pl_params_value(p, p->order[i]->offset), count, err);
        for (size_t k = 0; k < PL_OPTIMIZER_SLOTS && r == 0; k++)
            if (x->slot[i][k])
                r = get(x, x->slot[i][k], host_slot(x, i, k), count, err);
    }
    for (size_t i = 0; i < p->n_buffers && r == 0; i++)
        r = get(x, x->buffer[i], p->buffers[i].tensor->data, p->buffers[i].tensor->count, err);
    p->values_version++;
    p->buffers_version++;
    x->newer = r < 0;
    return r;
}

/* ---- running ---- */

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
                    const void *data,
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

    if (!numbers)
        return pl_error_nomem(err);
    for (size_t i = 0; i < x->params->n; i++) {
        struct pl_update_owner owner = pl_update_owner(x->optimizers, i);

        if (e->plan.grad[i] && owner.optimizer)
            pl_update_numbers(&owner, x->params->order[i]->missed,
                              &numbers[PL_UPDATE_NUMBERS * e->plan.class_of[i]]);
    }
    return pass_new(x, a, PL_PJRT_F32, 1, &count, numbers, err);
}

static int pass_all(struct pl_xla *x,
                    const struct pl_program_spec *spec,
                    const struct pl_recent *e,
                    struct arguments *a,
                    struct pl_error *err)
{
    const struct pl_xla_step *s = spec->step;
    const struct plume_batch *batch = s->batch;
    uint32_t draw[] = {(uint32_t)s->tape->seed, (uint32_t)(s->tape->seed >> 32), (uint32_t)s->draw,
                       (uint32_t)(s->draw >> 32)};
    size_t four = 4;
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
    for (size_t f = 0; f < batch->n_fields && r == 0; f++) {
        const plume_tensor *t = batch->field[f];

        r = pass_new(x, a, t->dtype == PLUME_I32 ? PL_PJRT_I32 : PL_PJRT_F32, t->rank, t->shape,
                     t->data, err);
    }
    if (r == 0)
        r = pass_new(x, a, PL_PJRT_U32, 1, &four, draw, err);
    if (r == 0 && spec->training && s->due)
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
        forget(x, a->place[n]);
        *a->place[n] = out[n];
    }
    for (size_t i = 0; i < x->params->n; i++) {
        if (x->summed[i] || (!due && e->plan.grad[i]))
            forget(x, &x->sum[i]);
        x->summed[i] = !due && e->plan.grad[i];
        if (x->summed[i])
            x->sum[i] = out[n++];
    }
    x->newer = true;
    return n;
}

static int run_with(struct pl_xla *x,
                    const struct pl_program_spec *spec,
                    const struct pl_recent *e,
                    struct arguments *a,
                    struct pl_pjrt_array **out,
                    double *ret,
                    struct pl_error *err)
{
    const struct pl_compiled *c = &x->compiled[e->compiled];
    size_t n_values = spec->step->n_values, at = 0;
    float values[PL_TAPE_ROOTS_MAX + 1] = {0};
    int r = pass_all(x, spec, e, a, err);

    if (r == 0)
        r = x->table->run(x->client, c->program, a->in, a->n, out, err);
    if (r < 0)
        return r;
    if (spec->training)
        at = take_state(x, e, a, spec->step->due, out);
    r = get(x, out[at], values, PL_MAX(n_values, (size_t)1), err);
    forget(x, &out[at]);
    for (size_t i = 0; i < n_values; i++)
        ret[i] = values[i];
    return r;
}

static int
run(struct pl_xla *x, const struct pl_program_spec *spec, double *ret, struct pl_error *err)
{
    size_t most = x->params->n * (2 + PL_OPTIMIZER_SLOTS) + x->params->n_buffers +
                  spec->step->batch->n_fields + 3;
    _cleanup_free_ struct pl_pjrt_array **in = calloc(most, sizeof(struct pl_pjrt_array *));
    _cleanup_free_ struct pl_pjrt_array **out = calloc(most, sizeof(struct pl_pjrt_array *));
    _cleanup_free_ struct pl_pjrt_array ***place = calloc(most, sizeof(struct pl_pjrt_array **));
    struct arguments a = {.in = in, .place = place, .own = most};
    struct pl_recent *e;
    int r = in && out && place ? load_state(x, err) : pl_error_nomem(err);

    if (r == 0 && spec->step->n_values > PL_TAPE_ROOTS_MAX)
        r = pl_error_set(err, -E2BIG, "more than %d logged values", PL_TAPE_ROOTS_MAX);
    if (r == 0)
        r = pl_xla_find_program(x, spec, &e, err);
    if (r == 0)
        r = run_with(x, spec, e, &a, out, ret, err);
    for (size_t i = a.own; i < a.n; i++)
        forget(x, &in[i]);
    if (r == 0 && spec->training && spec->step->due)
        for (size_t i = 0; i < x->params->n; i++)
            x->params->order[i]->missed +=
                !e->plan.grad[i] && pl_update_owner(x->optimizers, i).optimizer;
    return r;
}

int pl_xla_train(struct pl_xla *x,
                 const struct pl_xla_step *step,
                 double *ret,
                 struct pl_error *err)
{
    const struct pl_program_spec spec = {.params = x->params,
                                         .optimizers = x->optimizers,
                                         .clip = &x->clip,
                                         .step = step,
                                         .training = true,
                                         .summed = x->summed};

    for (size_t i = 0; step->due && i < x->optimizers->n; i++)
        x->optimizers->list[i].steps++;
    return run(x, &spec, ret, err);
}

int pl_xla_forward(struct pl_xla *x,
                   const struct pl_xla_step *step,
                   double *ret,
                   struct pl_error *err)
{
    const struct pl_program_spec spec = {.params = x->params,
                                         .optimizers = x->optimizers,
                                         .clip = &x->clip,
                                         .step = step,
                                         .summed = x->summed};

    return run(x, &spec, ret, err);
}
