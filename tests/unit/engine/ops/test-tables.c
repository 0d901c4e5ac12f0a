/* SPDX-License-Identifier: MIT */
/* Layers of rows of a table, which are done on the table (op_product.c): values and gradients
 * against those of the same ops in the module's order, and the cases that keep that order. The
 * numbers are PyTorch's in tests/engine/twins.bats (lstm) and tests/graphs. */
#include "tests/unit/engine/engine_net.h"

#define VOCAB 5
#define WIDTH 6
#define OUT 8 /* 4 gates of 2 units */

enum { TABLE, W, B, W_HH, IDS };

/* Gives a leaf another shape of as many elements. */
static void shape(plume_tensor *t, size_t rows, size_t columns)
{
    plume_tensor was = *t;

    assert_int_equal(pl_tensor_init(t, was.dtype, 2, (size_t[]){rows, columns}), 0);
    assert_int_equal(t->count, was.count);
    t->data = was.data;
    t->grad = was.grad;
    t->wants_grad = was.wants_grad;
    t->is_param = was.is_param;
}

static void make(struct net *net, enum pl_real real, size_t positions)
{
    *net = (struct net){0};
    pl_tape_init(&net->tape, pl_device_cpu(), real, true);
    leaf(net, real, 2, (size_t[]){VOCAB, WIDTH});
    leaf(net, real, 2, (size_t[]){OUT, WIDTH});
    leaf(net, real, 1, (size_t[]){OUT});
    leaf(net, real, 2, (size_t[]){OUT, OUT / 4});
    labels(net, positions, VOCAB);
    shape(&net->t[IDS], 2, positions / 2);
}

static plume_tensor *rows(struct net *net)
{
    return CALL(PLUME_OP_EMBEDDING, 0, &net->t[TABLE], &net->t[IDS]);
}

/* Each element has another gradient. */
static plume_tensor *loss_of(struct net *net, plume_tensor *y)
{
    struct plume_op_args args = {{0, 9, 0, 1}, {0}}; /* the mean */
    plume_tensor *mean = NULL, *in[] = {CALL(PLUME_OP_UNARY, PLUME_TANH, y)};

    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_REDUCE, in, 1, &args, &mean, NULL), 0);
    return mean;
}

static int64_t act;

static plume_tensor *f_layer(struct net *net)
{
    plume_tensor *x = rows(net);

    return loss_of(net, CALL(PLUME_OP_LINEAR, act, x, &net->t[W], &net->t[B]));
}

static plume_tensor *f_no_bias(struct net *net)
{
    plume_tensor *x = rows(net);

    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, x, &net->t[W]));
}

static plume_tensor *f_lstm(struct net *net)
{
    plume_tensor *x = rows(net), *gates = CALL(PLUME_OP_LINEAR, 0, x, &net->t[W], &net->t[B]);

    return loss_of(net, CALL(PLUME_OP_LSTM, 0, gates, &net->t[W_HH]));
}

/* Two layers of the same rows, which a third op reads, too. */
static plume_tensor *f_more_readers(struct net *net)
{
    plume_tensor *x = rows(net);
    plume_tensor *a = CALL(PLUME_OP_LINEAR, PLUME_RELU, x, &net->t[W], &net->t[B]);
    plume_tensor *b = CALL(PLUME_OP_LINEAR, 0, x, &net->t[W]);
    plume_tensor *loss = loss_of(net, CALL(PLUME_OP_BINARY, 2, a, b)), *other = loss_of(net, x);

    return CALL(PLUME_OP_BINARY, 0, loss, other);
}

/* The table is also the weight of the last layer, as a language model's may be. */
static plume_tensor *f_tied(struct net *net)
{
    plume_tensor *x = rows(net);
    plume_tensor *h = CALL(PLUME_OP_LINEAR, PLUME_GELU, x, &net->t[W], &net->t[B]);
    plume_tensor *back = CALL(PLUME_OP_MATMUL, 0, h, &net->t[W]); /* [..., width] */

    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, back, &net->t[TABLE]));
}

/* The table is also the weight of the layer of its own rows. */
static plume_tensor *f_own_weight(struct net *net)
{
    plume_tensor *x = rows(net);

    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, x, &net->t[TABLE]));
}

/* The table is the output of another op. */
static plume_tensor *f_computed(struct net *net)
{
    plume_tensor *table = CALL(PLUME_OP_UNARY, PLUME_TANH, &net->t[TABLE]);
    plume_tensor *x = CALL(PLUME_OP_EMBEDDING, 0, table, &net->t[IDS]);
    plume_tensor *layer = CALL(PLUME_OP_LINEAR, 0, x, &net->t[W], &net->t[B]);
    plume_tensor *loss = loss_of(net, layer), *other = loss_of(net, x);

    return CALL(PLUME_OP_BINARY, 0, loss, other);
}

/* A layer, and another one of what it makes. */
static plume_tensor *f_two_layers(struct net *net)
{
    plume_tensor *h = CALL(PLUME_OP_LINEAR, PLUME_TANH, rows(net), &net->t[W], &net->t[B]);
    plume_tensor *w = CALL(PLUME_OP_UNARY, PLUME_TANH, &net->t[W_HH]); /* [8, 2] */
    struct plume_op_args args = {{2, OUT / 4, OUT}, {0}};
    plume_tensor *w2 = NULL, *in[] = {w};

    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_RESHAPE, in, 1, &args, &w2, NULL), 0);
    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, h, w2));
}

static const struct {
    const char *name;
    function f;
    size_t layers; /* that are done on the table */
} nets[] = {
    {"layer", f_layer, 1},       {"no bias", f_no_bias, 1},
    {"lstm", f_lstm, 1},         {"more readers", f_more_readers, 2},
    {"tied", f_tied, 1},         {"own weight", f_own_weight, 1},
    {"computed", f_computed, 1},
};

/* Layers on as many rows as the table has. */
static size_t layers_on_table(const struct pl_tape *tape)
{
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++)
        n += strcmp(tape->nodes[i].op->name, "linear") == 0 && tape->nodes[i].out->rank == 2 &&
             tape->nodes[i].out->shape[0] == VOCAB;
    return n;
}

static void test_gradients_are_right(void **state)
{
    (void)state;
    for (size_t i = 0; i < PL_COUNT(nets); i++)
        for (act = 0; act <= (nets[i].f == f_layer ? (int64_t)PLUME_SIGMOID : 0); act++) {
            struct net net;

            if (act == PLUME_RELU) /* its kink; the next test has it */
                continue;
            make(&net, PL_REAL_F64, 14);
            print_message("# %s, activation %d\n", nets[i].name, (int)act);
            check_gradients(&net, nets[i].f);
            assert_int_equal(layers_on_table(&net.tape), nets[i].layers);
            finish(&net);
        }
    act = 0;
}

/* Sums in another order: 64 roundings of the largest number. Returns the largest difference. */
static double apart(enum pl_real real, const plume_tensor *a, const plume_tensor *b)
{
    double most = 0, largest = 0;

    for (size_t i = 0; i < a->count; i++) {
        double x = real == PL_REAL_F64 ? ((double *)a->grad)[i] : (double)((float *)a->grad)[i];
        double y = real == PL_REAL_F64 ? ((double *)b->grad)[i] : (double)((float *)b->grad)[i];

        most = fmax(most, fabs(x - y));
        largest = fmax(largest, fabs(y));
    }
    return most / fmax(largest, 1e-3);
}

static void test_is_the_modules_order_but_for_roundings(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * PL_COUNT(nets); i++) {
        enum pl_real real = i % 2 ? PL_REAL_F64 : PL_REAL_F32;
        const double rounding = real == PL_REAL_F64 ? 0x1p-53 : 0x1p-24;
        struct net net[2];
        double loss[2];

        for (act = 0; act <= (nets[i / 2].f == f_layer ? (int64_t)PLUME_SIGMOID : 0); act++) {
            for (int k = 0; k < 2; k++) {
                plume_tensor *t;

                make(&net[k], real, 60);
                net[k].tape.on_tables = k == 0;
                t = forward(&net[k], nets[i / 2].f);
                loss[k] = on_device_scalar(t);
                assert_int_equal(backward(&net[k], t), 0);
            }
            print_message("# %s: %.17g, %.17g\n", nets[i / 2].name, loss[0], loss[1]);
            assert_true(fabs(loss[0] - loss[1]) <= 64 * rounding * fmax(1, fabs(loss[1])));
            for (size_t t = 0; t < IDS; t++)
                assert_true(apart(real, &net[0].t[t], &net[1].t[t]) <= 64 * rounding);
            assert_int_equal(layers_on_table(&net[0].tape), nets[i / 2].layers);
            assert_int_equal(layers_on_table(&net[1].tape), 0);
            assert_true(pl_tape_flops(&net[0].tape, false) < pl_tape_flops(&net[1].tape, false));
            assert_true(pl_tape_flops(&net[0].tape, true) < pl_tape_flops(&net[1].tape, true));
            finish(&net[0]);
            finish(&net[1]);
        }
    }
    act = 0;
}

/* A row that no id names may hold anything, as it may in the module's order. */
static void test_rows_that_no_id_names_are_not_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2 * PL_COUNT(nets); i++) {
        double value = i % 2 ? (double)NAN : -INFINITY;
        function f = nets[i / 2].f;

        if (f == f_tied || f == f_own_weight || (f == f_computed && isnan(value)))
            continue; /* another op reads the row */
        for (act = 0; act <= (f == f_layer ? (int64_t)PLUME_SIGMOID : 0); act++) {
            struct net net[2];

            for (int k = 0; k < 2; k++) {
                plume_tensor *table = &net[k].t[TABLE];

                make(&net[k], PL_REAL_F64, 20);
                net[k].tape.on_tables = k == 0;
                for (size_t at = 0; at < 20; at++)
                    net[k].labels[at] %= VOCAB - 1;
                for (size_t d = 0; d < WIDTH; d++)
                    ((double *)table->data)[(VOCAB - 1) * WIDTH + d] = value;
                assert_int_equal(backward(&net[k], forward(&net[k], f)), 0);
                for (size_t d = 0; d < WIDTH; d++)
                    assert_true(((double *)table->grad)[(VOCAB - 1) * WIDTH + d] == 0);
            }
            print_message("# %s, activation %d, %g\n", nets[i / 2].name, (int)act, value);
            assert_int_equal(layers_on_table(&net[0].tape), nets[i / 2].layers);
            for (size_t t = 0; t < IDS; t++)
                for (size_t e = 0; e < net[0].t[t].count; e++)
                    assert_true(fabs(((double *)net[0].t[t].grad)[e] -
                                     ((double *)net[1].t[t].grad)[e]) <= 1e-13);
            finish(&net[0]);
            finish(&net[1]);
        }
    }
    act = 0;
}

/* Two layers, one after the other, or beside each other, have one such copy of the table. */
static void test_layers_share_the_named_rows(void **state)
{
    struct net net;

    (void)state;
    for (int k = 0; k < 2; k++) {
        size_t copies = 0;

        make(&net, PL_REAL_F64, 20);
        check_gradients(&net, k ? f_two_layers : f_more_readers);
        assert_int_equal(layers_on_table(&net.tape), 2);
        for (size_t i = 0; i < net.tape.n; i++)
            copies += strcmp(net.tape.nodes[i].op->name, "copy") == 0;
        assert_int_equal(copies, 1);
        finish(&net);
    }
}

/* A frozen table, a frozen weight: the others' gradients stay the same, and it has none. */
static void test_frozen_parameters(void **state)
{
    (void)state;
    for (size_t frozen = TABLE; frozen <= B; frozen++) {
        struct net net[2];

        for (int k = 0; k < 2; k++) {
            make(&net[k], PL_REAL_F64, 20);
            net[k].tape.on_tables = k == 0;
            net[k].t[frozen].wants_grad = false;
            assert_int_equal(backward(&net[k], forward(&net[k], f_layer)), 0);
        }
        assert_int_equal(layers_on_table(&net[0].tape), 1);
        for (size_t t = 0; t < IDS; t++)
            assert_true(apart(PL_REAL_F64, &net[0].t[t], &net[1].t[t]) <= 1e-14);
        for (size_t i = 0; i < net[0].t[frozen].count; i++)
            assert_true(((double *)net[0].t[frozen].grad)[i] == 0);
        finish(&net[0]);
        finish(&net[1]);
    }
}

/* The node that nobody reads has no memory and is not run; a second step records nothing. */
static void test_the_embedding_is_dropped(void **state)
{
    const struct pl_node *node;
    struct net net;

    (void)state;
    make(&net, PL_REAL_F32, 20);
    forward(&net, f_layer);
    node = &net.tape.nodes[0];
    assert_string_equal(node->op->name, "embedding");
    assert_true(node->unread);
    assert_null(node->out->data);
    forward(&net, f_layer);
    assert_int_equal(net.tape.recordings, 1);
    assert_int_equal(net.tape.plans, 1);
    forward(&net, f_more_readers); /* which read it */
    assert_false(net.tape.nodes[0].unread);
    assert_non_null(net.tape.nodes[0].out->data);
    finish(&net);
}

static plume_tensor *f_reshaped(struct net *net)
{
    plume_tensor *x = NULL, *in[] = {rows(net)};
    struct plume_op_args args = {{2, (int64_t)net->t[IDS].count, WIDTH}, {0}};

    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_RESHAPE, in, 1, &args, &x, NULL), 0);
    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, x, &net->t[W], &net->t[B]));
}

/* All positions of a sample are one row of the layer. */
static plume_tensor *f_flat(struct net *net)
{
    plume_tensor *x = rows(net);

    return loss_of(net, CALL(PLUME_OP_LINEAR, 0, x, &net->t[W]));
}

static void test_the_modules_order_stays(void **state)
{
    struct net net;

    (void)state;
    make(&net, PL_REAL_F64, 2 * VOCAB - 2); /* too few positions */
    forward(&net, f_layer);
    assert_int_equal(layers_on_table(&net.tape), 0);
    assert_false(net.tape.nodes[0].unread);
    finish(&net);
    make(&net, PL_REAL_F64, 2 * VOCAB);
    forward(&net, f_layer);
    assert_int_equal(layers_on_table(&net.tape), 1);
    finish(&net);
    make(&net, PL_REAL_F64, 20); /* an op in between */
    check_gradients(&net, f_reshaped);
    assert_int_equal(layers_on_table(&net.tape), 0);
    finish(&net);
    make(&net, PL_REAL_F32, 20);
    net.tape.amp_dtype = PLUME_BF16;
    forward(&net, f_layer);
    assert_int_equal(layers_on_table(&net.tape), 0);
    finish(&net);
    make(&net, PL_REAL_F64, 20);
    shape(&net.t[W], OUT / 2, 2 * WIDTH);
    shape(&net.t[IDS], 10, 2);
    check_gradients(&net, f_flat);
    assert_int_equal(layers_on_table(&net.tape), 0);
    finish(&net);
}

/* A row that the table does not have is one of the batch, and is named as before. */
static void test_an_id_out_of_range(void **state)
{
    struct pl_error err = {0};
    struct net net;

    (void)state;
    make(&net, PL_REAL_F32, 20);
    net.labels[13] = VOCAB;
    assert_true(isnan(on_device_scalar(forward(&net, f_layer))));
    assert_int_equal(pl_op_check_labels(&net.tape, &err), -EDOM);
    assert_string_equal(pl_error_text(&err),
                        "label 5 of row 13 is not in [0, 4], the classes of embedding");
    finish(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_right),
        cmocka_unit_test(test_is_the_modules_order_but_for_roundings),
        cmocka_unit_test(test_rows_that_no_id_names_are_not_read),
        cmocka_unit_test(test_layers_share_the_named_rows),
        cmocka_unit_test(test_frozen_parameters),
        cmocka_unit_test(test_the_embedding_is_dropped),
        cmocka_unit_test(test_the_modules_order_stays),
        cmocka_unit_test(test_an_id_out_of_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
