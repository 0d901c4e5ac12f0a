/* SPDX-License-Identifier: MIT */
/* Shapes, labels and arguments that ops refuse, and their messages. */
#include "tests/unit/engine/ops/engine_op.h"

static void make(struct net *net, enum pl_real real)
{
    make_on(net, pl_device_cpu(), real);
}

/* Groups, sizes and padding of convolutions of [1, 2, 3, 4] by [2, 2, 2, 3], and with a bias [6].
 */
static void test_convolutions_that_are_refused(void **state)
{
    static const struct {
        enum plume_op op;
        size_t n;
        int64_t stride, pad, dilation, out_pad, groups;
        const char *text;
    } bad[] = {
        {PLUME_OP_CONV, 2, 0, 0, 1, 0, 1, "stride, dilation and groups must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 0, "must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), -1, PAIR(1, 1), 0, 1, "must be at least 1"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 3, "cannot be divided into these groups"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(1, 1), 0, 2, "x has not the channels of w"},
        {PLUME_OP_CONV, 2, PAIR(1, 1), 0, PAIR(9, 1), 0, 1, "larger than the padded image"},
        {PLUME_OP_CONV, 3, PAIR(1, 1), 0, PAIR(1, 1), 0, 1, "b has not one number per channel"},
        {PLUME_OP_CONV_TRANSPOSE, 2, PAIR(2, 2), 0, PAIR(1, 1), PAIR(2, 0), 1, "output padding"},
        {PLUME_OP_CONV_TRANSPOSE, 2, PAIR(1, 1), PAIR(5, 5), PAIR(1, 1), 0, 1, "nothing is left"},
        {PLUME_OP_CONV_TRANSPOSE, 3, PAIR(1, 1), 0, PAIR(1, 1), 0, 1, "b has not one number"},
    };
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        plume_tensor *x = OP(PLUME_OP_RESHAPE, ARGS({4, 1, 2, 3, 4}, {0}), &n.t[0]);
        plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({4, 2, 2, 2, 3}, {0}), &n.t[2]);
        plume_tensor *in[] = {x, w, &n.t[1]}, *t = NULL;
        struct plume_op_args args = {
            {bad[i].stride, bad[i].pad, bad[i].dilation, bad[i].out_pad, bad[i].groups}, {0}};
        struct pl_error err = {0};

        assert_int_equal(pl_op_call(&n.tape, bad[i].op, in, bad[i].n, &args, &t, &err), -EINVAL);
        if (!strstr(pl_error_text(&err), bad[i].text))
            fail_msg("case %zu: '%s' has not '%s'", i, pl_error_text(&err), bad[i].text);
        assert_null(t);
    }
    pl_tape_end(&n.tape);
    finish(&n);
}

/* Labels of a row may lie in one dimension, or in those of the rows; not in these the other way
 * round. */
static void test_labels_belong_to_their_rows(void **state)
{
    static const struct {
        size_t shape[4]; /* after the rank; 0: 1 */
        bool fits;
    } given[] = {{{1, 6}, true},    {{2, 1, 6}, true},  {{2, 2, 3}, true},
                 {{3, 2, 3}, true}, {{2, 3, 2}, false}, {{3, 3, 1, 2}, false}};
    static const enum plume_op ops[] = {PLUME_OP_CROSS_ENTROPY, PLUME_OP_CORRECT};
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < 2 * PL_COUNT(given); i++) {
        const size_t *s = given[i / 2].shape;
        plume_tensor *all = op(net, PLUME_OP_ARANGE, 0, NULL, (struct plume_op_args)ARGS({6}, {0}));
        plume_tensor *labels =
            OP(PLUME_OP_RESHAPE,
               ARGS({(int64_t)s[0], (int64_t)s[1], (int64_t)s[2], s[3] ? (int64_t)s[3] : 1}, {0}),
               all);
        plume_tensor *in[] = {&n.t[2], labels}, *t = NULL; /* logits [2, 3, 4] */
        struct pl_error err = {0};
        int r = pl_op_call(&n.tape, ops[i % 2], in, 2, NULL, &t, &err);

        assert_int_equal(r, given[i / 2].fits ? 0 : -EINVAL);
        if (r < 0 && !strstr(pl_error_text(&err), "is one transposed?: f64[2, 3, 4], i32[3, "))
            fail_msg("%s", pl_error_text(&err));
    }
    pl_tape_end(&n.tape);
    finish(&n);
}

static void test_numbers_belong_to_each_other(void **state)
{
    static const struct {
        int64_t full[5]; /* the rank, the shape */
        bool fits;
    } given[] = {{{3, 2, 3, 4}, true},  {{4, 2, 1, 3, 4}, true}, {{2, 2, 12}, true},
                 {{2, 24, 1}, true},    {{3, 2, 4, 3}, false},   {{3, 3, 2, 4}, false},
                 {{3, 4, 3, 2}, false}, {{4, 4, 3, 1, 2}, false}};
    struct net n, *net = &n;

    (void)state;
    make(&n, PL_REAL_F64);
    pl_tape_begin(&n.tape);
    for (size_t i = 0; i < PL_COUNT(given); i++) {
        struct plume_op_args args = {{0}, {1}};
        plume_tensor *in[] = {&n.t[2], NULL}, *t = NULL; /* [2, 3, 4] */
        struct pl_error err = {0};
        int r;

        memcpy(args.i, given[i].full, sizeof(given[i].full));
        in[1] = op(net, PLUME_OP_FULL, 0, NULL, args);
        r = pl_op_call(&n.tape, PLUME_OP_MSE, in, 2, NULL, &t, &err);
        if (r != (given[i].fits ? 0 : -EINVAL))
            fail_msg("case %zu: %d", i, r);
    }
    pl_tape_end(&n.tape);
    finish(&n);
}

static void test_shapes_that_ops_refuse(void **state)
{
    struct {
        enum plume_op op;
        size_t n;
        int in[3];
        struct plume_op_args args;
        const char *text;
    } bad[] = {
        {PLUME_OP_CAT,
         2,
         {2, 3},
         {{0}, {0}},
         "cat: along dimension 0, input 1 differs from input 0 in another dimension, or in its "
         "type: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_CAT,
         2,
         {2, 3},
         {{3}, {0}},
         "cat: there is no dimension 3: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_CAT,
         2,
         {4, 1},
         {{0}, {0}},
         "cat: along dimension 0, input 1 differs from input 0 in another dimension, or in its "
         "type: i32[4], f64[6]"},
        {PLUME_OP_MSE,
         2,
         {2, 3},
         {{0}, {0}},
         "mse: the two have other dimensions: is one transposed?: f64[2, 3, 4], f64[2, 4, 3]"},
        {PLUME_OP_ARANGE, 0, {0}, {{0}, {0}}, "arange: 0 is not a valid number of labels"},
        {PLUME_OP_RANGE, 0, {0}, {{0, 1, 1}, {0}}, "range: 0 is not a valid number of labels"},
        {PLUME_OP_RANGE,
         0,
         {0},
         {{3, INT32_MAX - 1, 1}, {0}},
         "range: 3 numbers from 2147483646 by 1: not all of them have 32 bits"},
        {PLUME_OP_RANGE,
         0,
         {0},
         {{2, 0, INT64_MIN}, {0}},
         "range: 2 numbers from 0 by -9223372036854775808: not all of them have 32 bits"},
        {PLUME_OP_EXPAND,
         1,
         {1},
         {{2, 4, 5}, {0}},
         "expand: only dimensions of 1 are repeated, and dimension 1 is to be 5: f64[6]"},
        {PLUME_OP_EXPAND,
         1,
         {0},
         {{1, 24}, {0}},
         "expand: needs real numbers, and at most 1 dimensions: f64[4, 6]"},
        {PLUME_OP_EXPAND, 1, {1}, {{6, 6}, {0}}, "expand: 6 is not a number of dimensions"},
        {PLUME_OP_MATMUL,
         2,
         {2, 2},
         {{0}, {0}},
         "matmul: the inner dimensions differ: f64[2, 3, 4], f64[2, 3, 4]"},
        {PLUME_OP_RESHAPE,
         1,
         {0},
         {{2, 5, 0}, {0}},
         "reshape: the new shape [5, 0] has another number of elements: f64[4, 6]"},
        {PLUME_OP_SLICE,
         1,
         {0},
         {{1, 4, 3}, {0}},
         "slice: 3 elements from element 4 of dimension 1 on are asked for: f64[4, 6]"},
        {PLUME_OP_PERMUTE,
         1,
         {0},
         {{1, 1}, {0}},
         "permute: the order does not name each dimension once: element 1 is 1: f64[4, 6]"},
        {PLUME_OP_BINARY,
         2,
         {0, 2},
         {{0}, {0}},
         "add: from the last dimension on, sizes must be equal, or one of them 1: "
         "f64[4, 6], f64[2, 3, 4]"},
        {PLUME_OP_ATTENTION,
         1,
         {2},
         {{3}, {0}},
         "attention: the width cannot be shared among the heads: f64[2, 3, 4]"},
        {PLUME_OP_LAYERNORM,
         3,
         {2, 1, 1},
         {{0}, {0}},
         "layernorm: wanted: x [..., n], gamma [n], beta [n]: f64[2, 3, 4], f64[6], f64[6]"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {0}},
         "batchnorm: weight, bias and the two buffers must have one number per channel: f64[2, 3, "
         "4], f64[6], f64[6], f64[4, 6], f64[4, 6]"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {1e-5, -0.1}},
         "batchnorm: momentum is -0.1: must be above 0, or 0 for the default"},
        {PLUME_OP_BATCHNORM,
         5,
         {2, 1, 1},
         {{0}, {-1e-5}},
         "batchnorm: eps is -1e-05: must be above 0, or 0 for the default"},
        {PLUME_OP_BATCHNORM, 5, {2, 1, 1}, {{0}, {0, NAN}}, NULL},
        {PLUME_OP_LAYERNORM,
         1,
         {0},
         {{0}, {NAN}},
         "layernorm: eps is nan: must be above 0, or 0 for the default"},
        {PLUME_OP_LAYERNORM,
         1,
         {0},
         {{1}, {-1}},
         "rmsnorm: eps is -1: must be above 0, or 0 for the default"},
        {PLUME_OP_NORMALIZE,
         1,
         {0},
         {{0}, {INFINITY}},
         "normalize: eps is inf: must be above 0, or 0 for the default"},
        {PLUME_OP_DROPOUT, 1, {0}, {{0}, {1}}, "dropout: p is 1: must be 0 or more, and below 1"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{1}, {0}},
         "gather: the index must be i32 and have x's other dimensions: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 1},
         {{1, 1}, {0}},
         "gather: wanted: x, index i32[m]: f64[4, 6], f64[6]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{2, 1}, {0}},
         "gather: there is no dimension 2: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{-1, 1}, {0}},
         "gather: there is no dimension -1: f64[4, 6], i32[4]"},
        {PLUME_OP_GATHER, 2, {4, 4}, {{0, 1}, {0}}, "gather: needs real numbers: i32[4], i32[4]"},
        {PLUME_OP_GATHER,
         2,
         {0, 4},
         {{1, 1, 1, 1ll << 40}, {0}},
         "gather: 1099511627776 is not an index to skip"},
        {PLUME_OP_TOP,
         1,
         {0},
         {{1, 7}, {0}},
         "argmax or topk: 7 elements are asked for, and dimension 1 has 6"},
        {PLUME_OP_TOP,
         1,
         {0},
         {{1, 0}, {0}},
         "argmax or topk: 0 elements are asked for, and dimension 1 has 6"},
        {PLUME_OP_CONV,
         2,
         {0, 0},
         {{1, 0, 1, 0, 1}, {0}},
         "conv: wanted: x [batch, in, height, width], w with 4 dimensions, b [out]: f64[4, 6], "
         "f64[4, 6]"},
        {PLUME_OP_RESAMPLE, 1, {0}, {{1, 0, 0}, {0}}, "upsample or adaptive pool: 0 is not a size"},
        {PLUME_OP_RESAMPLE, 1, {0}, {{1, 2, 4}, {0}}, "upsample or adaptive pool: unknown mode 4"},
        {PLUME_OP_ROTARY,
         1,
         {2},
         {{4}, {100}},
         "rotary: the width is not an even number per head: f64[2, 3, 4]"},
        {PLUME_OP_ROTARY,
         1,
         {2},
         {{1, -1}, {100}},
         "rotary: the first position is -1, the base 100: must be 0 or more, and positive"},
        {PLUME_OP_RANDOM, 0, {0}, {{3, 1, 4}, {0}}, "uniform, bernoulli or normal: unknown kind 3"},
        {PLUME_OP_RANDOM, 0, {0}, {{0, 1, 4}, {1, 0}}, "uniform: the range from 1 to 0 is empty"},
        {PLUME_OP_RANDOM, 0, {0}, {{1, 1, 4}, {1.5}}, "bernoulli: p is 1.5: must be in [0, 1]"},
        {PLUME_OP_RANDOM, 0, {0}, {{2, 1, 4}, {0, -1}}, "normal: the standard deviation is -1"},
        {PLUME_OP_RANDOM, 0, {0}, {{0, 6, 4}, {0, 1}}, "uniform: 6 is not a number of dimensions"},
        {PLUME_OP_LSTM,
         2,
         {2, 0},
         {{0}, {0}},
         "lstm: wanted: [batch, time, 4 hidden], w [4 hidden, hidden]: f64[2, 3, 4], f64[4, 6]"},
        {PLUME_OP_GRU,
         2,
         {2, 0},
         {{0}, {0}},
         "gru: wanted: [batch, time, 3 hidden], w [3 hidden, hidden]: f64[2, 3, 4], f64[4, 6]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {2, 4, 3},
         {{0, 1}, {0}},
         "scatter_add: wanted: x, index i32, src with x's other dimensions: f64[2, 3, 4], i32[4], "
         "f64[2, 4, 3]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {1, 4, 1},
         {{0, 1}, {0}},
         "scatter_add: each element of src must have an index: f64[6], i32[4], f64[6]"},
        {PLUME_OP_SCATTER_ADD,
         3,
         {0, 4, 0},
         {{2}, {0}},
         "scatter_add: there is no dimension 2: f64[4, 6], i32[4], f64[4, 6]"},
        {PLUME_OP_WHOLE,
         2,
         {4, 0},
         {{0}, {0}},
         "whole_add: needs numbers of i32: i32[4], f64[4, 6]"},
        {PLUME_OP_WHOLE,
         2,
         {4, 4},
         {{10}, {0}},
         "an operation of whole numbers: unknown operation 10"},
        {PLUME_OP_CUMSUM, 1, {4}, {{0}, {0}}, "cumsum: needs real numbers: i32[4]"},
        {PLUME_OP_CUMSUM, 1, {0}, {{5}, {0}}, "cumsum: there is no dimension 5: f64[4, 6]"},
        {PLUME_OP_ONE_HOT, 1, {4}, {{0}, {0}}, "one_hot: 0 is not a number of classes"},
        {PLUME_OP_ONE_HOT,
         1,
         {0},
         {{3}, {0}},
         "one_hot: needs labels of i32, and room for one more dimension: f64[4, 6]"},
        {PLUME_OP_EMBEDDING, 2, {4, 4}, {{0}, {0}}, NULL},
        {PLUME_OP_SOFTMAX, 1, {4}, {{0}, {0}}, "softmax: needs rows of real numbers: i32[4]"},
    };
    struct net net;

    (void)state;
    make(&net, PL_REAL_F64);
    for (size_t i = 0; i < PL_COUNT(bad); i++) {
        struct pl_error err = {0};
        plume_tensor *in[5], *t = NULL;

        for (size_t k = 0; k < 5; k++)
            in[k] = &net.t[k < 3 ? bad[i].in[k] : 0];
        assert_int_equal(pl_op_call(&net.tape, bad[i].op, in, bad[i].n, &bad[i].args, &t, &err),
                         -EINVAL);
        if (bad[i].text)
            assert_string_equal(pl_error_text(&err), bad[i].text);
        assert_null(t);
    }
    assert_int_equal(net.tape.n, 0);
    finish(&net);
}

/* A batch's labels out of range are named, for each op that reads labels; those that the op skips
 * are none. */
static void test_labels_out_of_range_are_named(void **state)
{
    static const struct {
        enum plume_op op;
        int x;
        struct plume_op_args args;
        const char *text;
    } ops[] = {
        {PLUME_OP_GATHER,
         0,
         {{1, 1}, {0}},
         "label 17 of row 2 is not in [0, 5], the classes of gather"},
        {PLUME_OP_GATHER, 0, {{1, 1, 1, 17}, {0}}, NULL},
        {PLUME_OP_SCATTER_ADD,
         0,
         {{0, 1}, {0}},
         "label 17 of row 2 is not in [0, 3], the classes of scatter_add"},
        {PLUME_OP_EMBEDDING,
         5,
         {{0}, {0}},
         "label 17 of row 2 is not in [0, 4], the classes of embedding"},
        {PLUME_OP_CROSS_ENTROPY,
         0,
         {{0}, {0}},
         "label 17 of row 2 is not in [0, 5], the classes of cross_entropy"},
        {PLUME_OP_ONE_HOT,
         -1,
         {{3}, {0}},
         "label 17 of row 2 is not in [0, 2], the classes of one_hot"},
    };

    (void)state;
    for (size_t i = 0; i < PL_COUNT(ops); i++) {
        struct net n, *net = &n;
        struct pl_error err = {0};
        plume_tensor *in[3], *y;
        bool scatters = ops[i].op == PLUME_OP_SCATTER_ADD;
        int r;

        make(&n, PL_REAL_F64);
        n.labels[0] = n.labels[1] = n.labels[3] = 1;
        n.labels[2] = 17;
        in[0] = in[2] = ops[i].x < 0 ? &n.t[4] : &n.t[ops[i].x];
        in[1] = &n.t[4];
        pl_tape_begin(&n.tape);
        y = op(net, ops[i].op, ops[i].x < 0 ? 1 : scatters ? 3 : 2, in, ops[i].args);
        pl_tape_end(&n.tape);
        assert_int_equal(pl_tape_prepare(&n.tape, &y, 1, 0, NULL), 0);
        assert_int_equal(pl_tape_forward(&n.tape, NULL), 0);
        r = pl_op_check_labels(&n.tape, &err);
        assert_int_equal(r, ops[i].text ? -EDOM : 0);
        if (ops[i].text)
            assert_string_equal(pl_error_text(&err), ops[i].text);
        for (size_t k = 0; k < y->count && scatters; k++)
            assert_true(isnan(((const double *)pl_tensor_data(y))[k]));
        finish(&n);
    }
}

/* The second is repeated along the first's leading dimensions, and in no other way. */
static void test_whole_numbers_are_repeated_from_the_front(void **state)
{
    static const struct {
        int64_t rank, n[2];
        bool fits;
    } seconds[] = {{1, {1}, true},  {1, {4}, true},     {2, {3, 4}, true},  {1, {3}, false},
                   {1, {2}, false}, {2, {3, 1}, false}, {2, {1, 4}, false}, {1, {12}, false}};

    (void)state;
    for (size_t i = 0; i < PL_COUNT(seconds); i++) {
        struct net n, *net = &n;
        struct plume_op_args args = {{1, 0, 0}, {0}}, shape = {{seconds[i].rank}, {0}};
        plume_tensor *in[2], *y = NULL;

        make(&n, PL_REAL_F64);
        pl_tape_begin(&n.tape);
        args.i[0] = 12;
        in[0] = op(net, PLUME_OP_RANGE, 0, NULL, args);
        in[0] = OP(PLUME_OP_RESHAPE, ARGS({2, 3, 4}, {0}), in[0]);
        args.i[0] = seconds[i].n[0] * PL_MAX(seconds[i].n[1], 1);
        in[1] = op(net, PLUME_OP_RANGE, 0, NULL, args);
        shape.i[1] = seconds[i].n[0];
        shape.i[2] = seconds[i].n[1];
        in[1] = op(net, PLUME_OP_RESHAPE, 1, &in[1], shape);
        assert_int_equal(pl_op_call(&n.tape, PLUME_OP_WHOLE, in, 2, NULL, &y, NULL),
                         seconds[i].fits ? 0 : -EINVAL);
        pl_tape_end(&n.tape);
        finish(&n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolutions_that_are_refused),
        cmocka_unit_test(test_labels_belong_to_their_rows),
        cmocka_unit_test(test_numbers_belong_to_each_other),
        cmocka_unit_test(test_shapes_that_ops_refuse),
        cmocka_unit_test(test_labels_out_of_range_are_named),
        cmocka_unit_test(test_whole_numbers_are_repeated_from_the_front),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
