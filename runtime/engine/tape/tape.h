/* SPDX-License-Identifier: MIT */
/* The tape: the list of ops of one training step (or validation step).
 *
 * A hook's ops are only traced: each call is compared with the record, and the same op on the same
 * tensors and shapes takes the node that is there. At the first difference the rest of the tape is
 * dropped and recorded anew (the last, shorter batch of an epoch; another branch in the module).
 * When the hook has returned the engine runs the tape forward, then backward. Between two changes
 * the tape is static: memory (tape_plan.c), gradient buckets and who writes which gradient first
 * follow from it before anything runs.
 *
 *     begin -> apply ... apply -> end -> prepare -> forward -> backward -> begin -> ...
 *
 * Several tapes may run at the same time in several threads (replicas of a batch's parts) as long
 * as they share no tensor but parameters and leaves that they only read; tracing is for one thread.
 */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_H

#include "runtime/engine/device/tensor.h"
#include "runtime/engine/util/bump.h"

#define PL_NODE_INPUTS_MAX 64
#define PL_TAPE_ROOTS_MAX 64

/* Numbers that an op keeps with its node, compared bytewise when a trace is compared. */
struct pl_attr {
    int64_t i[6];
    double f[2];
};

struct pl_node {
    const struct pl_op *op;
    const struct pl_kernels *k; /* run it; see pl_tape_apply() */
    size_t n_in;
    plume_tensor **in; /* NULL where an input is optional and not given */
    size_t *in_count;  /* elements when recorded */
    bool *add;         /* backward adds to this input's gradient, else writes */
    bool *first; /* backward must zero the whole gradient before (the first of several views) */
    bool back;   /* planned: its backward runs */
    struct pl_attr attr;
    plume_tensor *out;
    size_t saved_bytes, scratch_bytes; /* of the op itself */
    void *saved;                       /* kept from forward to backward */
    void *scratch[2]; /* forward, backward: the op's, behind it f32 copies of 16-bit tensors */
    uint64_t ns[2];   /* spent forward and backward, where the tape's `timed` is set */
    struct pl_bump_mark before;
};

/* What a kernel gets to work on: a node with its pointers. Those to 16-bit tensors are f32 copies,
 * unless `k` is a table of their type or the op asked for raw ones. */
struct pl_call {
    const struct pl_tape *tape;
    const struct pl_kernels *k;
    const struct pl_node *node;
    const struct pl_attr *attr;
    size_t index; /* of the node */
    void *in[PL_NODE_INPUTS_MAX];
    void *in_grad[PL_NODE_INPUTS_MAX]; /* backward; NULL where none is wanted */
    bool add[PL_NODE_INPUTS_MAX];      /* add to in_grad, else write it */
    void *out, *out_grad, *saved, *scratch;
};

/* How autocast treats an op (PyTorch's three lists). */
enum pl_cast_class {
    PL_CAST_PROMOTE, /* runs in the widest of its inputs' types */
    PL_CAST_LOW,     /* products: in the 16-bit type */
    PL_CAST_F32,     /* losses, norms, sums, exponentials: in f32 */
    PL_CAST_NONE,    /* takes its inputs as they are */
};

/* What backward reads, for the memory plan. Bit i: input i; PL_NEEDS_OUT: the output. */
#define PL_NEEDS_IN(i) (1ull << (i))
#define PL_NEEDS_OUT (1ull << 63)
#define PL_NEEDS_ALL (~0ull)

struct pl_op {
    const char *name;
    enum pl_cast_class cast;
    bool view;      /* the output is a view of input 0: nothing runs */
    bool raw;       /* takes 16-bit tensors as they are, with the tape's own table */
    bool in_f32;    /* of several kernels with sums in between: on f32 copies on any device */
    bool strided;   /* takes inputs that are not dense */
    bool no_grad;   /* not differentiable */
    uint64_t needs; /* what backward reads */
    uint64_t state_inputs; /* PL_NEEDS_IN: state that it writes, in the tape's own type, and never
                              cast */
    /* PL_NEEDS_IN: 16-bit kernels that write f32 (their arguments' `wide`) read these: where the op
     * runs in f32 a device spares the cast, to the same numbers. */
    uint64_t reads_half;
    void (*forward)(const struct pl_call *call);
    /* Called where out's gradient is set and at least one input wants one. */
    void (*backward)(const struct pl_call *call);
    /* Floating-point operations (a multiply-add is two) of forward and of backward; may be NULL. */
    double (*flops)(const struct pl_node *node, bool backward);
    bool reads_step; /* reads the tape's `step`, or `device_step` */
    bool collective; /* calls the tape's allreduce, where it has one */
};

/* One op to be traced. The output's shape is given; its type, too, or (dtype 0) it follows from the
 * inputs and the class. */
struct pl_apply {
    const struct pl_op *op;
    plume_tensor *const *in;
    size_t n_in;
    struct pl_attr attr;
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX];
    size_t stride[PLUME_RANK_MAX]; /* views only, with the offset in the input */
    size_t offset;
    /* Kept from forward to backward: the sum of bytes, elements of the type that the node runs in,
     * and statistics (pl_real_of_stats()). */
    size_t saved_bytes, saved_reals, saved_stats;
    size_t scratch_bytes; /* needed while it runs */
};

struct pl_tape {
    struct pl_device *dev; /* where all its tensors are */
    const struct pl_kernels *kernels;
    bool want_grad;             /* training: gradients are planned, dropout drops */
    enum plume_dtype amp_dtype; /* autocast to this 16-bit type; 0 = off */
    bool amp_o2;                /* O2: the ops of class promote, too, whatever they are given */
    bool amp_o3;                /* O3: all ops */
    uint64_t seed, step;        /* of dropout; set by the user before forward */
    unsigned part_index;        /* of those that share a batch: only the first writes buffers */
    void *const *copies;   /* by number - 1: parameters and buffers on this device; NULL: it has the
                              originals */
    ptrdiff_t param_shift; /* bytes from a parameter's gradient to this tape's own of it */
    bool timed;            /* nodes count their nanoseconds */
    bool no_reuse;         /* nothing shares memory: to find errors of the plan */
    /* Sums n doubles over ranks, in place, for synchronised batch norm; NULL: this rank's alone. */
    int (*allreduce)(void *ctx, double *sums, size_t n);
    void *allreduce_ctx;
    int failed; /* what allreduce returned inside an op; forward and backward return it */

    struct pl_node *nodes;
    size_t n, cap, cursor;
    struct pl_bump bump; /* nodes' lists and output tensors */
    uint64_t recordings; /* how often begin .. end changed the tape */
    bool changed;        /* by the last begin .. end */

    /* The plan. */
    bool planned;
    uint64_t plans; /* how often it was made */
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    size_t n_roots, n_seeds;
    char *memory;
    size_t memory_cap;
    size_t memory_bytes, unshared_bytes; /* as planned; as it would be without reuse */

    /* Graphs (tape_graph.c). */
    bool graphs;                     /* may be used, where the device has them; set by the user */
    struct pl_tape_graphs *captured; /* NULL before the first run that may use them */
    const uint64_t *device_step;     /* `step` in the device's memory, for ops; NULL: take `step` */
};

/* With the device's kernels for a real type. dev is borrowed. */
void pl_tape_init(struct pl_tape *tape, struct pl_device *dev, enum pl_real real, bool want_grad);
void pl_tape_finish(struct pl_tape *tape);

void pl_tape_begin(struct pl_tape *tape);

/* Traces one op, with casts before it where autocast is on, and a dense copy of views where the op
 * needs dense inputs. A node of 16-bit tensors runs by that type's table where the device has one
 * and is not the host; all others by the tape's own, on f32 copies. *ret belongs to the tape and
 * lives until the tape changes before it; it has no memory before pl_tape_forward(). -ENOMEM,
 * -ERANGE. */
int pl_tape_apply(struct pl_tape *tape,
                  const struct pl_apply *what,
                  plume_tensor **ret,
                  struct pl_error *err);

/* Makes *t dense, by a copy where it is not. */
int pl_tape_dense(struct pl_tape *tape, plume_tensor **t, struct pl_error *err);

/* Drops what the last step had and this one did not. */
void pl_tape_end(struct pl_tape *tape);

/* Plans, after a change or for other roots: the tensors that are read after the run, whose data
 * keep until the next. Gradients start from the first n_seeds of them (fewer where they want none).
 * For one thread, as tracing. -E2BIG, -ENOMEM. */
int pl_tape_prepare(struct pl_tape *tape,
                    plume_tensor *const *roots,
                    size_t n_roots,
                    size_t n_seeds,
                    struct pl_error *err);

/* Runs. What allreduce said. */
int pl_tape_forward(struct pl_tape *tape, struct pl_error *err);

struct pl_backward {
    /* The loss, one element, the only seed: its gradient becomes `seed` (1, or the loss scale).
     * NULL: the caller has filled the gradients of all seeds that want one. */
    plume_tensor *loss;
    double seed;
    bool accumulate; /* parameters' gradients are added to what is there, else written */
    /* If not NULL, called as the index of each node is done, also for nodes without a gradient,
     * from the last to 0; it may fail. */
    int (*after_node)(void *ctx, size_t index, struct pl_error *err);
    void *ctx;
    /* With graphs after_node is called at fewer nodes: behind the one that this returns, or behind
     * the next where that one is done already, and so on; and behind 0. NULL: there are no graphs.
     */
    size_t (*stop)(const void *ctx);
};

/* Runs the gradients. A parameter that no node reaches keeps what its gradient was
 * (pl_tape_reaches()). -EINVAL where the loss reaches no parameter. */
int pl_tape_backward(struct pl_tape *tape, const struct pl_backward *what, struct pl_error *err);

/* Whether backward writes this parameter's gradient; once planned. */
bool pl_tape_reaches(const struct pl_tape *tape, const plume_tensor *param);

/* Of the whole tape as recorded. */
double pl_tape_flops(const struct pl_tape *tape, bool backward);

/* First element of a tensor as this tape sees it; NULL while there is no memory. */
void *pl_tape_data(const struct pl_tape *tape, const plume_tensor *t);

/* The gradient of a tensor as this tape sees it. NULL where there is none. */
void *pl_tape_grad(const struct pl_tape *tape, const plume_tensor *t);

#endif
