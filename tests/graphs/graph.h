/* SPDX-License-Identifier: MIT */
/* A graph of ops as graphs.py writes it, and its ops as modules call them. */
#ifndef PL_TESTS_GRAPHS_GRAPH_H
#define PL_TESTS_GRAPHS_GRAPH_H

#include "runtime/engine/tape/tape.h"

#include <stdio.h>

#define GRAPH_TENSORS 96
#define GRAPH_INPUTS 8
#define GRAPH_NUMBERS 32

struct graph_wanted {
    size_t id;
    bool grad, state;    /* state: of a buffer after the first forward */
    double tolerance[2]; /* f64, f32 */
    double *values;
    size_t n;
};

struct graph_call {
    char name[40];
    size_t n_in, in[GRAPH_INPUTS], n;
    double number[GRAPH_NUMBERS];
};

struct graph_leaf {
    bool integer, buffer; /* buffer: without a gradient, an op writes it */
    size_t rank, shape[PLUME_RANK_MAX], count;
    double *values;
};

struct graph {
    char name[512];
    size_t n_leaves, n_calls, n_wanted;
    struct graph_leaf leaf[GRAPH_TENSORS];
    struct graph_call call[GRAPH_TENSORS];
    struct graph_wanted wanted[2 * GRAPH_TENSORS];
};

/* A graph in one type; t: its tensors so far, those of its leaves first. */
struct graph_run {
    const struct graph *graph;
    struct plume_api api;
    struct plume_context pl;
    struct pl_tape tape;
    plume_tensor leaf[2 * GRAPH_TENSORS], *t[GRAPH_TENSORS];
    size_t n_leaves, n;
    bool f64;
};

extern const char *graph_file; /* for messages */

/* Ends the program. */
void graph_give_up(const char *graph, const char *what) __attribute__((noreturn));

/* False at the end of the file. What is malformed ends the program. */
bool graph_read(FILE *f, struct graph *g);
void graph_forget(struct graph *g);

/* The result belongs to the tape. An op that does not exist or refuses ends the program. */
plume_tensor *graph_call(struct graph_run *run, const struct graph_call *c);

#endif
