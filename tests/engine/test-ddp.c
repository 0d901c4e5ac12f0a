/* SPDX-License-Identifier: MIT */
/* Data-parallel training means the same as training on one rank with the whole batch: parameters
 * and gradients of 12 ranks with batch b against one rank with batch 12 b. */
#include "runtime/engine/module/module.h"
#include "runtime/engine/params/apart.h"
#include "runtime/engine/train/trainer.h"
#include "tests/engine/ranks.h"
#include "tests/lib/on_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_MAX 8192
#define STEPS 13 /* whole global batches of 96 in the training data's 1253 samples */

struct result {
    unsigned batch_size;
    char hash[RANKS_MAX][17];
    size_t count;
    float params[COUNT_MAX], grads[COUNT_MAX];
};

static char wrong[256];

/* The f32 gradients of a tensor, summed. Freed by the caller; NULL: an error. */
static double *grads_of(const struct pl_params *p, const plume_tensor *t)
{
    double *ret;
    float *sum;

    if (!p->apart)
        return on_device_values(t, t->grad);
    ret = malloc(t->count * sizeof(*ret));
    sum = malloc(t->count * sizeof(*sum));
    if (ret && sum)
        pl_params_sum_apart(p, pl_kernels_best(p->real),
                            (size_t)((float *)t->grad - (float *)p->grads), t->count, sum);
    for (size_t k = 0; ret && sum && k < t->count; k++)
        ret[k] = (double)sum[k];
    free(sum);
    return ret;
}

/* In the order of declaration, so that layouts with other padding compare. */
static void keep(const struct pl_params *p, struct result *result)
{
    result->count = 0;
    for (size_t i = 0; i < p->n; i++) {
        const plume_tensor *t = p->list[i]->tensor;

        double *values = on_device_values(t, t->data), *grads = grads_of(p, t);

        for (size_t k = 0; values && grads && k < t->count; k++) {
            result->params[result->count] = (float)values[k];
            result->grads[result->count++] = (float)grads[k];
        }
        free(values);
        free(grads);
    }
}

static const char *train(struct pl_comm *comm, void *shared)
{
    struct pl_train_options options = pl_train_options_default();
    struct pl_rank_report report = {.link = PL_RANK_LINK_INIT};
    struct result *result = shared;
    struct pl_trainer trainer;
    struct pl_hparams hparams;
    struct pl_module module;
    struct pl_error err = {0};
    char batch[32];
    int r = pl_module_open("mlp", &module, &err);

    options.seed = 7;
    options.max_steps = STEPS;
    options.device = on_device();
    snprintf(batch, sizeof(batch), "batch_size=%u", result->batch_size);
    if (r == 0)
        r = pl_hparams_init(&hparams, module.hooks.hparams, &err);
    if (r == 0)
        r = pl_hparams_set(&hparams, batch, &err);
    if (r == 0)
        r = pl_trainer_init(&trainer, &module.hooks, &hparams, &options, comm, &report, &err);
    if (r == 0)
        r = pl_trainer_fit(&trainer, &err);
    if (r < 0) {
        snprintf(wrong, sizeof(wrong), "%s", pl_error_text(&err));
        return wrong;
    }
    memcpy(result->hash[comm->rank], trainer.param_hash, sizeof(trainer.param_hash));
    if (comm->rank == 0)
        keep(&trainer.ctx.params, result);
    pl_trainer_finish(&trainer);
    pl_hparams_finish(&hparams);
    pl_module_close(&module);
    return NULL;
}

static void compare(unsigned ranks, unsigned per_node)
{
    struct result *one = ranks_shared(sizeof(*one)), *many = ranks_shared(sizeof(*many));
    double params = 0, grads = 0, moved = 0;

    one->batch_size = 96;
    many->batch_size = 96 / ranks;
    ranks_run(1, 0, train, one, 0);
    ranks_run(ranks, per_node, train, many, 0);
    assert_int_equal(one->count, 64 * 64 + 64 + 10 * 64 + 10);
    assert_int_equal(one->count, many->count);
    for (size_t i = 0; i < one->count; i++) {
        params = fmax(params, fabs(one->params[i] - many->params[i]));
        grads = fmax(grads, fabs(one->grads[i] - many->grads[i]));
        moved = fmax(moved, fabs(one->grads[i]));
    }
    print_message("# %u ranks, %u a node: params differ by %.2g, gradients by %.2g\n", ranks,
                  per_node, params, grads);
    /* Sums of 96 terms in another order: a few units of 6e-8 a step, 13 steps. */
    assert_true(params < 1e-5);
    assert_true(grads < 1e-5);
    assert_true(moved > 1e-3); /* the parameters have changed */
    for (unsigned i = 0; i < ranks; i++)
        assert_string_equal(many->hash[i], many->hash[0]);
}

static void test_ddp_over_tcp_is_one_big_batch(void **state)
{
    compare(12, 1);
}

static void test_ddp_over_shm_is_one_big_batch(void **state)
{
    compare(12, 0);
}

static void test_ddp_over_shm_and_tcp_is_one_big_batch(void **state)
{
    compare(12, 5);
    compare(6, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ddp_over_tcp_is_one_big_batch),
        cmocka_unit_test(test_ddp_over_shm_is_one_big_batch),
        cmocka_unit_test(test_ddp_over_shm_and_tcp_is_one_big_batch),
    };

    on_device_or_end();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
