/* SPDX-License-Identifier: MIT */
/* The interface of Plume modules: their authors include this header. A module is a shared object
 * with one exported function, plume_module_entry(), that returns a table of hooks; `pltrain MODULE`
 * loads and trains it. A module links nothing of Plume: it calls the engine through struct
 * plume_context.
 *
 *     static int training_step(struct plume_context *pl, const struct plume_batch *batch,
 *                              plume_tensor **ret_loss)
 *     {
 *         struct net *net = pl->state;
 *         plume_tensor *logits = plume_linear(pl, batch->field[0], net->w, net->b, PLUME_IDENTITY);
 *
 *         *ret_loss = plume_cross_entropy(pl, logits, batch->field[1]);
 *         return 0;
 *     }
 *
 * Build: cc -shared -fPIC $(pkg-config --cflags plume-module) -o net.so net.c
 *
 * Errors. Hooks return 0 or a negative errno; a failing hook may give the reason by plume_fail(),
 * unless a function of this header has failed and given it. Functions that make a tensor return
 * NULL after a failure and accept NULL as an input, so a chain of them needs one check at its end,
 * or none: the engine finds the failure when the hook returns.
 *
 * Ownership. Tensors, arrays and strings from the engine belong to the engine. They are valid as
 * long as the context, but results of ops and fields of batches only until the hook returns: no
 * state, as of a recurrent layer, goes from one batch to the next. The module frees nothing.
 *
 * Threads and ranks. One thread calls the hooks. Several ranks run the same hooks at the same time
 * in several processes. All must declare the same parameters and buffers in the same order, else
 * training does not start. A step may take different branches for different batches and ranks,
 * except around batch norm with --sync-batchnorm. A rank that does not use a parameter counts with
 * a gradient of zero. A parameter that no rank uses has no gradient, and its optimizer does not
 * change it in that step. After training all ranks must have the same parameters, to the bit, or
 * the run fails.
 *
 * Versions. Structs that cross the interface begin with their size. New members are appended; a
 * member that the other side does not know is NULL or 0. PLUME_MODULE_ABI changes if that is not
 * possible. */
#ifndef PL_MODULE_H
#define PL_MODULE_H

#include "plume/data.h"
#include "plume/optim.h"
#include "plume/strategy.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLUME_MODULE_ABI 1

/* The ops, by number: new ones are appended. plume/ops.h has their functions. */
enum plume_op {
    PLUME_OP_NONE = 0,
    PLUME_OP_LINEAR,
    PLUME_OP_UNARY,
    PLUME_OP_CROSS_ENTROPY,
    PLUME_OP_CORRECT,
    PLUME_OP_BINARY,
    PLUME_OP_RESHAPE,
    PLUME_OP_SLICE,
    PLUME_OP_PERMUTE,
    PLUME_OP_CAT,
    PLUME_OP_MATMUL,
    PLUME_OP_AFFINE,
    PLUME_OP_DROPOUT,
    PLUME_OP_REDUCE,
    PLUME_OP_MSE,
    PLUME_OP_LAYERNORM,
    PLUME_OP_SOFTMAX,
    PLUME_OP_NORMALIZE,
    PLUME_OP_EMBEDDING,
    PLUME_OP_CONV2D,
    PLUME_OP_POOL2D,
    PLUME_OP_BATCHNORM,
    PLUME_OP_ATTENTION,
    PLUME_OP_ARANGE,
    PLUME_OP_MAP,
    PLUME_OP_CHOOSE,
    PLUME_OP_FULL,
    PLUME_OP_GATHER,
    PLUME_OP_TOP,
    PLUME_OP_CUMSUM,
    PLUME_OP_ONE_HOT,
    PLUME_OP_CONV,
    PLUME_OP_CONV_TRANSPOSE,
    PLUME_OP_RESAMPLE,
    PLUME_OP_ROTARY,
    PLUME_OP_RANDOM,
    PLUME_OP_LSTM,
    PLUME_OP_DETACH,
    PLUME_OP_RANGE,
    PLUME_OP_EXPAND,
    PLUME_OP_GRU,
    PLUME_OP_SCATTER_ADD,
    PLUME_OP_WHOLE,
};

/* An op's numbers; the op's function defines their meaning. */
struct plume_op_args {
    int64_t i[8];
    double f[2];
};

/* Initial values of a parameter. */
enum plume_init {
    PLUME_INIT_ZERO = 0,
    PLUME_INIT_ONE = 1,
    /* Uniform in +-1/sqrt(fan_in), fan_in = the product of all dimensions but the first, or a
     * vector's own length: the default of PyTorch's linear layer for weights. */
    PLUME_INIT_FAN_IN = 2,
    /* Normal with variance 2/fan_in (He et al. 2015, arXiv 1502.01852), for relu. */
    PLUME_INIT_HE = 3,
    /* Of torch.nn.init, with the numbers a and b of plume_param_init(): */
    PLUME_INIT_NORMAL = 4,         /* mean a, standard deviation b */
    PLUME_INIT_UNIFORM = 5,        /* in [a, b) */
    PLUME_INIT_XAVIER_UNIFORM = 6, /* a: gain, 0 means 1 (Glorot and Bengio 2010) */
    PLUME_INIT_XAVIER_NORMAL = 7,
    /* Orthonormal rows, or columns if there are fewer, times the gain a; dimension 0 has the rows.
     * Costs the cube of the size. */
    PLUME_INIT_ORTHOGONAL = 8,
};

/* plume_read() reads one of these parts of a parameter. */
enum plume_what {
    PLUME_VALUE = 0, /* of a buffer, too */
    PLUME_GRADIENT = 1,
};

/* A hyper-parameter, set by `--hparam NAME=VALUE`. The engine defines lr, momentum, weight_decay,
 * batch_size, epochs; a module that lists one of these changes its default. */
struct plume_hparam {
    const char *name;  /* [A-Za-z_][A-Za-z0-9_.-]*; NULL ends the table */
    const char *value; /* default */
    double min, max;   /* limits, both inclusive */
    int integer;       /* not 0: integers only */
    const char *help;  /* a few words, for `pltrain --list-hparams` */
};

struct plume_module {
    size_t struct_size; /* sizeof(struct plume_module) */
    uint32_t abi;       /* PLUME_MODULE_ABI */
    const char *name;
    const char *summary;                /* one sentence; may be NULL */
    const struct plume_hparam *hparams; /* may be NULL */
    const char *objective; /* how a sweep ranks trials: "max:NAME" or "min:NAME" of a logged value,
                              e.g. "max:test_acc"; NULL = none */
    size_t state_size;     /* bytes of pl->state, zeroed before configure */

    /* Declares the parameters by plume_param(). Required. */
    int (*configure)(struct plume_context *pl);

    /* Sets the data of a stage. Required for PLUME_TRAIN; n_fields 0 for another stage skips it.
     * All ranks give the same samples, which the engine divides among them. */
    int (*data)(struct plume_context *pl, enum plume_stage stage, struct plume_data *ret);

    /* Computes the loss of a batch by ops: a tensor of one element, the mean over the batch, so
     * that the mean over ranks is that of the whole batch. Required. It cannot read tensors'
     * values: before the first step it is called to trace the ops without data (with a full batch's
     * shapes), on all ranks equally often, so count steps in on_train_batch_end. If a call for a
     * step leaves *ret_loss NULL, the batch is skipped: it counts like any other, but has no
     * gradients on this rank; if all ranks skip it, nothing is updated. */
    int (*training_step)(struct plume_context *pl,
                         const struct plume_batch *batch,
                         plume_tensor **ret_loss);

    /* Logs values of a batch by plume_log(). Gradients are not recorded. The engine puts "val_" or
     * "test_" before each name. NULL validation_step: no validation. NULL test_step:
     * validation_step is used. */
    int (*validation_step)(struct plume_context *pl, const struct plume_batch *batch);
    int (*test_step)(struct plume_context *pl, const struct plume_batch *batch);

    /* Changes the optimizer's options, which are preset from the hyper-parameters. NULL: stochastic
     * gradient descent with momentum and weight decay over all parameters. plume_add_optimizer()
     * adds more optimizers. All ranks must give the same, else training does not start (strategies
     * that reduce gradients). */
    int (*configure_optimizers)(struct plume_context *pl, struct plume_optimizer *ret);

    /* All of the following may be NULL. */

    /* Called after training_step with every strategy: computes the loss from the step's outputs,
     * given by plume_output() and as the step's own loss (named "loss"; the step may leave it NULL
     * then). It is part of the tape: gradients flow back through it into all parts. */
    int (*training_step_end)(struct plume_context *pl,
                             const struct plume_outputs *outputs,
                             plume_tensor **ret_loss);
    /* The same after validation_step and test_step; may log. NULL test_step_end:
     * validation_step_end, if validation_step is used for the test. */
    int (*validation_step_end)(struct plume_context *pl, const struct plume_outputs *outputs);
    int (*test_step_end)(struct plume_context *pl, const struct plume_outputs *outputs);

    /* Changes the reduction of gradients. Only called with more than one rank. */
    int (*configure_ddp)(struct plume_context *pl, struct plume_ddp *ret);

    /* Sets the ranks' rendezvous. Only called with more than one rank, before the context exists.
     */
    int (*init_ddp_connection)(struct plume_connection *ret);

    /* Called on all ranks at these points, in this order:
     *
     *     on_fit_start
     *       on_train_epoch_start
     *         on_train_batch_start, (training_step, backward), on_after_backward,
     *         on_before_optimizer_step (not for batches that are only accumulated; gradients are
     *         reduced), (step), on_train_batch_end
     *         on_validation_start, (validation_step ...), on_validation_end, as often as is due
     *       on_train_epoch_end
     *     on_fit_end
     *     on_test_start, (test_step ...), on_test_end
     *
     * They may call collectives, but no ops. struct plume_context has the engine's step and epoch.
     */
    int (*on_fit_start)(struct plume_context *pl);
    int (*on_fit_end)(struct plume_context *pl);
    int (*on_train_epoch_start)(struct plume_context *pl);
    int (*on_train_epoch_end)(struct plume_context *pl);
    int (*on_train_batch_start)(struct plume_context *pl, const struct plume_batch *batch);
    int (*on_train_batch_end)(struct plume_context *pl, const struct plume_batch *batch);
    int (*on_after_backward)(struct plume_context *pl);
    int (*on_before_optimizer_step)(struct plume_context *pl);
    int (*on_validation_start)(struct plume_context *pl);
    int (*on_validation_end)(struct plume_context *pl);
    int (*on_test_start)(struct plume_context *pl);
    int (*on_test_end)(struct plume_context *pl);

    /* Saves the module's own data in a checkpoint, by plume_save(), and loads it, by plume_load(),
     * before training begins. Saving is called on rank 0 only. */
    int (*on_save_checkpoint)(struct plume_context *pl);
    int (*on_load_checkpoint)(struct plume_context *pl);

    /* Not 0: each optimizer has a loss of its own, such as the two of a generative adversarial
     * network. For every batch training_step (and training_step_end) is called once per optimizer,
     * in order; pl->optimizer is its index. Only that optimizer's parameters want gradients then;
     * other parameters count as constants. The gradients are reduced and the optimizer makes its
     * step before the next one's turn, with on_after_backward and on_before_optimizer_step in
     * between. A step, for accumulated batches, limits and schedules, is one step of all
     * optimizers. "loss" is the loss of optimizer 0, "loss_1" that of 1, and so on. */
    int step_per_optimizer;

    /* Called before configure, on the first rank of each node only; the others wait for it. For
     * work on files that is done once per node: unpacking, converting. NULL: nothing. */
    int (*prepare_data)(struct plume_context *pl);

    /* Computes what `pltrain --predict` writes of a batch of the test's data (PLUME_TEST): a tensor
     * of real numbers whose first dimension is the batch's rows, such as the logits. As in
     * validation_step nothing is learnt. NULL: the module makes no predictions. */
    int (*predict_step)(struct plume_context *pl,
                        const struct plume_batch *batch,
                        plume_tensor **ret_output);

    /* Manual optimization, as automatic_optimization = False in Lightning: called for every batch
     * of training, and drives backward passes and optimizer steps itself, by plume_backward(),
     * plume_optimizer_step() and plume_zero_grad(): in any order, as often as it likes, by
     * conditions of its own. All ranks must make the same calls. training_step computes the loss of
     * the optimizer pl->optimizer, whose parameters alone get gradients, as with
     * step_per_optimizer. A batch in which some optimizer has made a step counts as one step, for
     * limits and schedules. Gradients that wait for a step are not saved in checkpoints. NULL: the
     * engine makes the steps. */
    int (*manual_step)(struct plume_context *pl, const struct plume_batch *batch);
};

/* The only symbol of a module. */
#if defined(__GNUC__)
#define PLUME_EXPORT __attribute__((visibility("default")))
#else
#define PLUME_EXPORT
#endif
PLUME_EXPORT const struct plume_module *plume_module_entry(void);
#define PLUME_MODULE_ENTRY "plume_module_entry"

/* The engine's functions; use them through the functions below and those of plume/ops.h. */
struct plume_api {
    size_t struct_size;
    plume_tensor *(*param)(struct plume_context *pl,
                           const char *name,
                           enum plume_init init,
                           size_t rank,
                           const size_t *shape);
    const plume_array *(*open_npy)(struct plume_context *pl, const char *path);
    double (*hparam)(struct plume_context *pl, const char *name);
    int (*fail)(struct plume_context *pl, int code, const char *text);
    plume_tensor *(*buffer)(struct plume_context *pl,
                            const char *name,
                            enum plume_init init,
                            size_t rank,
                            const size_t *shape);
    plume_tensor *(*op)(struct plume_context *pl,
                        enum plume_op op,
                        plume_tensor *const *in,
                        size_t n_in,
                        const struct plume_op_args *args);
    void (*log)(struct plume_context *pl,
                const char *name,
                plume_tensor *value,
                double factor,
                double weight);
    size_t (*shape)(const plume_tensor *t, size_t *ret_shape);
    struct plume_optimizer *(*add_optimizer)(struct plume_context *pl);
    const struct plume_dist_api *dist;
    const plume_array *(*open_source)(struct plume_context *pl,
                                      const struct plume_source *source,
                                      size_t source_size);
    size_t (*array_shape)(const plume_array *array, size_t *ret_shape);
    size_t (*vocabulary)(const plume_array *array, const unsigned char **ret_bytes);
    struct plume_group *(*add_group)(struct plume_context *pl,
                                     struct plume_optimizer *optimizer,
                                     const char *pattern);
    plume_tensor *(*param_init)(struct plume_context *pl,
                                const char *name,
                                enum plume_init init,
                                double a,
                                double b,
                                size_t rank,
                                const size_t *shape);
    int (*read)(
        struct plume_context *pl, const char *name, enum plume_what what, size_t n, double *ret);
    int (*backward)(struct plume_context *pl, unsigned optimizer, double *ret_loss);
    int (*optimizer_step)(struct plume_context *pl, unsigned optimizer);
    int (*zero_grad)(struct plume_context *pl, unsigned optimizer);
    plume_tensor *(*keep)(struct plume_context *pl, const char *name, plume_tensor *t);
    plume_tensor *(*param_values)(struct plume_context *pl,
                                  const char *name,
                                  size_t rank,
                                  const size_t *shape,
                                  const double *values);
};

/* The argument of every hook. */
struct plume_context {
    size_t struct_size;
    const struct plume_api *api;
    void *state; /* the module's, state_size bytes */
    unsigned rank, world_size;
    uint64_t step, epoch; /* completed optimizer steps and epochs */
    unsigned optimizer;   /* index of the optimizer, with step_per_optimizer; else 0 */
};

/* Declares a parameter of the engine's real type, shape[0..rank-1]. Only in configure, and the same
 * on all ranks. Names are unique and are saved with the model. They have letters, digits and _.-,
 * first a letter, a digit or _, as PyTorch's "0.weight" in a torch.nn.Sequential; those that begin
 * with "plume." are the engine's. NULL after a failure. */
static inline plume_tensor *plume_param(struct plume_context *pl,
                                        const char *name,
                                        enum plume_init init,
                                        size_t rank,
                                        const size_t *shape)
{
    return pl->api->param(pl, name, init, rank, shape);
}

/* The same with the numbers of the initial values: plume_param_init(pl, "w", PLUME_INIT_NORMAL, 0,
 * 0.02, 2, shape). */
static inline plume_tensor *plume_param_init(struct plume_context *pl,
                                             const char *name,
                                             enum plume_init init,
                                             double a,
                                             double b,
                                             size_t rank,
                                             const size_t *shape)
{
    return pl->api->param_init(pl, name, init, a, b, rank, shape);
}

/* The same with the initial values themselves, in row-major order and finite, the same on all
 * ranks: numbers made from the data, or vectors of words. They are copied. */
static inline plume_tensor *plume_param_values(struct plume_context *pl,
                                               const char *name,
                                               size_t rank,
                                               const size_t *shape,
                                               const double *values)
{
    return pl->api->param_values(pl, name, rank, shape, values);
}

/* Reads the n numbers of a parameter or buffer, or of a tensor that training_step keeps
 * (plume_keep()), by the name given to it, in row-major order. Not in configure and steps.
 * Gradients are those of the last backward pass: in on_after_backward and on_before_optimizer_step,
 * and until the next one; before the optimizer's step they are multiplied by the loss scale of
 * 16-bit floats, and on_after_backward of batches that are only accumulated has the sum of this
 * rank's own, divided by nothing. A parameter that was not used has a gradient of zero. With
 * strategy sharded no rank has whole gradients of parameters, with pipeline and --shard param none
 * has the whole model: -ENOTSUP. -ENOENT for another name, -EINVAL for another n. Waits for the
 * device. */
static inline int
plume_read(struct plume_context *pl, const char *name, enum plume_what what, size_t n, double *ret)
{
    return pl->api->read(pl, name, what, n, ret);
}

/* Keeps a tensor of training_step under a name (letters, digits and _.-; no parameter's or
 * buffer's), so that plume_read() can read its value, and its gradient: in on_after_backward and
 * later, until the next training_step. Returns what the step goes on with in the tensor's place: a
 * gradient comes from there. With dp and ddp2 plume_read() reads the parts one after another, which
 * is the whole along dimension 0. In other hooks, and with --tensor-parallel, nothing is kept and
 * the tensor itself is returned; with strategy pipeline and on XLA devices it cannot be read:
 * -ENOTSUP. Costs two copies. */
static inline plume_tensor *plume_keep(struct plume_context *pl, const char *name, plume_tensor *t)
{
    return pl->api->keep(pl, name, t);
}

/* Runs training_step on the batch for an optimizer (0: that of configure_optimizers, then those of
 * plume_add_optimizer()), forward and backward. The gradients are added to those since the
 * optimizer's last step, on this rank; they are divided by nothing. *ret_loss (may be NULL) is this
 * rank's loss, NaN if the module gave none. on_after_backward is called. Only in manual_step.
 * Returns 0 or a negative errno. */
static inline int plume_backward(struct plume_context *pl, unsigned optimizer, double *ret_loss)
{
    return pl->api->backward(pl, optimizer, ret_loss);
}

/* Averages the optimizer's gradients over the ranks, clips them and makes its step. The next
 * plume_backward() begins with gradients of zero. on_before_optimizer_step is called. Only in
 * manual_step. -EINVAL: no plume_backward() since the last step. */
static inline int plume_optimizer_step(struct plume_context *pl, unsigned optimizer)
{
    return pl->api->optimizer_step(pl, optimizer);
}

/* Forgets the optimizer's gradients since its last step. Only in manual_step. */
static inline int plume_zero_grad(struct plume_context *pl, unsigned optimizer)
{
    return pl->api->zero_grad(pl, optimizer);
}

/* Maps a .npy file (NumPy's format 1.0 to 3.0, C order, b1, u1, u2, i4, i8, f4 or f8,
 * little-endian). A relative path is searched in $PLUME_DATA_DIR, then in Plume's own data folder.
 * NULL after a failure. */
static inline const plume_array *plume_open_npy(struct plume_context *pl, const char *path)
{
    return pl->api->open_npy(pl, path);
}

/* Opens a data file, or synthetic data. NULL after a failure. */
static inline const plume_array *plume_open(struct plume_context *pl,
                                            const struct plume_source *source)
{
    return pl->api->open_source(pl, source, sizeof(*source));
}

/* The number of dimensions of an array; ret_shape (may be NULL) has room for PLUME_RANK_MAX. 0 if
 * the array is NULL. */
static inline size_t
plume_array_shape(struct plume_context *pl, const plume_array *array, size_t *ret_shape)
{
    return pl->api->array_shape(array, ret_shape);
}

/* The number of tokens of a text, and the byte of each (ret_bytes may be NULL; valid as long as the
 * array). 0 for other arrays. */
static inline size_t plume_vocabulary(struct plume_context *pl,
                                      const plume_array *array,
                                      const unsigned char **ret_bytes)
{
    return pl->api->vocabulary(array, ret_bytes);
}

/* Declares a buffer: numbers that belong to the model, are saved with it, have no gradient, and are
 * changed by certain ops only (batchnorm's running statistics). init: zero or one. Otherwise as
 * plume_param(). Before validation all ranks copy rank 0's. Write two calls that change one buffer
 * as two statements: C evaluates the arguments of a call in any order. */
static inline plume_tensor *plume_buffer(struct plume_context *pl,
                                         const char *name,
                                         enum plume_init init,
                                         size_t rank,
                                         const size_t *shape)
{
    return pl->api->buffer(pl, name, init, rank, shape);
}

/* The value of a hyper-parameter of the module or the engine; NaN (and a failure) for another name.
 */
static inline double plume_hparam(struct plume_context *pl, const char *name)
{
    return pl->api->hparam(pl, name);
}

/* Sets the reason of a hook's failure; code is a negative errno, which is returned. */
static inline int plume_fail(struct plume_context *pl, int code, const char *text)
{
    return pl->api->fail(pl, code, text);
}

/* Logs a one-element tensor under a name (letters, digits and _.-). The reported value is sum(value
 * * factor) / sum(weight) over all batches and ranks: for a mean over n rows pass (n, n), for a
 * count among n rows (1, n). Only in steps and *_step_end. In training it is reported with the
 * loss, as "train_NAME", every --log-every steps: over the batches of that optimizer step on rank 0
 * only, so it must not control training. */
static inline void plume_log(
    struct plume_context *pl, const char *name, plume_tensor *value, double factor, double weight)
{
    pl->api->log(pl, name, value, factor, weight);
}

/* The number of dimensions; ret_shape (may be NULL) has room for PLUME_RANK_MAX. */
static inline size_t plume_shape(struct plume_context *pl, const plume_tensor *t, size_t *ret_shape)
{
    return pl->api->shape(t, ret_shape);
}

/* Adds an optimizer, preset like the first one; only in configure_optimizers. All of them make a
 * step after each training step (or group of accumulated ones), by the gradients of one loss; or
 * each by its own loss: see step_per_optimizer. NULL after a failure. */
static inline struct plume_optimizer *plume_add_optimizer(struct plume_context *pl)
{
    return pl->api->add_optimizer(pl);
}

/* Gives some of an optimizer's parameters a rate and a decay of their own, like a parameter group
 * of torch.optim: those whose whole names match one of the patterns ("*.bias *norm*": separated by
 * blanks and commas; * ? [...] as in file names). Gradients are clipped by one norm over all
 * groups. Call it after the optimizer's own numbers are set: the group's are preset from them. Only
 * in configure_optimizers. The pattern is borrowed and must live as long as the module's state.
 * NULL after a failure. */
static inline struct plume_group *
plume_add_group(struct plume_context *pl, struct plume_optimizer *optimizer, const char *pattern)
{
    return pl->api->add_group(pl, optimizer, pattern);
}

/* Passes a tensor of a step to its *_step_end, under a name (letters, digits and _.-; at most 8).
 * Only in the step; each part of a batch passes the same names. The engine warns once if the module
 * has no such hook. */
static inline void plume_output(struct plume_context *pl, const char *name, plume_tensor *value)
{
    pl->api->dist->output(pl, name, value);
}

/* The number of parts of the batch: 1, or with dp and ddp2 at most the number of devices. */
static inline unsigned plume_parts(struct plume_context *pl, const struct plume_outputs *outputs)
{
    return pl->api->dist->parts(outputs);
}

/* An output of the whole batch: the parts concatenated along dimension 0, a tensor without
 * dimensions as one row; with one part, the step's own tensor. NULL if it does not exist. */
static inline plume_tensor *
plume_whole(struct plume_context *pl, const struct plume_outputs *outputs, const char *name)
{
    return pl->api->dist->whole(pl, outputs, name);
}

/* The same of one part, in [0, plume_parts()). */
static inline plume_tensor *plume_part(struct plume_context *pl,
                                       const struct plume_outputs *outputs,
                                       const char *name,
                                       unsigned part)
{
    return pl->api->dist->part(pl, outputs, name, part);
}

/* Puts n bytes into the checkpoint, under a name (letters, digits and _.-). Only in
 * on_save_checkpoint. Returns 0 or a negative errno. */
static inline int
plume_save(struct plume_context *pl, const char *name, const void *bytes, size_t n)
{
    return pl->api->dist->save(pl, name, bytes, n);
}

/* The bytes of a name, valid until the hook returns; NULL if the checkpoint has none. Only in
 * on_load_checkpoint. */
static inline const void *plume_load(struct plume_context *pl, const char *name, size_t *ret_n)
{
    return pl->api->dist->load(pl, name, ret_n);
}

/* Collectives on plain memory, not part of the tape: all ranks call them in the same order.
 * allreduce: buf = scale * the sum over ranks, count elements of float (real_bytes 4) or double
 * (8). */
static inline int
plume_allreduce(struct plume_context *pl, void *buf, size_t count, size_t real_bytes, double scale)
{
    return pl->api->dist->allreduce(pl, buf, count, real_bytes, scale);
}

/* Gathers all ranks' `bytes`, in order of ranks: ret_all has world_size * bytes. */
static inline int
plume_all_gather(struct plume_context *pl, const void *mine, size_t bytes, void *ret_all)
{
    return pl->api->dist->all_gather(pl, mine, bytes, ret_all);
}

/* Copies rank 0's bytes to all ranks. */
static inline int plume_broadcast(struct plume_context *pl, void *buf, size_t bytes)
{
    return pl->api->dist->broadcast(pl, buf, bytes);
}

#include <plume/ops.h>

#ifdef __cplusplus
}
#endif

#endif
