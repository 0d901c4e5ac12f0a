/* SPDX-License-Identifier: MIT */
/* Messages that a module's author reads after a wrong call: they name the function, the argument,
 * and the shape or number that was given. */
#include "plume/ops_attention.h"
#include "plume/ops_einsum.h"
#include "plume/ops_image.h"
#include "plume/ops_nn.h"
#include "plume/ops_rnn.h"
#include "plume/ops_shape.h"
#include "tests/engine/fit_run.h"
#include "tests/lib/tmpdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* In a step: w and b are [10, 64] and [10], x is [8, 64]. */
#define SHAPE(...)                                                                                 \
    sizeof((size_t[]){__VA_ARGS__}) / sizeof(size_t), (size_t[])                                   \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

#define CALLS(CALL)                                                                                \
    CALL(plume_linear(pl, NULL, w, b, 0), "linear: x (input 0) is NULL: make it first")            \
    CALL(plume_linear(pl, x, NULL, b, 0), "linear: w (input 1) is NULL")                           \
    CALL(plume_sub(pl, w, NULL), "sub: b (input 1) is NULL")                                       \
    CALL(plume_sqrt(pl, NULL), "sqrt: x (input 0) is NULL")                                        \
    CALL(plume_where(pl, x, NULL, x), "where: yes (input 1) is NULL")                              \
    CALL(plume_gt(pl, x, NULL), "lt or gt: input 0 is NULL")                                       \
    CALL(plume_attention(pl, NULL, 1, 0), "attention: qkv (input 0) is NULL")                      \
    CALL(plume_attention_of(pl, x, x, NULL, 1, 0), "attention: v (input 2) is NULL")               \
    CALL(plume_cat(pl, 2, ((plume_tensor *[]){x, NULL})), "cat: input 1 is NULL")                  \
    CALL(plume_lstm(pl, x, NULL, w, b, b, NULL, NULL), "lstm: x, w_ih or w_hh is NULL")            \
    CALL(plume_lstm(pl, x, w, w, b, b, NULL, NULL),                                                \
         "lstm: wanted: x [batch, time, in], w_hh [4 hidden, hidden]: [8, 64], [10, 64]")          \
    CALL(plume_flip(pl, NULL, 0), "flip: x is NULL")                                               \
    CALL(plume_groupnorm(pl, x, 5, NULL, NULL, 0), "groupnorm: 5 groups do not divide the 64 ")    \
    CALL(plume_linear(pl, x, plume_transpose(pl, w, 0, 1), b, 0),                                  \
         "linear: shapes do not fit (wanted: x [..., in], w [out, in], b [out]): f32[8, 64], "     \
         "f32[64, 10], f32[10]")                                                                   \
    CALL(plume_mean(pl, plume_softmax(pl, x), 2, 2),                                               \
         "mean: no dimension is in the range 2 to before 2: f32[8, 64]")                           \
    CALL(plume_reshape(pl, x, SHAPE(7, 64)),                                                       \
         "reshape: the new shape [7, 64] has another number of elements: f32[8, 64]")              \
    CALL(plume_slice(pl, x, 1, 60, 5),                                                             \
         "slice: 5 elements from element 60 of dimension 1 on are asked for: f32[8, 64]")          \
    CALL(plume_slice(pl, x, 2, 0, 1), "slice: there is no dimension 2: f32[8, 64]")                \
    CALL(plume_permute(pl, x, ((size_t[]){1, 1})),                                                 \
         "permute: the order does not name each dimension once: element 1 is 1: f32[8, 64]")       \
    CALL(plume_cat_along(pl, 0, 2, ((plume_tensor *[]){x, b})),                                    \
         "cat: along dimension 0, input 1 differs from input 0 in another dimension")              \
    CALL(plume_argmax(pl, x, 3), "there is no dimension 3: f32[8, 64]")                            \
    CALL(plume_expand(pl, x, SHAPE(8, 65)),                                                        \
         "expand: only dimensions of 1 are repeated, and dimension 1 is to be 65: f32[8, 64]")     \
    CALL(plume_conv2d(pl, plume_reshape(pl, x, SHAPE(8, 1, 8, 8)),                                 \
                      plume_reshape(pl, w, SHAPE(10, 1, 64, 1)), NULL, 1, 2, 0),                   \
         "conv2d: the kernel does not fit with stride 1 and padding 2: f32[8, 1, 8, 8], f32[10, ") \
    CALL(x, "the loss is f32[8, 64]: it must be one number, such as a mean over the batch")        \
    CALL(plume_full(pl, SHAPE((size_t)1 << 33, (size_t)1 << 33), 1),                               \
         "full: 64 bits cannot count the elements of its result f32[8589934592, 8589934592]")      \
    CALL(plume_mean(pl, batch->field[0], 0, 5), "the loss is f32[1], and depends on no parameter") \
    CALL((plume_log(pl, NULL, plume_mean(pl, w, 0, 5), 1, 1), x), "log: '' is a bad name")         \
    CALL((plume_output(pl, NULL, x), x), "output '' has a bad name")                               \
    CALL(plume_keep(pl, NULL, x), "keep: '' is a bad name")                                        \
    CALL(plume_einsum(pl, NULL, x, w), "einsum: the form is NULL")                                 \
    CALL(plume_einsum(pl, NULL, x, NULL), "einsum: the form is NULL")                              \
    CALL(plume_einsum_all(pl, "ij->ji", 1, NULL), "einsum: the list of tensors is NULL")           \
    CALL(plume_reshape(pl, x, 2, NULL), "reshape: the shape is NULL")                              \
    CALL(plume_permute(pl, x, NULL), "permute: the order is NULL")                                 \
    CALL(plume_cat(pl, 2, NULL), "cat: the list of tensors is NULL")                               \
    CALL(plume_stack(pl, 0, 2, NULL), "stack: the list of tensors is NULL")                        \
    CALL(plume_full(pl, 2, NULL, 1), "full: the shape is NULL")                                    \
    CALL(plume_expand(pl, x, 2, NULL), "expand: the shape is NULL")                                \
    CALL(plume_normal(pl, 2, NULL, 0, 1), "a random tensor: the shape is NULL")                    \
    CALL(plume_attention_with(pl, x, x, x, NULL), "attention_with: q, k, v or how is NULL")        \
    CALL(plume_conv(pl, x, w, NULL, NULL, 0), "a convolution: how is NULL")                        \
    CALL(plume_max_pool2d(pl, plume_reshape(pl, x, SHAPE(8, 1, 8, 8)), 9, 1, 0),                   \
         "max_pool2d: a window of 9 does not fit with stride 1 and padding 0: f32[8, 1, 8, 8]")

#define TEXT(call, text) text,
#define CASE(call, text)                                                                           \
    case __COUNTER__ - FIRST:                                                                      \
        *ret_loss = call;                                                                          \
        break;

static const char *const texts[] = {CALLS(TEXT)};
static size_t which; /* of the calls */

enum { FIRST = __COUNTER__ + 1 };

static int step(struct plume_context *pl, const struct plume_batch *batch, plume_tensor **ret_loss)
{
    const struct fit_net *net = pl->state;
    plume_tensor *x = plume_reshape(pl, batch->field[0], SHAPE(8, 64)), *w = net->w, *b = net->b;

    switch (which) {
        CALLS(CASE)
    default:
        break;
    }
    return 0;
}

static void test_calls_name_what_is_wrong(void **state)
{
    (void)state;
    for (which = 0; which < PL_COUNT(texts); which++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 1;
        run->module.training_step = step;
        run->module.validation_step = NULL;
        snprintf(run->hparams[0], sizeof(run->hparams[0]), "batch_size=8");
        fit_go(run, 1, 0);
        if (!strstr(run->error, texts[which]))
            fail_msg("'%s' has no '%s'", run->error, texts[which]);
    }
}

static int declare(struct plume_context *pl)
{
    if (which == 0)
        plume_param(pl, "v", PLUME_INIT_ZERO, SHAPE(3, 0));
    else if (which == 1)
        plume_param(pl, "v", PLUME_INIT_ZERO, SHAPE(1, 1, 1, 1, 1, 1));
    else if (which == 2)
        plume_buffer(pl, "m", PLUME_INIT_ZERO, SHAPE((size_t)1 << 40, (size_t)1 << 40));
    else if (which == 3)
        plume_buffer(pl, "m", PLUME_INIT_HE, SHAPE(3));
    else if (which == 4)
        plume_param(pl, NULL, PLUME_INIT_ZERO, SHAPE(3));
    else if (which == 5)
        plume_buffer(pl, "m", PLUME_INIT_ZERO, 1, NULL);
    else if (which == 6)
        plume_hparam(pl, NULL);
    else if (which == 7)
        plume_open(pl, NULL);
    else if (which == 8)
        plume_param_values(pl, "v", SHAPE(3), NULL);
    else
        return plume_fail(pl, -EINVAL, NULL);
    return 0;
}

static void test_declarations_name_the_shape(void **state)
{
    static const char *const wanted[] = {
        "parameter 'v' has the shape [3, 0]: each size must be at least 1",
        "parameter 'v' has 6 dimensions: there are at most 5",
        "buffer 'm' has the shape [1099511627776, 1099511627776]: each size must be at least 1, "
        "and their product fit into 64 bits",
        "buffer 'm' starts with zeros or ones, not as init 3",
        "'NULL' is not a parameter name",
        "'m' has 1 dimensions, and its shape is NULL",
        "hyper-parameter 'NULL', which it does not list",
        "plume_open: the source is NULL",
        "parameter 'v': its initial values are NULL",
        "plume_fail() was called without a text",
    };

    (void)state;
    for (which = 0; which < PL_COUNT(wanted); which++) {
        struct fit_run *run = fit_new_run();

        run->module.configure = declare;
        fit_go(run, 1, 0);
        if (!strstr(run->error, wanted[which]))
            fail_msg("'%s' has no '%s'", run->error, wanted[which]);
    }
}

static int save_nothing(struct plume_context *pl)
{
    return which ? plume_save(pl, "n", NULL, 4) : plume_save(pl, NULL, "n", 1);
}

static int read_nothing(struct plume_context *pl)
{
    double n;

    return which == 2 ? plume_read(pl, NULL, PLUME_VALUE, 1, &n)
                      : plume_read(pl, "w", PLUME_VALUE, 640, NULL);
}

static void test_names_and_places_may_not_be_null(void **state)
{
    char dir[64];

    (void)state;
    assert_int_equal(tmpdir_make(dir, sizeof(dir)), 0);
    for (which = 0; which < 4; which++) {
        struct fit_run *run = fit_new_run();

        run->options.max_steps = 1;
        run->options.checkpoint_dir = dir;
        if (which < 2)
            run->module.on_save_checkpoint = save_nothing;
        else
            run->module.on_fit_end = read_nothing;
        fit_go(run, 1, 0);
        if (!strstr(run->error, which < 2 ? "save: the name or the bytes are NULL"
                                          : "read: the name or the place of the numbers is NULL"))
            fail_msg("%zu: '%s'", which, run->error);
    }
    assert_int_equal(tmpdir_remove(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_name_what_is_wrong),
        cmocka_unit_test(test_declarations_name_the_shape),
        cmocka_unit_test(test_names_and_places_may_not_be_null),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
