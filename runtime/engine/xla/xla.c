/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/xla.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "runtime/engine/util/plugin.h"
#include "runtime/engine/util/sha256.h"
#include "runtime/engine/xla/pjrt_table.h"
#include "runtime/engine/xla/program.h"

#include <dlfcn.h>
#include <string.h>

#define FILE_NAME "plume-pjrt.so"

/* A program that the device has compiled. */
struct compiled {
    uint8_t hash[PL_SHA256_BYTES]; /* of its text */
    struct pl_pjrt_program *program;
    size_t outputs;
};

/* What a tape was compiled to, so that the same step is not lowered again. */
struct recent {
    const struct pl_tape *tape;
    uint64_t recordings;
    bool training, first, due;
    double scale;
    size_t n_values;
    const plume_tensor *values[PL_TAPE_ROOTS_MAX];
    struct pl_program_plan plan;
    bool *summed;    /* as pl_xla's, when it was lowered */
    size_t compiled; /* index */
};

struct pl_xla {
    const struct pl_pjrt_table *table;
    struct pl_pjrt *client;
    const char *dump;
    struct pl_params *params;
    struct pl_optimizers *optimizers;
    struct pl_clip_rule clip;

    size_t n_params, n_buffers; /* close() is called after those of attach() are gone */

    /* On the device: */
    bool loaded, newer;                  /* it has the state; a newer one than the host */
    struct pl_pjrt_array **value, **sum; /* by parameter */
    struct pl_pjrt_array *(*slot)[PL_OPTIMIZER_SLOTS];
    struct pl_pjrt_array **buffer;
    bool *summed;

    struct compiled *compiled;
    size_t n_compiled;
    struct recent *recent;
    size_t n_recent;
};

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

/* ---- programs ---- */

static int write_dump(const struct pl_xla *x, const struct pl_buf *text, struct pl_error *err)
{
    FILE *f = x->dump ? fopen(x->dump, x->n_compiled ? "ae" : "we") : NULL;
    bool bad;

    if (!x->dump)
        return 0;
    if (!f)
        return pl_error_errno(err, -errno, "cannot write '%s'", x->dump);
    bad = fwrite(text->data, 1, text->len, f) != text->len;
    if (fclose(f) != 0 || bad)
        return pl_error_errno(err, -errno, "cannot write '%s'", x->dump);
    return 0;
}

/* The program of a text, compiled now if it is new. */
static int compile(
    struct pl_xla *x, const struct pl_buf *text, size_t outputs, size_t *ret, struct pl_error *err)
{
    struct compiled one = {.outputs = outputs}, *more;
    uint64_t begin = pl_now_ns();
    struct pl_sha256 sha;
    int r;

    pl_sha256_init(&sha);
    pl_sha256_add(&sha, text->data, text->len);
    pl_sha256_final(&sha, one.hash);
    for (size_t i = 0; i < x->n_compiled; i++)
        if (memcmp(x->compiled[i].hash, one.hash, sizeof(one.hash)) == 0) {
            *ret = i;
            return 0;
        }
    more = reallocarray(x->compiled, x->n_compiled + 1, sizeof(*more));
    if (!more)
        return pl_error_nomem(err);
    x->compiled = more;
    r = write_dump(x, text, err);
    if (r == 0)
        r = x->table->compile(x->client, text->data, text->len, outputs, &one.program, err);
    if (r < 0)
        return r;
    pl_log_debug("train", "compiled a program of %zu bytes for the XLA device in %.2f s", text->len,
                 (double)(pl_now_ns() - begin) * 1e-9);
    *ret = x->n_compiled;
    x->compiled[x->n_compiled++] = one;
    return 0;
}

static bool matches(const struct recent *e, const struct pl_xla_step *s, bool training)
{
    return e->tape == s->tape && e->training == training && e->first == s->first &&
           e->due == s->due;
}

/* True if the entry's program is that of the step. */
static bool is_current(const struct pl_xla *x,
                       const struct recent *e,
                       const struct pl_program_spec *spec,
                       unsigned *classes)
{
    const struct pl_xla_step *s = spec->step;
    struct pl_program_plan plan = {.grad = e->plan.grad, .class_of = classes};
    size_t n = x->params->n;

    if (e->recordings != s->tape->recordings || e->scale != s->scale ||
        e->n_values != s->n_values ||
        memcmp(e->values, s->values, s->n_values * sizeof(*s->values)) != 0)
        return false;
    if (!spec->training)
        return true;
    if (memcmp(e->summed, x->summed, n * sizeof(*x->summed)) != 0)
        return false;
    if (!s->due)
        return true;
    pl_program_classes(spec, &plan);
    for (size_t i = 0; i < n; i++)
        if (plan.grad[i] && classes[i] != e->plan.class_of[i])
            return false;
    return true;
}

static int new_entry(struct pl_xla *x, struct recent **ret, struct pl_error *err)
{
    struct recent *more = reallocarray(x->recent, x->n_recent + 1, sizeof(*more)), *e;

    if (!more)
        return pl_error_nomem(err);
    x->recent = more;
    e = &more[x->n_recent++];
    *e = (struct recent){.plan = {.grad = calloc(x->params->n + 1, sizeof(bool)),
                                  .class_of = calloc(x->params->n + 1, sizeof(unsigned))},
                         .summed = calloc(x->params->n + 1, sizeof(bool))};
    *ret = e;
    return e->plan.grad && e->plan.class_of && e->summed ? 0 : pl_error_nomem(err);
}

static int
lower(struct pl_xla *x, struct recent *e, const struct pl_program_spec *spec, struct pl_error *err)
{
    const struct pl_xla_step *s = spec->step;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    size_t outputs = 0;
    int r = pl_program_text(spec, &e->plan, &text, &outputs, err);

    e->tape = NULL; /* unless it is complete */
    if (r == 0)
        r = compile(x, &text, outputs, &e->compiled, err);
    if (r < 0)
        return r;
    e->tape = s->tape;
    e->recordings = s->tape->recordings;
    e->training = spec->training;
    e->first = s->first;
    e->due = s->due;
    e->scale = s->scale;
    e->n_values = s->n_values;
    memcpy(e->values, s->values, s->n_values * sizeof(*s->values));
    memcpy(e->summed, x->summed, x->params->n * sizeof(*x->summed));
    return 0;
}

static int find_program(struct pl_xla *x,
                        const struct pl_program_spec *spec,
                        struct recent **ret,
                        struct pl_error *err)
{
    _cleanup_free_ unsigned *classes = calloc(x->params->n + 1, sizeof(*classes));
    struct recent *e = NULL;
    int r = classes ? 0 : pl_error_nomem(err);

    for (size_t i = 0; i < x->n_recent && !e; i++)
        if (matches(&x->recent[i], spec->step, spec->training))
            e = &x->recent[i];
    if (r == 0 && !e)
        r = new_entry(x, &e, err);
    if (r == 0 && !(e->tape && is_current(x, e, spec, classes)))
        r = lower(x, e, spec, err);
    *ret = e;
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
pass_numbers(struct pl_xla *x, const struct recent *e, struct arguments *a, struct pl_error *err)
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
                    const struct recent *e,
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
                         const struct recent *e,
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
                    const struct recent *e,
                    struct arguments *a,
                    struct pl_pjrt_array **out,
                    double *ret,
                    struct pl_error *err)
{
    const struct compiled *c = &x->compiled[e->compiled];
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
    struct recent *e;
    int r = in && out && place ? load_state(x, err) : pl_error_nomem(err);

    if (r == 0 && spec->step->n_values > PL_TAPE_ROOTS_MAX)
        r = pl_error_set(err, -E2BIG, "more than %d logged values", PL_TAPE_ROOTS_MAX);
    if (r == 0)
        r = find_program(x, spec, &e, err);
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
