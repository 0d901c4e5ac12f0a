/* SPDX-License-Identifier: MIT */
/* The arguments of a plan's kernels, as words: two plans with the same words run the same
 * kernels with the same arguments. All of a node counts but two things that tape_graph.c looks at
 * before each run: the addresses of leaves, which no plan decides, and the tape's own numbers. */
#include "runtime/engine/tape/tape_private.h"

#include <string.h>

static void put(struct pl_words *w, uint64_t word)
{
    if (w->n == w->cap && !w->bad) {
        size_t cap = w->cap ? 2 * w->cap : 1024;
        uint64_t *list = reallocarray(w->list, cap, sizeof(*list));

        w->bad = !list;
        if (list) {
            w->list = list;
            w->cap = cap;
        }
    }
    if (!w->bad)
        w->list[w->n++] = word;
}

/* size: a multiple of a word's. */
static void put_all(struct pl_words *w, const void *from, size_t size)
{
    uint64_t word;

    for (size_t at = 0; at < size; at += sizeof(word)) {
        memcpy(&word, (const char *)from + at, sizeof(word));
        put(w, word);
    }
}

static void put_tensor(struct pl_words *w, const struct pl_tape *tape, const plume_tensor *t)
{
    const plume_tensor *root;

    put(w, t != NULL);
    if (!t)
        return;
    root = t->base ? t->base : t;
    put(w, (uint64_t)t->dtype << 32 | (uint64_t)t->rank << 8 | (uint64_t)t->wants_grad << 1 |
               (uint64_t)root->is_param);
    put_all(w, t->shape, t->rank * sizeof(*t->shape));
    put_all(w, t->stride, t->rank * sizeof(*t->stride));
    put(w, t->offset);
    put(w, root->count);
    if (root->tape != tape) {
        put(w, 0);
        return;
    }
    put(w, 1 + root->node);
    put(w, pl_tape_is_leaf(tape, root) ? 0 : (uintptr_t)root->data);
    put(w, (uintptr_t)root->grad);
}

static void put_fusion(struct pl_words *w, const struct pl_tape *tape, const struct pl_fusion *f)
{
    const plume_tensor *of[] = {f->x, f->y, f->a, f->b, f->too, f->r};

    for (size_t i = 0; i < PL_COUNT(of); i++)
        put_tensor(w, tape, of[i]);
    put(w, (uint64_t)f->summed << 4 | (uint64_t)f->r_add << 3 | (uint64_t)f->x_add << 2 |
               (uint64_t)f->sloped << 1 | (uint64_t)f->ahead);
    put(w, f->slope_of);
    put(w, f->bias_of);
    put(w, f->product);
    put(w, f->chunk);
    put(w, f->loss);
    put(w, f->own);
    put(w, f->wide);
}

static void put_node(struct pl_words *w, const struct pl_tape *tape, const struct pl_node *node)
{
    put(w, (uintptr_t)node->op);
    put(w, (uintptr_t)node->k);
    put(w, node->n_in);
    put_all(w, &node->attr, sizeof(node->attr));
    put(w, (uint64_t)node->unread << 4 | (uint64_t)node->back << 3 | (uint64_t)node->hidden << 2 |
               (uint64_t)node->grad_in_data << 1 | (uint64_t)node->lent);
    put(w, node->at[0]);
    put(w, node->at[1]);
    put_tensor(w, tape, node->out);
    for (size_t i = 0; i < node->n_in; i++) {
        put_tensor(w, tape, node->in[i]);
        put(w,
            (uint64_t)node->add[i] << 2 | (uint64_t)node->first[i] << 1 | (uint64_t)node->alias[i]);
    }
    put_fusion(w, tape, &node->fusion);
    put(w, node->saved_bytes);
    put(w, node->scratch_bytes);
    put(w, node->saved_half);
    put(w, (uintptr_t)node->saved);
    put(w, (uintptr_t)node->scratch[0]);
    put(w, (uintptr_t)node->scratch[1]);
}

void pl_tape_identity(const struct pl_tape *tape, struct pl_words *ret)
{
    put(ret, tape->n);
    for (size_t i = 0; i < tape->n; i++)
        put_node(ret, tape, &tape->nodes[i]);
}
