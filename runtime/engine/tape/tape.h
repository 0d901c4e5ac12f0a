/* SPDX-License-Identifier: MIT */
/* The tape: the list of ops of one training step (or validation step).
 *
 * A hook's ops are only traced: each call is compared with the recorded node at the cursor, and
 * reuses it if op, tensors and shapes are equal. At the first difference the rest of the tape is
 * dropped and recorded again (the last, shorter batch of an epoch; another branch in the module).
 * After the hook has returned, the engine runs the tape forward, then backward. Between two changes
 * the tape is static: memory (tape_plan.c), gradient buckets and the first writer of each gradient
 * are planned before anything runs.
 *
 *     begin -> apply ... apply -> end -> prepare -> forward -> backward -> begin -> ...
 *
 * Several tapes may run at the same time in several threads (replicas of a batch's parts) if the
 * only tensors they share are parameters and leaves that they only read. One thread traces. */
#ifndef PL_RUNTIME_ENGINE_TAPE_TAPE_H
#define PL_RUNTIME_ENGINE_TAPE_TAPE_H

#include "runtime/engine/device/tensor.h"
#include "runtime/engine/util/bump.h"

#define PL_NODE_INPUTS_MAX 64
#define PL_TAPE_ROOTS_MAX 64

/* The work of one run of a node, for the profile. least_s: the least seconds by the device's
 * limits; NAN: they are not all known. */
struct pl_node_work {
    double flops, bytes, least_s;
};

/* Time by op, compute type and output shape, over all recordings (profile.h). */
struct pl_profile {
    struct pl_profile_line *lines;
    size_t n, cap;
    uint64_t plans; /* the tape's `plans` for which its nodes have lines; 0: they have none */
};

/* An op's numbers, kept with its node and compared bytewise when tracing. */
struct pl_attr {
    int64_t i[6];
    double f[2];
};

/* The parts of other ops that this op's kernels compute, and the parts of this op that other
 * kernels compute. */
struct pl_fusion {
    plume_tensor *x, *y; /* its input and output: in[0] and out, but for casts that it does */
    /* x = a + b is made on the way; NULL: x is there already. b has all rows, or is repeated. */
    plume_tensor *a, *b;
    plume_tensor *too; /* backward the gradient of this also becomes that of x; NULL: none */
    bool x_add;        /* if x is not in[0]: add to its gradient */
    plume_tensor *r;   /* y = relu(output + r) is made on the way; NULL: it is the output */
    bool r_add;        /* add to r's gradient */
    /* Of layers, by number + 1: the node that makes in[0], whose activation's slope this one's
     * backward multiplies by. sloped: another node does so for this one. */
    size_t slope_of;
    bool sloped;
    /* By number + 1: the layer whose output's gradient this node's backward completes, and adds up
     * by columns on the way: they are the gradient of the layer's bias. summed: another node does
     * so for this one. */
    size_t bias_of;
    bool summed;
    bool ahead; /* forward writes the gradient of in[0] over it; see `grad_ahead` of pl_op */
    /* Of a loss, by number + 1: the layer that makes in[0]. Forward multiplies `chunk` of its rows
     * at a time, forward and backward, so that in[0] is never in memory as a whole, and keeps the
     * gradients of the layer's inputs: in their own memory, or in `saved` (pl_tape_kept_at()).
     * loss: of that layer, by number + 1, whose backward only hands them on; own: PL_NEEDS_IN bits
     * of what is in its own memory. */
    size_t product, chunk, loss;
    uint64_t own;
    /* PL_NEEDS_IN bits: inputs that a cast from f32 makes, and whose gradient backward writes
     * there, in f32 (the tape's `wide_grads`). */
    uint64_t wide;
};

struct pl_node {
    const struct pl_op *op;
    const struct pl_kernels *k; /* table of the kernels that run it; see pl_tape_apply() */
    size_t n_in;
    plume_tensor **in; /* NULL for an optional input that is not given */
    size_t *in_count;  /* elements at recording */
    bool *add;         /* backward adds to this input's gradient instead of writing it */
    bool *first; /* backward first zeroes the whole gradient (at the first of several views) */
    bool *alias; /* this input's gradient is the output's, in the same memory: nothing to do */
    bool back;   /* set by the plan: its backward runs */
    /* Set by the plan (tape_fuse.c): the node at which its work is done, forward and backward; its
     * own number, unless that node's kernel does it. hidden: its output is in no memory.
     * grad_in_data: its output's gradient has the memory of the output itself. */
    size_t at[2];
    bool hidden, grad_in_data;
    bool unread; /* set by the plan: nobody reads its output, so it does not run */
    bool wide;   /* set by the plan: a cast whose output has no gradient: see `wide` of fusion */
    bool lent;   /* set by the plan: a cast whose output is a leaf; see the tape's `lends` */
    struct pl_fusion fusion;
    struct pl_attr attr;
    plume_tensor *out;
    size_t saved_bytes, scratch_bytes; /* without the f32 copies */
    size_t saved_half; /* elements of `saved` in the output's 16-bit type, whose kernels want f32 */
    void *saved;       /* from forward to backward */
    void *
        scratch[2]; /* forward, backward: the op's scratch, then the f32 copies of 16-bit tensors */
    size_t line;    /* of the tape's profile, if `timed` */
    struct pl_node_work work[2]; /* forward, backward, if `timed` */
    struct pl_bump_mark before;
};

/* A kernel call: a node with its pointers. Pointers to 16-bit tensors are to f32 copies, unless `k`
 * is a table of their type or the op has `raw` set. */
struct pl_call {
    const struct pl_tape *tape;
    const struct pl_kernels *k;
    const struct pl_node *node;
    const struct pl_attr *attr;
    const struct pl_call *product; /* forward, of a loss: the layer that it multiplies by chunks */
    size_t index;                  /* of the node */
    void *in[PL_NODE_INPUTS_MAX];
    void *in_grad[PL_NODE_INPUTS_MAX]; /* backward; NULL if no gradient is wanted */
    bool add[PL_NODE_INPUTS_MAX];      /* add to in_grad instead of writing it */
    void *out, *out_grad, *saved, *scratch;
    void *sums; /* backward: the gradient of a layer's bias (`bias_of`), in f32; else NULL */
    bool sums_add;
    size_t rows; /* of an op with `by_row`: those that this call does */
};

/* Autocast's treatment of an op (PyTorch's three lists). */
enum pl_cast_class {
    PL_CAST_PROMOTE, /* runs in the widest of its inputs' types */
    PL_CAST_LOW,     /* products: in the 16-bit type */
    PL_CAST_F32,     /* losses, norms, sums, exponentials: in f32 */
    PL_CAST_NONE,    /* takes its inputs as they are */
};

/* The tensors that backward reads, for the memory plan. Bit i: input i; PL_NEEDS_OUT: the output.
 */
#define PL_NEEDS_IN(i) (1ull << (i))
#define PL_NEEDS_OUT (1ull << 63)
#define PL_NEEDS_ALL (~0ull)

/* An op's way with tensors of which each rank has a part (ops/split.h). */
enum pl_split_kind {
    PL_SPLIT_NEVER,  /* its inputs must be whole */
    PL_SPLIT_EACH,   /* works element by element; in[1] may be repeated */
    PL_SPLIT_RANDOM, /* the same, with random numbers by the elements' numbers: see op_element.c */
    PL_SPLIT_SLICE,  /* a view of a range of one dimension */
    PL_SPLIT_RESHAPE,
    PL_SPLIT_PERMUTE, /* the order is the first number of its attributes, 4 bits a dimension */
    PL_SPLIT_EXPAND,  /* repeats dimensions of size 1: op_broadcast.c */
    PL_SPLIT_ROW,     /* works on rows: the last dimension is whole */
    PL_SPLIT_PRODUCT, /* of matrices, the last two dimensions */
    PL_SPLIT_LINEAR,
    PL_SPLIT_HEADS, /* attention, whose heads are the first number of its attributes */
    PL_SPLIT_TURN,  /* the same, one input of the output's shape */
};

/* The order in memory of an op's tensors. */
enum pl_layout {
    PL_LAYOUT_DENSE,  /* row-major */
    PL_LAYOUT_EACH,   /* element by element: any that all have */
    PL_LAYOUT_IMAGES, /* in[0] and the output have the same, channels last or row-major; all else is
                         row-major */
    PL_LAYOUT_CONV,   /* in 16 bits in[0], in[1] and the output have channels last, where the tape
                         wants it and the output's channels are a multiple of PL_CHANNELS_LAST */
};

/* Channels that tensor cores take at a time. */
#define PL_CHANNELS_LAST 8

struct pl_op {
    const char *name;
    enum pl_layout layout;
    enum pl_cast_class cast;
    bool view;             /* the output is a view of input 0: nothing runs */
    bool raw;              /* takes 16-bit tensors as they are, with the tape's own table */
    bool in_f32;           /* sums between several kernels: runs on f32 copies on any device */
    bool strided;          /* accepts inputs that are not dense */
    bool no_grad;          /* not differentiable */
    uint64_t needs;        /* what backward reads */
    uint64_t state_inputs; /* PL_NEEDS_IN bits: inputs that it updates; of the tape's own type,
                              never cast */
    /* PL_NEEDS_IN bits: inputs that 16-bit kernels read while they write f32 (`wide` in their
     * arguments). If the op runs in f32, a device then needs no cast; the numbers are the same. */
    uint64_t reads_half;
    void (*forward)(const struct pl_call *call);
    /* Called if out's gradient is set and at least one input wants one. */
    void (*backward)(const struct pl_call *call);
    /* Floating-point operations (a multiply-add is two) of forward and of backward; may be NULL. */
    double (*flops)(const struct pl_node *node, bool backward);
    /* PL_NEEDS_IN bits: inputs whose gradient is the output's, element by element, so that both may
     * share memory; NULL: none. */
    uint64_t (*same_grad)(const struct pl_node *node);
    /* True if backward uses the output's gradient as scratch memory; NULL: never. */
    bool (*scribbles)(const struct pl_node *node);
    /* Backward has a product for each of the first two inputs' gradients. An activation's slope is
     * a pass of its own, of which side_bytes tells. */
    bool two_products;
    bool product; /* bytes are not what limits it: a product, a convolution, an attention */
    /* Bytes that forward (backward) reads and writes; NULL: each tensor of the node once, and what
     * is kept in between. */
    double (*bytes)(const struct pl_node *node, bool backward);
    /* Of a product: bytes of passes beside it, such as an activation's slope; NULL: none. */
    double (*side_bytes)(const struct pl_node *node, bool backward);
    /* True for out = in[0] + in[1], of which in[1] is repeated if it has fewer elements; NULL:
     * never. */
    bool (*is_sum)(const struct pl_node *node);
    bool fuses; /* a norm: does as the node's `fusion` says */
    bool sums;  /* which may also be the sum that makes its input */
    bool casts; /* which may also read 16 bits where it writes f32 */
    /* The host's f32 kernels read 16 bits of in[0], round the output to 16 bits, and do likewise
     * with their gradients: no f32 copies of these, and a norm does casts as on a device. */
    bool host_halves;
    bool joins; /* which may also add another tensor to its output, and take relu of that */
    bool is_relu;
    /* On a device the result has in[0]'s 16-bit type, if autocast has the op run in f32. */
    bool same_type;
    /* Forward can also write the gradient of in[0] for a gradient of the output of 1, over in[0]
     * (`ahead`); backward then multiplies it. */
    bool grad_ahead;
    /* True if the node's kernels can multiply the gradient of in[0] by an activation's slope
     * (`slope_of`), and if its own may be left to others (`sloped`); NULL: never. */
    bool (*slopes)(const struct pl_node *node);
    bool (*has_slope)(const struct pl_node *node);
    uint64_t
        wide_grads; /* PL_NEEDS_IN bits: inputs whose gradient 16-bit kernels can write in f32 */
    /* The input that is added to each row of the output before its activation; 0: none. */
    size_t bias;
    bool bias_sums; /* its backward can do as `bias_of` says, with slope_of or after a sum */
    /* True if it can so for the gradient of in[0], without reading all of that; NULL: never. */
    bool (*sums_grad)(const struct pl_node *node);
    bool chunks; /* a loss that can have its layer's rows by chunks (`product` of pl_fusion) */
    /* Does n rows of a layer, from `first` on: `out` and `out_grad` have these rows only. NULL: the
     * op has no such rows, or it needs more than a row for them. */
    void (*part)(const struct pl_call *call, size_t first, size_t n, bool backward);
    /* Rows of in[0] and of the output, along dimension 0, do not depend on each other, and the
     * gradients of other inputs are sums over rows: it can be called for some rows at a time, with
     * pointers to these. */
    bool by_row;
    bool keeps;      /* its output and that one's gradient stay as they are until the next run */
    bool reads_step; /* reads the tape's `step`, or `device_step` */
    bool collective; /* calls the tape's allreduce or its peers, if it has them */
    enum pl_split_kind split;
};

/* One op to be traced. The output's shape is given. dtype 0: the output's type follows from the
 * inputs and the class. */
struct pl_apply {
    const struct pl_op *op;
    plume_tensor *const *in;
    size_t n_in;
    struct pl_attr attr;
    enum plume_dtype dtype;
    size_t rank;
    size_t shape[PLUME_RANK_MAX];
    size_t stride[PLUME_RANK_MAX]; /* of views, with the offset in the input */
    size_t offset;
    /* Memory kept from forward to backward: the sum of bytes, of elements of the node's type, and
     * of statistics (pl_real_of_stats()). */
    size_t saved_bytes, saved_reals, saved_stats;
    size_t scratch_bytes; /* needed while the op runs */
    bool channels_last;   /* of the output; set by pl_tape_apply() */
};

/* Gives leaves their memory while a tape runs. Node i of n runs forward at position i, and backward
 * at 2n - 1 - i. */
struct pl_tape_leaves {
    /* Call before the node at this position. */
    int (*need)(void *ctx, size_t position, struct pl_error *err);
    /* The next position at which need() has something to do. */
    size_t (*next)(const void *ctx);
    void *ctx;
};

/* By node: if backward computes its output again (tape_again.c), where, and into which memory. */
struct pl_tape_again {
    size_t before; /* the backward of the node before this one; 0: it does not */
    void *data[2], *saved[2], *scratch[2]; /* forward, and again */
};

/* The ranks that run the same tape on parts of the same tensors. */
struct pl_tape_peers {
    /* Sums device memory over them, in place. */
    int (*sum)(void *ctx, void *buf, size_t count, enum pl_real real, struct pl_error *err);
    void *ctx;
};

/* The output tensors that a node's place has had. Recordings take turns with them: a tensor that a
 * module has kept is not that of another op of the next recording, and still tells its node. */
#define PL_TAPE_TURNS 8

struct pl_tape_place {
    plume_tensor *turn[PL_TAPE_TURNS]; /* NULL: not yet */
    unsigned next;
};

struct pl_tape {
    struct pl_device *dev; /* holds all its tensors */
    const struct pl_kernels *kernels;
    bool want_grad;             /* training: plan gradients; dropout is active */
    enum plume_dtype amp_dtype; /* autocast to this 16-bit type; 0 = off */
    bool amp_o2;                /* O2: ops of class promote also run in amp_dtype */
    bool amp_o3;                /* O3: all ops run in it */
    bool always_f32;     /* the op at hand runs in f32 at all levels; set while it is traced */
    uint64_t seed, step; /* of dropout; the user sets them before forward */
    /* Of a microbatch: its first row, and its number of rows, so that random numbers are those of
     * the whole batch. rows = 0: this is the whole batch. */
    size_t first_row, rows;
    unsigned part_index; /* among those that share a batch: only part 0 writes buffers */
    void *const
        *copies; /* by number - 1: parameters and buffers on this device; NULL: use the originals */
    ptrdiff_t param_shift; /* bytes from a parameter's gradient to this tape's own gradient of it */
    bool timed;            /* runs are counted in `profile` */
    struct pl_profile profile;
    struct pl_timeline *timeline; /* gets an event per node, if `timed`; NULL = none. Borrowed */
    bool no_reuse;                /* no memory is shared: a check of the plan */
    bool measures;                /* prepare() only counts memory_bytes: there is no plan then */
    bool no_fuse;                 /* each node runs by itself: a check of the plan */
    bool no_drop;                 /* also runs nodes whose output nobody reads, to time them */
    /* A batch norm may have one value per channel: others are in other ranks' batches, or nothing
     * is trained. */
    bool lone_norms;
    bool on_tables; /* a layer of rows of a small table is done on the table: see op_product.c */
    size_t chunk;   /* rows of a loss at a time, for tests; 0: as suits the device and the shape */
    bool channels_last; /* 16-bit convolutions have their channels last */
    bool recompute;     /* backward computes again what it needs, where that saves memory; without
                           graphs */
    size_t segments;    /* of recomputation; 0: the plan chooses. 1: nothing is computed again */
    struct pl_tape_again *again; /* NULL: nothing is */
    /* Sums n doubles over ranks in place, for synchronised batch norm; NULL: this rank only. */
    int (*allreduce)(void *ctx, double *sums, size_t n);
    void *allreduce_ctx;
    const struct pl_tape_leaves *leaves; /* NULL: they always have memory. Borrowed */
    /* A parameter that is only read as 16-bit numbers is a leaf of that type: its cast runs
     * backward only, and whoever gives leaves their memory sets the data of the cast's output. */
    bool lends;
    bool lends_all;  /* and so is one that is read in f32, too, by other ops */
    bool wide_grads; /* ops may write gradients of f32 tensors that they read by way of a cast, and
                        do so before the cast's own backward */
    const struct pl_tape_peers *peers; /* NULL: tensors are whole. Borrowed */
    int failed; /* the error of allreduce or peers inside an op; forward and backward return it */
    struct pl_error failure; /* its text, if there is one */

    struct pl_node *nodes;
    size_t n, cap, cursor;
    struct pl_bump bump;          /* memory of nodes' lists */
    struct pl_tape_place *places; /* of nodes, by number: their output tensors */
    size_t n_places;
    struct pl_bump tensors; /* memory of these, which stays until the tape's end */
    uint64_t recordings;    /* number of times that begin .. end changed the tape */
    bool changed;           /* by the last begin .. end */

    /* The plan. */
    bool planned;
    uint64_t plans; /* number of times that it was made */
    plume_tensor *roots[PL_TAPE_ROOTS_MAX];
    size_t n_roots, n_seeds;
    char *memory;
    size_t memory_cap;
    size_t memory_bytes, unshared_bytes; /* planned size; the size without reuse */

    /* Graphs (tape_graph.c). */
    bool graphs;                     /* may be used if the device has them; set by the user */
    struct pl_tape_graphs *captured; /* NULL until a run may use graphs */
    const uint64_t *device_step;     /* `step` in device memory, for ops; NULL: use `step` */
};

/* Uses the device's kernels for a real type. dev is borrowed. */
void pl_tape_init(struct pl_tape *tape, struct pl_device *dev, enum pl_real real, bool want_grad);
void pl_tape_finish(struct pl_tape *tape);

void pl_tape_begin(struct pl_tape *tape);

/* Traces one op. Adds casts before it if autocast is on, and a dense copy of a view if the op needs
 * dense inputs. A node of 16-bit tensors uses that type's kernel table if the device has one and is
 * not the host; all others use the tape's own table, on f32 copies. *ret belongs to the tape and is
 * valid until the tape changes at an earlier node; it has no memory before pl_tape_forward().
 * -ENOMEM, -ERANGE. */
int pl_tape_apply(struct pl_tape *tape,
                  const struct pl_apply *what,
                  plume_tensor **ret,
                  struct pl_error *err);

/* True if the node's kernels work on an f32 copy of this 16-bit tensor. */
bool pl_node_has_f32_copy(const struct pl_node *node, const plume_tensor *t);

/* Rows of the output along dimension 0: a call of an op with `by_row` does some of these. */
size_t pl_node_all_rows(const struct pl_node *node);

/* True if the node converts its input between f32 and a 16-bit type. */
bool pl_tape_is_cast(const struct pl_node *node);

/* Makes *t dense, by a copy if necessary. */
int pl_tape_dense(struct pl_tape *tape, plume_tensor **t, struct pl_error *err);

/* A copy of *t whose value, and whose gradient after backward, can be read until the next run. */
int pl_tape_keep(struct pl_tape *tape, plume_tensor **t, struct pl_error *err);

/* Ends tracing: drops the nodes of the last step that this one did not reach. */
void pl_tape_end(struct pl_tape *tape);

/* Plans, if the tape or the roots have changed. Roots are the tensors that are read after the run;
 * their data stay valid until the next run. Gradients start from the first n_seeds roots, except
 * those that want none. Call from the tracing thread. -E2BIG, -ENOMEM. */
int pl_tape_prepare(struct pl_tape *tape,
                    plume_tensor *const *roots,
                    size_t n_roots,
                    size_t n_seeds,
                    struct pl_error *err);

/* Runs all nodes. Returns the error of allreduce. */
int pl_tape_forward(struct pl_tape *tape, struct pl_error *err);

struct pl_backward {
    /* The loss, one element, the only seed: its gradient is set to `seed` (1, or the loss scale).
     * NULL: the caller has filled the gradients of all seeds that want one. */
    plume_tensor *loss;
    double seed;
    bool accumulate; /* add to parameters' gradients instead of writing them */
    /* If not NULL, called after each node, also after those without a gradient, with its index,
     * from the last to 0. It may fail. */
    int (*after_node)(void *ctx, size_t index, struct pl_error *err);
    void *ctx;
    /* With graphs after_node is called at fewer nodes: after the node that stop() returns, or after
     * the next one if that node is done already, and so on; and after node 0. NULL: no graphs. */
    size_t (*stop)(const void *ctx);
};

/* -EINVAL, and what is wrong with a loss that is not one number, or depends on no parameter. */
int pl_tape_refuse_loss(const plume_tensor *loss, struct pl_error *err);

/* Runs backward. The gradient of a parameter that no node reaches stays as it was
 * (pl_tape_reaches()). -EINVAL if the loss reaches no parameter. */
int pl_tape_backward(struct pl_tape *tape, const struct pl_backward *what, struct pl_error *err);

/* True if backward writes this parameter's gradient. The tape must be planned. */
bool pl_tape_reaches(const struct pl_tape *tape, const plume_tensor *param);

/* Finds the nodes whose output nobody reads, if the tape's roots are set; the plan does so itself.
 */
void pl_tape_plan_unread(struct pl_tape *tape);

/* Floating-point operations of the whole recorded tape, without ops that do not run. The tape must
 * be planned. */
double pl_tape_flops(const struct pl_tape *tape, bool backward);

/* Floating-point operations of what one node does, which may include another node's. The tape must
 * be planned. */
double pl_node_flops(const struct pl_node *node, bool backward);

/* Bytes that kernels read from and write to the device's memory. */
struct pl_traffic {
    double all;
    double outside; /* without products, convolutions and attentions themselves */
};

/* Of one node; by arithmetic on shapes, each kernel reading and writing an array once. The tape
 * must be planned. */
struct pl_traffic pl_node_traffic(const struct pl_node *node, bool backward);

/* Of the whole planned tape. */
struct pl_traffic pl_tape_traffic(const struct pl_tape *tape, bool backward);

/* The first element of a tensor in this tape; NULL if it has no memory yet. */
void *pl_tape_data(const struct pl_tape *tape, const plume_tensor *t);

/* A loss keeps gradients of its layer's inputs in `saved`. Returns the offset in bytes of input
 * k's; k = n_in: the end of all. */
size_t pl_tape_kept_at(const struct pl_node *layer, size_t k);

/* Bytes of `chunk` rows of z, from where something else may begin. */
size_t pl_tape_chunk_bytes(const plume_tensor *z, size_t chunk);

/* The gradient of a tensor in this tape; NULL if it has none. */
void *pl_tape_grad(const struct pl_tape *tape, const plume_tensor *t);

#endif
