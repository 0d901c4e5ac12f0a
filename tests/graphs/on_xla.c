/* SPDX-License-Identifier: MIT */
#include "tests/graphs/on_xla.h"
#include "runtime/engine/util/plugin.h"
#include "runtime/engine/xla/lower.h"
#include "runtime/engine/xla/pjrt_table.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define MOST 256

static const struct pl_pjrt_table *table;
static struct pl_pjrt *client;

static void must(int r, const struct pl_error *err)
{
    if (r == 0)
        return;
    fprintf(stderr, "%s\n", pl_error_text(err));
    exit(1);
}

void on_xla_open(const char *plugin)
{
    struct pl_error err = {0};
    const char *flags = getenv("PLUME_TEST_XLA_FLAGS"); /* by ./dev test */
    void *handle = NULL;

    if (flags)
        setenv("XLA_FLAGS", flags, 1);
    must(pl_plugin_load("plume-pjrt.so", RTLD_NOW, &handle, &err), &err);
    table = dlsym(handle, PL_PJRT_TABLE_SYMBOL);
    must(table ? table->open(plugin, NULL, 1, NULL, &client, &err) : -ENOENT, &err);
}

void on_xla_close(void)
{
    table->close(client);
}

bool on_xla_takes(const struct pl_tape *tape)
{
    return pl_lower_check(tape, NULL) == 0;
}

struct program {
    struct pl_hlo h;
    struct pl_lower lower;
    struct pl_lower_leaf leaf[MOST];
    struct pl_hlo_value out[MOST];
    void *to[MOST]; /* of a result, on the host */
    size_t n_out;
};

static void add_result(struct program *p, struct pl_hlo_value v, void *to)
{
    p->to[p->n_out] = to;
    p->out[p->n_out++] = v;
}

static void list(struct program *p, struct pl_buf *text, bool types)
{
    for (size_t i = 0; i < p->n_out; i++) {
        pl_buf_adds(text, i ? ", " : "");
        if (types)
            pl_hlo_type_text(&p->h, text, &p->out[i]);
        else
            pl_buf_addf(text, "%%%u", p->out[i].id);
    }
}

static void write_text(struct program *p, struct pl_buf *text)
{
    pl_buf_adds(text, "module @graph {\n  func.func public @main(");
    for (size_t i = 0; i < p->lower.n_leaves; i++) {
        pl_buf_addf(text, "%s%%%zu: ", i ? ", " : "", i + 1);
        pl_hlo_type_text(&p->h, text, &p->leaf[i].value);
    }
    pl_buf_adds(text, ") -> (");
    list(p, text, true);
    pl_buf_adds(text, ") {\n");
    pl_buf_add(text, p->h.text.data, p->h.text.len);
    pl_buf_adds(text, "    return ");
    list(p, text, false);
    pl_buf_adds(text, " : ");
    list(p, text, true);
    pl_buf_adds(text, "\n  }\n}\n");
}

static void execute(const struct program *p, const struct pl_buf *text)
{
    struct pl_pjrt_program *program = NULL;
    struct pl_pjrt_array *in[MOST] = {0}, *out[MOST] = {0};
    struct pl_error err = {0};

    must(table->compile(client, text->data, text->len, false, p->n_out, &program, &err), &err);
    for (size_t i = 0; i < p->lower.n_leaves; i++) {
        const plume_tensor *t = p->leaf[i].tensor;

        must(table->upload(client, t->dtype == PLUME_I32 ? PL_PJRT_I32 : PL_PJRT_F32, t->rank,
                           t->shape, (const void *const[]){t->data}, &in[i], &err),
             &err);
    }
    /* Until the result is there: NaNs, and labels of -1. A result may be a view of an argument. */
    for (size_t i = 0; i < p->n_out; i++)
        memset(p->to[i], 0xff, pl_hlo_count(&p->out[i]) * 4);
    must(table->run(client, program, in, p->lower.n_leaves, out, &err), &err);
    for (size_t i = 0; i < p->n_out; i++)
        must(table->download(client, out[i], 0, p->to[i], pl_hlo_count(&p->out[i]) * 4, &err),
             &err);
    for (size_t i = 0; i < MOST; i++) {
        table->array_free(client, in[i]);
        table->array_free(client, out[i]);
    }
    table->program_free(client, program);
}

void on_xla_run(const struct pl_tape *tape,
                plume_tensor *leaves,
                size_t n_leaves,
                plume_tensor *const *roots,
                size_t n_roots,
                const plume_tensor *loss)
{
    static struct program p;
    _cleanup_(pl_buf_finish) struct pl_buf text = {0};
    struct pl_error err = {0};

    memset(&p, 0, sizeof(p));
    p.lower = (struct pl_lower){.h = &p.h, .tape = tape, .leaves = p.leaf, .n_leaves = n_leaves};
    for (size_t i = 0; i < n_leaves; i++)
        p.leaf[i] = (struct pl_lower_leaf){
            .tensor = &leaves[i],
            .value = pl_hlo_new(&p.h, leaves[i].dtype == PLUME_I32 ? "i32" : "f32", leaves[i].rank,
                                leaves[i].shape)};
    must(pl_lower_forward(&p.lower, &err), &err);
    for (size_t i = 0; i < n_roots; i++)
        add_result(&p, pl_lower_value(&p.lower, roots[i]), pl_tensor_data(roots[i]));
    if (loss)
        must(pl_lower_backward(&p.lower, loss, &err), &err);
    for (size_t i = 0; i < n_leaves; i++)
        if (p.leaf[i].grad.id)
            add_result(&p, p.leaf[i].grad, leaves[i].grad);
    write_text(&p, &text);
    execute(&p, &text);
    pl_lower_finish(&p.lower);
    pl_hlo_finish(&p.h);
}
