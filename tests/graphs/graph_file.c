/* SPDX-License-Identifier: MIT */
#include "tests/graphs/graph.h"

#include <stdlib.h>
#include <string.h>

const char *graph_file;

void graph_give_up(const char *graph, const char *what)
{
    fprintf(stderr, "%s: graph %s: %s\n", graph_file, graph, what);
    exit(1);
}

static double number(FILE *f, const struct graph *g)
{
    char word[64], *rest;
    double value;

    if (fscanf(f, "%63s", word) != 1)
        graph_give_up(g->name, "ends too early");
    value = strtod(word, &rest);
    if (*rest)
        graph_give_up(g->name, "has a word where a number should be");
    return value;
}

static size_t size(FILE *f, const struct graph *g, size_t limit)
{
    double value = number(f, g);

    if (!(value >= 0 && value <= (double)limit))
        graph_give_up(g->name, "has a number that is too large");
    return (size_t)value;
}

static double *numbers(FILE *f, const struct graph *g, size_t n)
{
    double *values = calloc(n + 1, sizeof(*values));

    if (!values)
        graph_give_up(g->name, "out of memory");
    for (size_t i = 0; i < n; i++)
        values[i] = number(f, g);
    return values;
}

static void read_leaf(FILE *f, struct graph *g)
{
    struct graph_leaf *leaf = &g->leaf[g->n_leaves++];

    size_t kind = size(f, g, 2);

    leaf->integer = kind == 1;
    leaf->buffer = kind == 2;
    leaf->rank = size(f, g, PLUME_RANK_MAX);
    leaf->count = 1;
    for (size_t d = 0; d < leaf->rank; d++) {
        leaf->shape[d] = size(f, g, 1 << 20);
        leaf->count *= leaf->shape[d];
    }
    leaf->values = numbers(f, g, leaf->count);
}

static void read_call(FILE *f, struct graph *g)
{
    struct graph_call *c = &g->call[g->n_calls++];

    if (fscanf(f, "%39s", c->name) != 1)
        graph_give_up(g->name, "ends too early");
    c->n_in = size(f, g, GRAPH_INPUTS);
    for (size_t i = 0; i < c->n_in; i++)
        c->in[i] = size(f, g, g->n_leaves + g->n_calls - 2);
    c->n = size(f, g, GRAPH_NUMBERS);
    for (size_t i = 0; i < c->n; i++)
        c->number[i] = number(f, g);
}

static void read_wanted(FILE *f, struct graph *g, char kind)
{
    struct graph_wanted *w = &g->wanted[g->n_wanted++];

    w->grad = kind == 'g';
    w->state = kind == 's';
    w->id = size(f, g, g->n_leaves + g->n_calls - 1);
    w->tolerance[0] = number(f, g);
    w->tolerance[1] = number(f, g);
    w->n = size(f, g, 1 << 20);
    w->values = numbers(f, g, w->n);
}

bool graph_read(FILE *f, struct graph *g)
{
    char word[16];

    *g = (struct graph){.name = "?"};
    if (fscanf(f, "%15s", word) != 1)
        return false;
    if (strcmp(word, "graph") != 0 || fscanf(f, "%511s", g->name) != 1)
        graph_give_up(g->name, "does not begin with 'graph NAME'");
    while (fscanf(f, "%15s", word) == 1 && strcmp(word, "end") != 0) {
        if (g->n_leaves + g->n_calls >= GRAPH_TENSORS || g->n_wanted >= PL_COUNT(g->wanted))
            graph_give_up(g->name, "has too many tensors");
        if (strcmp(word, "leaf") == 0)
            read_leaf(f, g);
        else if (strcmp(word, "op") == 0)
            read_call(f, g);
        else if (strcmp(word, "out") == 0 || strcmp(word, "grad") == 0 ||
                 strcmp(word, "state") == 0)
            read_wanted(f, g, word[0]);
        else
            graph_give_up(g->name, "has an unknown word");
    }
    return true;
}

void graph_forget(struct graph *g)
{
    for (size_t i = 0; i < g->n_leaves; i++)
        free(g->leaf[i].values);
    for (size_t i = 0; i < g->n_wanted; i++)
        free(g->wanted[i].values);
}
