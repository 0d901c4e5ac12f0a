/* SPDX-License-Identifier: MIT */
#include "runtime/engine/module/context.h"
#include "common/base/fs.h"
#include "common/base/parse.h"
#include "runtime/engine/data/data_find.h"
#include "runtime/engine/data/open.h"
#include "runtime/engine/module/context_read.h"
#include "runtime/engine/ops/ops.h"

#include <math.h>
#include <string.h>

static struct pl_context *of(struct plume_context *pl)
{
    return (struct pl_context *)pl;
}

static plume_tensor *api_param_init(struct plume_context *pl,
                                    const char *name,
                                    enum plume_init init,
                                    double a,
                                    double b,
                                    size_t rank,
                                    const size_t *shape)
{
    const struct pl_initial initial = {.kind = init, .a = a, .b = b};
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    plume_tensor *t;
    int r;

    if (!ctx->configuring) {
        pl_context_refuse(ctx, -EINVAL, "parameter '%s' is declared outside configure", name);
        return NULL;
    }
    r = pl_initial_check(&initial, rank, &err);
    if (r < 0)
        r = pl_error_wrap(&err, r, "parameter '%s'", name);
    else
        r = pl_params_declare(&ctx->params, name, init, rank, shape, &t, &err);
    if (r < 0) {
        pl_context_keep(ctx, r, &err);
        return NULL;
    }
    ctx->params.list[ctx->params.n - 1]->initial = initial;
    return t;
}

static plume_tensor *api_param(struct plume_context *pl,
                               const char *name,
                               enum plume_init init,
                               size_t rank,
                               const size_t *shape)
{
    if (init == PLUME_INIT_NORMAL || init == PLUME_INIT_UNIFORM) {
        pl_context_refuse(of(pl), -EINVAL,
                          "parameter '%s': these initial values have numbers: plume_param_init()",
                          name);
        return NULL;
    }
    return api_param_init(pl, name, init, 0, 0, rank, shape);
}

static plume_tensor *api_param_values(struct plume_context *pl,
                                      const char *name,
                                      size_t rank,
                                      const size_t *shape,
                                      const double *values)
{
    struct pl_context *ctx = of(pl);
    plume_tensor *t = api_param_init(pl, name, PLUME_INIT_ZERO, 0, 0, rank, shape);
    double *given = t && values ? reallocarray(NULL, t->count, sizeof(*given)) : NULL;

    if (!t)
        return NULL;
    if (!values) {
        pl_context_refuse(ctx, -EINVAL, "parameter '%s': its initial values are NULL", name);
        return NULL;
    }
    if (!given) {
        pl_context_refuse(ctx, -ENOMEM, "out of memory");
        return NULL;
    }
    ctx->params.list[ctx->params.n - 1]->given = given;
    memcpy(given, values, t->count * sizeof(*given));
    for (size_t i = 0; i < t->count; i++)
        if (!isfinite(ctx->params.real == PL_REAL_F32 ? (float)given[i] : given[i])) {
            pl_context_refuse(ctx, -EINVAL, "parameter '%s': initial value %zu is %g", name, i,
                              given[i]);
            return NULL;
        }
    return t;
}

static plume_tensor *api_buffer(struct plume_context *pl,
                                const char *name,
                                enum plume_init init,
                                size_t rank,
                                const size_t *shape)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    plume_tensor *t = NULL;
    int r;

    if (!ctx->configuring) {
        pl_context_refuse(ctx, -EINVAL, "buffer '%s' is declared outside configure", name);
        return NULL;
    }
    r = pl_params_declare_buffer(&ctx->params, name, init, rank, shape, &t, &err);
    if (r < 0)
        pl_context_keep(ctx, r, &err);
    return t;
}

static const plume_array *
api_open_source(struct plume_context *pl, const struct plume_source *source, size_t source_size)
{
    struct pl_context *ctx = of(pl);
    _cleanup_free_ struct plume_array *array = calloc(1, sizeof(*array));
    struct plume_array **arrays = reallocarray(ctx->arrays, ctx->n_arrays + 1, sizeof(*arrays));
    struct plume_source found = {0};
    _cleanup_free_ char *paths = NULL;
    struct pl_error err = {0};
    int r = 0;

    if (!source) {
        pl_context_refuse(ctx, -EINVAL, "plume_open: the source is NULL");
        return NULL;
    }
    if (arrays)
        ctx->arrays = arrays;
    if (!array || !arrays) {
        pl_context_refuse(ctx, -ENOMEM, "out of memory");
        return NULL;
    }
    memcpy(&found, source,
           PL_MIN(source_size, sizeof(found))); /* the module's struct may be smaller */
    if (found.path)
        r = pl_data_find(found.path, &paths, &err);
    else if (found.format != PLUME_FORMAT_SYNTHETIC)
        r = pl_error_set(&err, -EINVAL, "a data source has no path");
    found.path = paths;
    if (r == 0)
        r = pl_array_open(&found, array, &err);
    if (r < 0) {
        pl_context_keep(ctx, r, &err);
        return NULL;
    }
    ctx->arrays[ctx->n_arrays++] = array;
    return PL_TAKE(array);
}

static const plume_array *api_open_npy(struct plume_context *pl, const char *path)
{
    const struct plume_source source = {.path = path, .format = PLUME_FORMAT_NPY};

    return api_open_source(pl, &source, sizeof(source));
}

static size_t api_array_shape(const plume_array *array, size_t *ret_shape)
{
    if (!array)
        return 0;
    if (ret_shape)
        memcpy(ret_shape, array->shape, sizeof(array->shape));
    return array->rank;
}

static size_t api_vocabulary(const plume_array *array, const unsigned char **ret_bytes)
{
    if (!array)
        return 0;
    if (ret_bytes)
        *ret_bytes = array->vocabulary;
    return array->n_vocabulary;
}

static double api_hparam(struct plume_context *pl, const char *name)
{
    const struct pl_hparam *h = name ? pl_hparams_find(of(pl)->hparams, name) : NULL;

    if (!h) {
        pl_context_refuse(of(pl), -ENOENT,
                          "the module asks for hyper-parameter '%s', which it does not list",
                          name ? name : "NULL");
        return NAN;
    }
    return h->value;
}

static int api_fail(struct plume_context *pl, int code, const char *text)
{
    return pl_context_refuse(of(pl), code ? code : -EINVAL, "%s",
                             text ? text : "plume_fail() was called without a text");
}

static void refuse_input(struct pl_context *ctx,
                         enum plume_op op,
                         const struct plume_op_args *args,
                         size_t n_in,
                         size_t i,
                         const char *text)
{
    char name[64];

    pl_op_input_name(op, args, n_in, i, name, sizeof(name));
    pl_context_refuse(ctx, -EINVAL, "%s: %s %s", pl_op_name(op, args), name, text);
}

static plume_tensor *api_op(struct plume_context *pl,
                            enum plume_op op,
                            plume_tensor *const *in,
                            size_t n_in,
                            const struct plume_op_args *args)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    plume_tensor *t = NULL;
    int r;

    if (!ctx->tape)
        pl_context_refuse(ctx, -EINVAL, "%s: ops may only be called in a step",
                          pl_op_name(op, args));
    for (size_t i = 0; i < n_in && ctx->error.code == 0; i++) /* a NULL follows from a failure */
        if (!in[i])
            refuse_input(ctx, op, args, n_in, i,
                         "is NULL: make it first, a parameter in hook configure");
        else if (!pl_context_is_of_step(ctx, in[i]))
            refuse_input(ctx, op, args, n_in, i, PL_IS_OF_EARLIER);
    if (ctx->error.code)
        return NULL;
    r = pl_op_call(ctx->tape, op, in, n_in, args, &t, &err);
    if (r < 0) {
        pl_context_keep(ctx, r, &err);
        return NULL;
    }
    return t;
}

static void api_log(
    struct plume_context *pl, const char *name, plume_tensor *value, double factor, double weight)
{
    struct pl_context *ctx = of(pl);
    struct pl_logs *logs = ctx->logs;
    size_t i = 0;

    if (!name)
        name = ""; /* a bad name */
    if (!logs) {
        pl_context_refuse(ctx, -EINVAL, "log: may only be called in a step");
        return;
    }
    if (!value || value->count != 1 || ctx->error.code) {
        if (!ctx->error.code)
            pl_context_refuse(ctx, -EINVAL, "log: '%s' is not one number", name);
        return;
    }
    if (!pl_context_is_of_step(ctx, value)) {
        pl_context_refuse(ctx, -EINVAL, "log: '%s' " PL_IS_OF_EARLIER, name);
        return;
    }
    while (i < logs->n && strcmp(logs->name[i], name) != 0)
        i++;
    if (i == logs->n) {
        if (strlen(name) >= sizeof(logs->name[0]) || !pl_name_valid(name, strlen(name))) {
            pl_context_refuse(ctx, -EINVAL,
                              "log: '%s' is a bad name: wanted are at most %zu letters, digits and "
                              "any of _.-",
                              name, sizeof(logs->name[0]) - 1);
            return;
        }
        if (i == PL_LOG_VALUES_MAX) {
            pl_context_refuse(ctx, -EINVAL, "log: '%s' exceeds the limit of %d names", name,
                              PL_LOG_VALUES_MAX);
            return;
        }
        if (logs->closed) {
            pl_context_refuse(ctx, -EINVAL,
                              "log: '%s' was not logged in the first batch: log the same names in "
                              "all batches",
                              name);
            return;
        }
        memcpy(logs->name[logs->n++], name, strlen(name) + 1);
    }
    if (logs->n_pending == PL_LOG_VALUES_MAX) {
        pl_context_refuse(ctx, -EINVAL, "log: more than %d values in a step", PL_LOG_VALUES_MAX);
        return;
    }
    logs->pending[logs->n_pending++] = (struct pl_log_pending){i, value, factor, weight};
}

int pl_logs_collect(struct pl_logs *logs,
                    struct pl_device *dev,
                    struct pl_device *home,
                    struct pl_error *err)
{
    for (size_t i = 0; i < logs->n_pending; i++) {
        const struct pl_log_pending *p = &logs->pending[i];
        double value;
        bool at_home = pl_tensor_root(p->value)->number > 0;
        int r = pl_tensor_scalar(p->value, at_home ? home : dev, &value, err);

        if (r < 0)
            return r;
        logs->sum[p->index][0] += p->factor * value;
        logs->sum[p->index][1] += p->weight;
    }
    return 0;
}

static size_t api_shape(const plume_tensor *t, size_t *ret_shape)
{
    if (!t)
        return 0;
    if (ret_shape)
        memcpy(ret_shape, t->shape, sizeof(t->shape));
    return t->rank;
}

static struct plume_optimizer *api_add_optimizer(struct plume_context *pl)
{
    struct pl_context *ctx = of(pl);

    if (ctx->n_optimizers == 0 || ctx->n_optimizers == PL_OPTIMIZERS_MAX) {
        pl_context_refuse(ctx, -EINVAL, "%s",
                          ctx->n_optimizers ? "too many optimizers"
                                            : "an optimizer is added outside configure_optimizers");
        return NULL;
    }
    ctx->optimizers[ctx->n_optimizers] = ctx->optimizer_defaults;
    return &ctx->optimizers[ctx->n_optimizers++];
}

static struct plume_group *
api_add_group(struct plume_context *pl, struct plume_optimizer *optimizer, const char *pattern)
{
    struct pl_context *ctx = of(pl);
    struct pl_group_options *group = &ctx->groups[ctx->n_groups];
    size_t i = 0;

    while (i < ctx->n_optimizers && optimizer != &ctx->optimizers[i])
        i++;
    if (i == ctx->n_optimizers || ctx->n_groups == PL_COUNT(ctx->groups) || !pattern) {
        pl_context_refuse(ctx, -EINVAL, "%s",
                          ctx->n_optimizers == 0 ? "a group is added outside configure_optimizers"
                          : i == ctx->n_optimizers
                              ? "a group's optimizer is neither the hook's argument nor of "
                                "plume_add_optimizer()"
                          : pattern ? "too many groups"
                                    : "a group has no pattern");
        return NULL;
    }
    *group = (struct pl_group_options){
        .optimizer = i,
        .pattern = pattern,
        .numbers = {.struct_size = sizeof(group->numbers),
                    .lr = optimizer->lr,
                    .weight_decay = optimizer->weight_decay},
    };
    ctx->n_groups++;
    return &group->numbers;
}

/* True if a manual_step may go on. */
static bool is_manual(struct pl_context *ctx, const char *what)
{
    if (!ctx->manual)
        pl_context_refuse(ctx, -EINVAL, "%s: only in manual_step", what);
    return ctx->error.code == 0;
}

static int manual_result(struct pl_context *ctx, int r, const struct pl_error *err)
{
    if (r < 0)
        pl_context_keep(ctx, r, err);
    return r;
}

static int api_backward(struct plume_context *pl, unsigned optimizer, double *ret_loss)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};
    double loss = NAN;
    int r;

    if (!is_manual(ctx, "plume_backward"))
        return ctx->error.code;
    r = ctx->manual->backward(ctx->manual_ctx, optimizer, &loss, &err);
    if (ret_loss)
        *ret_loss = loss;
    return manual_result(ctx, r, &err);
}

static int api_optimizer_step(struct plume_context *pl, unsigned optimizer)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};

    if (!is_manual(ctx, "plume_optimizer_step"))
        return ctx->error.code;
    return manual_result(ctx, ctx->manual->step(ctx->manual_ctx, optimizer, &err), &err);
}

static int api_zero_grad(struct plume_context *pl, unsigned optimizer)
{
    struct pl_context *ctx = of(pl);
    struct pl_error err = {0};

    if (!is_manual(ctx, "plume_zero_grad"))
        return ctx->error.code;
    return manual_result(ctx, ctx->manual->zero_grad(ctx->manual_ctx, optimizer, &err), &err);
}

static const struct plume_api api = {
    .struct_size = sizeof(struct plume_api),
    .param = api_param,
    .open_npy = api_open_npy,
    .hparam = api_hparam,
    .fail = api_fail,
    .op = api_op,
    .buffer = api_buffer,
    .log = api_log,
    .shape = api_shape,
    .add_optimizer = api_add_optimizer,
    .dist = &pl_context_dist,
    .open_source = api_open_source,
    .array_shape = api_array_shape,
    .vocabulary = api_vocabulary,
    .add_group = api_add_group,
    .param_init = api_param_init,
    .read = pl_context_read,
    .backward = api_backward,
    .optimizer_step = api_optimizer_step,
    .zero_grad = api_zero_grad,
    .keep = pl_context_keep_tensor,
    .param_values = api_param_values,
};

int pl_context_init(struct pl_context *ctx,
                    struct pl_device *dev,
                    const struct pl_hparams *hparams,
                    enum pl_real real,
                    size_t state_size,
                    unsigned rank,
                    unsigned world_size,
                    struct pl_error *err)
{
    void *state = calloc(1, PL_MAX(state_size, (size_t)1));

    if (!state)
        return pl_error_set(err, -ENOMEM, "out of memory for the module's state");
    *ctx = (struct pl_context){
        .pub = {.struct_size = sizeof(ctx->pub),
                .api = &api,
                .state = state,
                .rank = rank,
                .world_size = world_size},
        .hparams = hparams,
        .share = rank,
        .n_shares = world_size,
    };
    pl_params_init(&ctx->params, dev, real);
    return 0;
}

void pl_context_finish(struct pl_context *ctx)
{
    for (size_t i = 0; i < ctx->n_arrays; i++) {
        pl_array_close(ctx->arrays[i]);
        free(ctx->arrays[i]);
    }
    free(ctx->arrays);
    pl_params_finish(&ctx->params);
    free(ctx->pub.state);
    *ctx = (struct pl_context){0};
}
