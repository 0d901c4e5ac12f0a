/* SPDX-License-Identifier: MIT */
#include "runtime/engine/xla/program.h"
#include "runtime/engine/xla/lower.h"

#include <stdlib.h>

/* Everything of one program while it is made. */
struct maker {
    const struct pl_program_spec *spec;
    struct pl_program_plan *plan;
    struct pl_hlo h;
    struct pl_lower lower;
    struct pl_hlo_value *in; /* arguments */
    int *alias;              /* by argument: the result that takes its memory; -1 = none */
    size_t n_in;
    struct pl_hlo_value *out;
    size_t n_out;
    size_t slots, buffers, sums, fields, draw, numbers; /* first argument of each kind */
};

static const char *type_of(const plume_tensor *t)
{
    return t->dtype == PLUME_I32 ? "i32" : "f32";
}

static size_t add_argument(struct maker *m, const char *type, size_t rank, const size_t *shape)
{
    m->in[m->n_in] = pl_hlo_new(&m->h, type, rank, shape);
    m->alias[m->n_in] = -1;
    return m->n_in++;
}

static void add_leaf(struct maker *m, const plume_tensor *t, size_t argument)
{
    m->lower.leaves[m->lower.n_leaves++] =
        (struct pl_lower_leaf){.tensor = t, .value = m->in[argument]};
}

static size_t n_slots(const struct pl_program_spec *spec, size_t order)
{
    struct pl_update_owner owner = pl_update_owner(spec->optimizers, order);

    return owner.optimizer ? pl_optimizer_slots(owner.optimizer) : 0;
}

/* The numbers' length is known after backward only. */
static int add_arguments(struct maker *m, struct pl_error *err)
{
    const struct pl_params *p = m->spec->params;
    const struct plume_batch *batch = m->spec->part->batch;
    size_t most = p->n * (2 + PL_OPTIMIZER_SLOTS) + p->n_buffers + batch->n_fields + 3;

    m->in = calloc(most, sizeof(*m->in));
    m->alias = calloc(most, sizeof(*m->alias));
    m->out = calloc(most, sizeof(*m->out));
    m->lower.leaves = calloc(p->n + p->n_buffers + batch->n_fields + 1, sizeof(*m->lower.leaves));
    if (!m->in || !m->alias || !m->out || !m->lower.leaves)
        return pl_error_nomem(err);
    for (size_t i = 0; i < p->n; i++) {
        const plume_tensor *t = p->order[i]->tensor;

        add_leaf(m, t, add_argument(m, "f32", t->rank, t->shape));
    }
    m->slots = m->n_in;
    for (size_t i = 0; m->spec->training && i < p->n; i++)
        for (size_t k = 0; k < n_slots(m->spec, i); k++)
            add_argument(m, "f32", p->order[i]->tensor->rank, p->order[i]->tensor->shape);
    m->buffers = m->n_in;
    for (size_t i = 0; i < p->n_buffers; i++) {
        const plume_tensor *t = p->buffers[i].tensor;

        add_leaf(m, t, add_argument(m, "f32", t->rank, t->shape));
    }
    m->sums = m->n_in;
    for (size_t i = 0; m->spec->training && i < p->n; i++)
        if (m->spec->summed[i])
            add_argument(m, "f32", p->order[i]->tensor->rank, p->order[i]->tensor->shape);
    m->fields = m->n_in;
    for (size_t f = 0; f < batch->n_fields; f++) {
        const plume_tensor *t = batch->field[f];

        add_leaf(m, t, add_argument(m, type_of(t), t->rank, t->shape));
    }
    m->draw = add_argument(m, "ui32", 1, (size_t[]){4});
    m->lower.draw = m->in[m->draw];
    return 0;
}

/* ---- the update ---- */

void pl_program_classes(const struct pl_program_spec *spec, struct pl_program_plan *plan)
{
    const struct pl_params *p = spec->params;

    plan->n_classes = 0;
    for (size_t i = 0; i < p->n; i++) {
        struct pl_update_owner owner = pl_update_owner(spec->optimizers, i), other;
        size_t k = 0;

        if (!plan->grad[i] || !owner.optimizer)
            continue;
        for (; k < i; k++) {
            other = pl_update_owner(spec->optimizers, k);
            if (plan->grad[k] && other.optimizer == owner.optimizer &&
                other.range->group == owner.range->group &&
                p->order[k]->missed == p->order[i]->missed)
                break;
        }
        plan->class_of[i] = k < i ? plan->class_of[k] : plan->n_classes++;
    }
}

static void give(struct maker *m, struct pl_hlo_value v, size_t argument)
{
    m->alias[argument] = (int)m->n_out;
    m->out[m->n_out++] = v;
}

/* The gradients, with the sums of earlier batches, in lower.leaves[]. */
static void add_sums(struct maker *m)
{
    const struct pl_params *p = m->spec->params;
    size_t at = m->sums;

    for (size_t i = 0; i < p->n; i++) {
        struct pl_hlo_value *grad = &m->lower.leaves[i].grad;

        if (m->spec->summed[i]) {
            *grad = grad->id ? pl_hlo_two(&m->h, "add", m->in[at], *grad) : m->in[at];
            at++;
        }
        m->plan->grad[i] = grad->id != 0;
    }
}

static int update(struct maker *m, struct pl_error *err)
{
    const struct pl_params *p = m->spec->params;
    _cleanup_free_ struct pl_hlo_value *grads = calloc(p->n + 1, sizeof(*grads));
    struct pl_hlo_value factor, slots[PL_OPTIMIZER_SLOTS];
    size_t n = 0, slot = m->slots;

    if (!grads)
        return pl_error_nomem(err);
    pl_program_classes(m->spec, m->plan);
    m->numbers =
        add_argument(m, "f32", 1, (size_t[]){PL_UPDATE_NUMBERS * PL_MAX(m->plan->n_classes, 1u)});
    for (size_t i = 0; i < p->n; i++) {
        struct pl_hlo_value *grad = &m->lower.leaves[i].grad;

        if (m->plan->grad[i] && m->spec->replicas > 1)
            *grad = pl_hlo_all_reduce(&m->h, *grad, m->spec->replicas);
        if (m->plan->grad[i] && m->spec->step->scale != 1)
            *grad = pl_hlo_with(&m->h, "multiply", *grad, m->spec->step->scale);
        if (m->plan->grad[i] && pl_update_owner(m->spec->optimizers, i).optimizer)
            grads[n++] = *grad;
    }
    factor = pl_update_factor(&m->h, m->spec->clip, grads, n);
    for (size_t i = 0; i < p->n; i++) {
        struct pl_update_owner owner = pl_update_owner(m->spec->optimizers, i);
        size_t count = n_slots(m->spec, i);

        for (size_t k = 0; k < count; k++)
            slots[k] = m->in[slot + k];
        if (m->plan->grad[i] && owner.optimizer) {
            struct pl_hlo_value numbers =
                pl_hlo_slice(&m->h, m->in[m->numbers], 0, PL_UPDATE_NUMBERS * m->plan->class_of[i],
                             PL_UPDATE_NUMBERS);

            pl_update_lower(&m->h, &owner, m->spec->clip, factor, numbers, m->lower.leaves[i].grad,
                            &m->lower.leaves[i].value, slots);
        }
        for (size_t k = 0; k < count; k++) /* kept at the slot's argument until give_state() */
            m->out[slot + k] = slots[k];
        slot += count;
    }
    return 0;
}

/* Results in the order of program.h. After an update m->out[] has the new slots at their
 * arguments' indices, which are their results' too: parameters and slots are given in the order of
 * their arguments. */
static void give_state(struct maker *m, bool updated)
{
    const struct pl_params *p = m->spec->params;

    for (size_t i = 0; i < p->n; i++)
        give(m, m->lower.leaves[i].value, i);
    for (size_t i = m->slots; i < m->buffers; i++)
        give(m, updated ? m->out[i] : m->in[i], i);
    for (size_t i = 0; i < p->n_buffers; i++)
        give(m, m->lower.leaves[p->n + i].value, m->buffers + i);
    if (updated)
        return;
    for (size_t i = 0, at = m->sums; i < p->n; i++)
        if (m->spec->summed[i])
            give(m, m->lower.leaves[i].grad, at++);
        else if (m->plan->grad[i])
            m->out[m->n_out++] = m->lower.leaves[i].grad;
}

/* The first elements of the reported values, as f32[n_values]. */
static void give_values(struct maker *m, const struct pl_hlo_value *list, size_t n)
{
    m->out[m->n_out++] =
        n ? pl_hlo_concat(&m->h, list, n, 0) : pl_hlo_fill(&m->h, "f32", 1, (size_t[]){1}, 0);
}

static int find_values(struct maker *m, struct pl_hlo_value *list, struct pl_error *err)
{
    const struct pl_xla_step *step = m->spec->step;

    for (size_t i = 0; i < step->n_values; i++) {
        struct pl_hlo_value v = pl_lower_value(&m->lower, m->spec->part->values[i]);
        size_t count;

        if (v.id == 0)
            return pl_error_set(err, -EINVAL, "a logged tensor is not of this step");
        count = pl_hlo_count(&v);
        v = pl_hlo_slice(&m->h, pl_hlo_reshape(&m->h, v, 1, &count), 0, 0, 1);
        list[i] = pl_hlo_convert(&m->h, v, "f32");
    }
    return 0;
}

/* ---- the module's text ---- */

static void write_module(struct maker *m, struct pl_buf *text)
{
    struct pl_hlo *h = &m->h;

    pl_buf_adds(text, "module @plume_step ");
    if (m->spec->replicas > 1)
        pl_buf_addf(text,
                    "attributes {mhlo.num_replicas = %u : i32, mhlo.num_partitions = 1 : i32} ",
                    m->spec->replicas);
    pl_buf_adds(text, "{\n  func.func public @main(");
    for (size_t i = 0; i < m->n_in; i++) {
        pl_buf_addf(text, "%s%%%u: ", i ? ", " : "", m->in[i].id);
        pl_hlo_type_text(h, text, &m->in[i]);
        if (m->alias[i] >= 0)
            pl_buf_addf(text, " {tf.aliasing_output = %d : i32}", m->alias[i]);
    }
    pl_buf_adds(text, ") -> (");
    for (size_t i = 0; i < m->n_out; i++) {
        pl_buf_adds(text, i ? ", " : "");
        pl_hlo_type_text(h, text, &m->out[i]);
    }
    pl_buf_adds(text, ") {\n");
    pl_buf_add(text, h->text.data, h->text.len);
    pl_buf_adds(text, "    return ");
    for (size_t i = 0; i < m->n_out; i++)
        pl_buf_addf(text, "%s%%%u", i ? ", " : "", m->out[i].id);
    pl_buf_adds(text, " : ");
    for (size_t i = 0; i < m->n_out; i++) {
        pl_buf_adds(text, i ? ", " : "");
        pl_hlo_type_text(h, text, &m->out[i]);
    }
    if (pl_buf_adds(text, "\n  }\n}\n") < 0)
        h->failed = -ENOMEM;
}

static int make(struct maker *m, struct pl_buf *text, struct pl_error *err)
{
    const struct pl_xla_step *step = m->spec->step;
    _cleanup_free_ struct pl_hlo_value *values = calloc(step->n_values + 1, sizeof(*values));
    int r = values ? pl_lower_check(m->spec->part->tape, err) : pl_error_nomem(err);

    if (r == 0)
        r = add_arguments(m, err);
    if (r == 0)
        r = pl_lower_forward(&m->lower, err);
    if (r == 0)
        r = find_values(m, values, err);
    if (r == 0 && m->spec->training) {
        r = pl_lower_backward(&m->lower, m->spec->part->values[0], err);
        if (r == 0)
            add_sums(m);
        if (r == 0 && step->due)
            r = update(m, err);
        if (r == 0)
            give_state(m, step->due);
    }
    if (r < 0)
        return r;
    give_values(m, values, step->n_values);
    write_module(m, text);
    return m->h.failed ? pl_error_nomem(err) : 0;
}

int pl_program_text(const struct pl_program_spec *spec,
                    struct pl_program_plan *plan,
                    struct pl_buf *text,
                    size_t *ret_outputs,
                    struct pl_error *err)
{
    struct maker m = {.spec = spec, .plan = plan};
    int r;

    m.lower.h = &m.h;
    m.lower.tape = spec->part->tape;
    m.lower.normed = spec->step->sync_batchnorm ? spec->replicas : 1;
    r = make(&m, text, err);
    *ret_outputs = m.n_out;
    pl_lower_finish(&m.lower);
    pl_hlo_finish(&m.h);
    free(m.lower.leaves);
    free(m.in);
    free(m.alias);
    free(m.out);
    return r;
}
