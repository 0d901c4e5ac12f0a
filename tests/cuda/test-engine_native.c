/* SPDX-License-Identifier: MIT */
/* The nodes that a tape runs in 16 bits itself, on a fake device: its memory is the host's, its
 * kernels are the emulated CUDA ones, and each table counts its calls. */
#include "kernels/cuda/cuda.h"
#include "runtime/engine/tape/tape_private.h"
#include "tests/unit/engine/engine_cases.h"
#include "tests/unit/engine/engine_random.h"

#define REALS (PL_REAL_F16 + 1)

enum {
#define NUMBER(function, args) AT_##function,
    PL_KERNEL_LIST(NUMBER)
#undef NUMBER
        KERNELS
};

static unsigned calls[REALS][KERNELS];
static bool has_16_bits; /* the device that is made next */

#define WRAP(real, function, args)                                                                 \
    static void real##_##function(const struct pl_##args##_args *a)                                \
    {                                                                                              \
        calls[PL_REAL_##real][AT_##function]++;                                                    \
        pl_kernels_cuda(PL_REAL_##real)->function(a);                                              \
    }
#define WRAP_F32(function, args) WRAP(F32, function, args)
#define WRAP_F64(function, args) WRAP(F64, function, args)
#define WRAP_BF16(function, args) WRAP(BF16, function, args)
#define WRAP_F16(function, args) WRAP(F16, function, args)
PL_KERNEL_LIST(WRAP_F32)
PL_KERNEL_LIST(WRAP_F64)
PL_KERNEL_LIST(WRAP_BF16)
PL_KERNEL_LIST(WRAP_F16)

static const struct pl_kernels tables[REALS] = {
#define SET_F32(function, args) .function = F32_##function,
#define SET_F64(function, args) .function = F64_##function,
#define SET_BF16(function, args) .function = BF16_##function,
#define SET_F16(function, args) .function = F16_##function,
    [PL_REAL_F32] = {.name = "f32", .real = PL_REAL_F32, PL_KERNEL_LIST(SET_F32)},
    [PL_REAL_F64] = {.name = "f64", .real = PL_REAL_F64, PL_KERNEL_LIST(SET_F64)},
    [PL_REAL_BF16] = {.name = "bf16", .real = PL_REAL_BF16, PL_KERNEL_LIST(SET_BF16)},
    [PL_REAL_F16] = {.name = "f16", .real = PL_REAL_F16, PL_KERNEL_LIST(SET_F16)},
};

static const struct pl_kernels *fake_kernels(struct pl_device *dev, enum pl_real real)
{
    return has_16_bits || real <= PL_REAL_F64 ? &tables[real] : NULL;
}

static struct pl_device *fake_device(void)
{
    static struct pl_device_ops ops;
    static struct pl_device dev = {.ops = &ops, .name = "fake"};

    ops = *pl_device_cpu()->ops;
    ops.host = false;
    ops.kernels = fake_kernels;
    memset(calls, 0, sizeof(calls));
    return &dev;
}

static unsigned sum_of(enum pl_real real)
{
    unsigned sum = 0;

    for (size_t i = 0; i < KERNELS; i++)
        sum += calls[real][i];
    return sum;
}

static const struct {
    enum plume_dtype dtype;
    enum pl_real real;
    double rounding;
} lows[] = {{PLUME_BF16, PL_REAL_BF16, 0x1p-9}, {PLUME_F16, PL_REAL_F16, 0x1p-12}};

/* The net of engine_cases.h. */
static void start(struct net *net, struct pl_device *dev, size_t low, bool pure)
{
    make_on(net, dev, PL_REAL_F32);
    net->tape.amp_dtype = lows[low].dtype;
    net->tape.amp_o3 = pure;
}

/* All memory is NaNs before. */
static plume_tensor *run(struct net *net, function f)
{
    plume_tensor *loss;

    pl_tape_begin(&net->tape);
    loss = f(net);
    pl_tape_end(&net->tape);
    assert_int_equal(pl_tape_prepare(&net->tape, &loss, 1, 1, NULL), 0);
    memset(net->tape.memory, 0xff, net->tape.memory_bytes);
    assert_int_equal(pl_tape_forward(&net->tape, NULL), 0);
    assert_int_equal(backward(net, loss), 0);
    return loss;
}

static plume_tensor *f_autocast(struct net *net)
{
    plume_tensor *w = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]);
    plume_tensor *y = OP(PLUME_OP_LINEAR, ARGS({PLUME_GELU}, {0}), &net->t[0], w);

    return OP(PLUME_OP_CROSS_ENTROPY, NONE, y, &net->t[4]);
}

/* Casts from the tensors to the tensors; the product in 16 bits, whose loss in f32 reads them. */
static void test_autocast_runs_products_in_16_bits(void **state)
{
    has_16_bits = true;
    for (size_t low = 0; low < PL_COUNT(lows); low++) {
        const unsigned *f32 = calls[PL_REAL_F32], *half = calls[lows[low].real];
        struct net net;

        start(&net, fake_device(), low, false);
        net.labels[0] = net.labels[1] = net.labels[2] = net.labels[3] = 1; /* of 4 */
        run(&net, f_autocast);
        assert_int_equal(half[AT_linear_forward], 1);
        assert_int_equal(half[AT_linear_backward], 1);
        assert_int_equal(half[AT_cross_entropy_forward], 1);
        assert_int_equal(half[AT_cross_entropy_backward], 1);
        assert_int_equal(sum_of(lows[low].real), 4);
        assert_int_equal(f32[AT_narrow], 2); /* x, w */
        assert_int_equal(f32[AT_widen], 2);  /* their gradients */
        assert_int_equal(sum_of(PL_REAL_F32), 4);
        for (size_t i = 0; i < net.tape.n; i++)
            assert_int_equal(pl_node_f32_bytes(&net.tape.nodes[i], true), 0);
        finish(&net);
    }
}

static double half_at(const plume_tensor *t, const void *of, size_t i)
{
    uint16_t bits = ((const uint16_t *)of)[i];

    return t->dtype == PLUME_F16 ? pl_f32_of_f16(bits) : pl_f32_of_bf16(bits);
}

/* Of 16-bit logits, in f64: the mean over rows, and the gradient's largest error. */
static double loss_of(const struct net *net, const plume_tensor *y, size_t low, double *apart)
{
    size_t rows = y->shape[0], n = y->shape[1];
    double loss = 0;

    *apart = 0;
    for (size_t r = 0; r < rows; r++) {
        size_t label = (size_t)net->labels[r];
        double sum = 0;

        for (size_t i = r * n; i < (r + 1) * n; i++)
            sum += exp(half_at(y, pl_tensor_data(y), i));
        loss += (log(sum) - half_at(y, pl_tensor_data(y), r * n + label)) / (double)rows;
        for (size_t i = 0; i < n; i++) {
            double p = exp(half_at(y, pl_tensor_data(y), r * n + i)) / sum;
            double want = (p - (i == label)) / (double)rows;
            double off = fabs(half_at(y, pl_tensor_grad(y), r * n + i) - want);

            *apart = fmax(*apart, (off - 1e-7) / (fabs(want) * lows[low].rounding));
        }
    }
    return loss;
}

/* Only the gradient is rounded, and only once. */
static void test_losses_of_16_bit_logits_are_f32(void **state)
{
    has_16_bits = true;
    for (size_t low = 0; low < PL_COUNT(lows); low++) {
        struct net n, *net = &n;
        plume_tensor *w, *y, *loss, *hits;
        double apart;

        start(net, fake_device(), low, false);
        net->tape.no_reuse = true;
        pl_tape_begin(&net->tape);
        w = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]);
        y = OP(PLUME_OP_LINEAR, NONE, &net->t[0], w);
        loss = OP(PLUME_OP_CROSS_ENTROPY, NONE, y, &net->t[4]);
        hits = OP(PLUME_OP_CORRECT, NONE, y, &net->t[4]);
        pl_tape_end(&net->tape);
        for (size_t r = 0; r < 4; r++)
            net->labels[r] = (int32_t)r % 2;
        assert_int_equal(pl_tape_prepare(&net->tape, (plume_tensor *[]){loss, hits}, 2, 1, NULL),
                         0);
        memset(net->tape.memory, 0xff, net->tape.memory_bytes);
        assert_int_equal(pl_tape_forward(&net->tape, NULL), 0);
        assert_int_equal(backward(net, loss), 0);
        assert_int_equal(y->dtype, lows[low].dtype);
        assert_int_equal(loss->dtype, PLUME_F32);
        assert_int_equal(hits->dtype, PLUME_F32);
        assert_int_equal(calls[lows[low].real][AT_correct], 1);
        assert_true(fabs(on_device_scalar(loss) - loss_of(net, y, low, &apart)) < 1e-6);
        assert_true(apart <= 2); /* `rounding` is of the largest of a power of two */
        assert_true(on_device_scalar(hits) >= 0 && on_device_scalar(hits) <= 4);
        finish(net);
    }
}

/* Kernels that the tape's own table may run although all is in 16 bits. */
static bool may_be_wide(size_t kernel)
{
    return kernel == AT_widen || kernel == AT_narrow || kernel == AT_arange ||
           kernel == AT_copy || /* casts of what is not dense */
           kernel == AT_top ||  /* its result is of integers: no type of 16 bits is its own */
           kernel == AT_whole;  /* so may its result be */
}

/* As f_matmul's: its gradient is a sum of products, so all of it is in f32. */
static bool is_wide(const struct net *net)
{
    bool any = false;

    for (size_t i = 0; i < net->tape.n; i++)
        any |= net->tape.nodes[i].op->in_f32;
    return any;
}

/* Gradients against f64's, as in test-engine_ops.c and with its tolerances: also with autocast
 * only, where some ops are in f32. */
static void test_every_op_in_16_bits(void **state)
{
    has_16_bits = true;
    for (size_t i = 0; i < PL_COUNT(cases); i++) {
        struct net want, got;

        make_on(&want, pl_device_cpu(), PL_REAL_F64);
        run(&want, cases[i].f);
        for (size_t k = 0; k < 2 * PL_COUNT(lows); k++) {
            size_t low = k / 2;
            bool pure = k % 2;
            double apart;

            print_message("# %s, %s%s\n", cases[i].name, pl_dtype_name(lows[low].dtype),
                          pure ? " alone" : "");
            start(&got, fake_device(), low, pure);
            run(&got, cases[i].f);
            assert_true(!pure || sum_of(lows[low].real) > 0);
            for (size_t n = 0; pure && !is_wide(&got) && n < KERNELS; n++)
                if (calls[PL_REAL_F32][n] && !may_be_wide(n))
                    fail_msg("kernel %zu of f32 is called", n);
            apart = gradient_apart(&got, &want);
            if (cases[i].roundings > 0 && !(apart <= cases[i].roundings * lows[low].rounding))
                fail_msg("gradients %g apart", apart);
            finish(&got);
        }
        finish(&want);
    }
}

/* Only it has f32 copies, of 16-bit tensors that have a table. */
static void test_what_sums_between_its_kernels_is_in_f32(void **state)
{
    struct net n, *net = &n;
    plume_tensor *b, *wide, *native;

    has_16_bits = true;
    start(net, fake_device(), 0, true);
    pl_tape_begin(&net->tape);
    b = OP(PLUME_OP_SLICE, ARGS({0, 1, 1}, {0}), &net->t[3]);
    b = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 3}, {0}), b);
    native = OP(PLUME_OP_MATMUL, ARGS({0, 0}, {0}), &net->t[2], b);
    wide = OP(PLUME_OP_MATMUL, ARGS({1, 1}, {0}), &net->t[2], b);
    assert_ptr_equal(net->tape.nodes[native->node].k, &tables[PL_REAL_BF16]);
    assert_ptr_equal(net->tape.nodes[wide->node].k, &tables[PL_REAL_F32]);
    assert_int_equal(pl_node_f32_bytes(&net->tape.nodes[native->node], true), 0);
    assert_true(pl_node_f32_bytes(&net->tape.nodes[wide->node], true) > 0);
    finish(net);
}

/* Memory kept from forward to backward has the size for the node's table. */
static void test_what_ops_keep(void **state)
{
    has_16_bits = true;
    for (int low = 0; low < 2; low++) {
        struct net n, *net = &n;
        plume_tensor *t[7];
        size_t want[] = {2 * 4 * 4,               /* mean and rstd of rows */
                         4 * 4,                   /* lengths of rows */
                         2 * 3 * 4,               /* mean and inv_std of channels */
                         2 * 2 * 3 * 4,           /* a logarithm a head and time */
                         4 * 4 * (low ? 2u : 4u), /* gelu's inputs */
                         2 * 3 * 4,               /* which of a window: bytes */
                         2 * 4 * 4};              /* largest and sum of rows */

        start(net, fake_device(), 0, true);
        if (!low)
            net->tape.amp_dtype = 0;
        pl_tape_begin(&net->tape);
        t[0] = OP(PLUME_OP_LAYERNORM, NONE, &net->t[0]);
        t[1] = OP(PLUME_OP_NORMALIZE, NONE, &net->t[0]);
        t[2] = OP(PLUME_OP_SLICE, ARGS({0, 0, 3}, {0}), &net->t[1]);
        t[2] = OP(PLUME_OP_BATCHNORM, NONE, &net->t[2], t[2], t[2], &net->t[8], &net->t[9]);
        t[3] = OP(PLUME_OP_ATTENTION, ARGS({2, 0}, {0}), &net->t[2], &net->t[2], &net->t[2]);
        t[4] = OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]);
        t[4] = OP(PLUME_OP_LINEAR, ARGS({PLUME_GELU}, {0}), &net->t[0], t[4]);
        t[5] = OP(PLUME_OP_RESHAPE, ARGS({4, 1, 2, 3, 4}, {0}), &net->t[2]);
        t[5] = OP(PLUME_OP_POOL2D, ARGS({2, 1, 0, 0}, {0}), t[5]);
        t[5] = OP(PLUME_OP_POOL2D, ARGS({2, 1, 1, 0}, {0}), t[5]);
        t[6] = OP(PLUME_OP_CROSS_ENTROPY, NONE, &net->t[0], &net->t[4]);
        for (size_t i = 0; i < PL_COUNT(t); i++) {
            const struct pl_node *node = &net->tape.nodes[t[i]->node];

            assert_int_equal(node->k->real, low ? PL_REAL_BF16 : PL_REAL_F32);
            if (node->saved_bytes != want[i])
                fail_msg("%s keeps %zu bytes, not %zu", node->op->name, node->saved_bytes, want[i]);
        }
        finish(net);
    }
}

/* Random functions: nothing is read before it is written, and nothing overlaps that is needed at
 * the same time. */
static void test_memory_of_random_graphs(void **state)
{
    has_16_bits = true;
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct random_net net[2];
        double value[2];

        for (int i = 0; i < 2; i++) {
            struct pl_tape *tape = &net[i].net.tape;

            random_make(&net[i], fake_device(), PL_REAL_F32, seed, 5 + seed % 40);
            tape->amp_dtype = lows[seed % 2].dtype;
            tape->amp_o3 = seed % 3 > 0;
            tape->no_reuse = i;
            value[i] = on_device_scalar(run(&net[i].net, random_function));
        }
        if (!isfinite(value[0]) || value[0] != value[1])
            fail_msg("seed %d: loss %g, without sharing %g", (int)seed, value[0], value[1]);
        for (size_t i = 0; i < net[0].net.n; i++)
            assert_memory_equal(net[0].net.t[i].grad, net[1].net.t[i].grad,
                                net[0].net.t[i].count * sizeof(float));
        finish(&net[0].net);
        finish(&net[1].net);
    }
}

/* One in 16 bits and one in f32 read a 16-bit tensor: gradients add up, rounded after each. */
static plume_tensor *f_both(struct net *net)
{
    plume_tensor *y = OP(PLUME_OP_LINEAR, NONE, &net->t[0],
                         OP(PLUME_OP_RESHAPE, ARGS({2, 4, 6}, {0}), &net->t[2]));
    plume_tensor *a = OP(PLUME_OP_UNARY, ARGS({PLUME_TANH}, {0}), y);
    plume_tensor *b = OP(PLUME_OP_SOFTMAX, NONE, y), *c = OP(PLUME_OP_LAYERNORM, NONE, y);

    b = OP(PLUME_OP_BINARY, NONE, weigh(net, b), weigh(net, c));
    return OP(PLUME_OP_BINARY, NONE, weigh(net, a), b);
}

static void test_casts_add_where_others_wrote(void **state)
{
    struct net want;

    has_16_bits = true;
    make_on(&want, pl_device_cpu(), PL_REAL_F64);
    run(&want, f_both);
    for (size_t low = 0; low < PL_COUNT(lows); low++)
        for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
            struct net got;
            float once[24];

            memset(calls, 0, sizeof(calls));
            start(&got, on_cpu ? pl_device_cpu() : fake_device(), low, false);
            run(&got, f_both);
            assert_true(gradient_apart(&got, &want) <= 16 * lows[low].rounding);
            assert_int_equal(sum_of(lows[low].real) > 0, !on_cpu);
            memcpy(once, got.t[0].grad, sizeof(once));
            /* The parameters', too, in f32. */
            assert_int_equal(pl_tape_forward(&got.tape, NULL), 0);
            assert_int_equal(
                pl_tape_backward(
                    &got.tape,
                    &(struct pl_backward){.loss = got.tape.roots[0], .seed = 1, .accumulate = true},
                    NULL),
                0);
            for (size_t k = 0; k < PL_COUNT(once); k++)
                assert_true(((float *)got.t[0].grad)[k] == 2 * once[k]);
            finish(&got);
        }
    finish(&want);
}

/* As on the CPU (test-engine_ops.c). */
static void test_running_statistics_of_16_bit_batches(void **state)
{
    struct net want, got;

    has_16_bits = true;
    make_on(&want, pl_device_cpu(), PL_REAL_F64);
    run(&want, f_batchnorm);
    for (size_t low = 0; low < PL_COUNT(lows); low++) {
        start(&got, fake_device(), low, true);
        run(&got, f_batchnorm);
        for (size_t i = 8; i < 10; i++)
            for (size_t k = 0; k < 3; k++)
                assert_true(fabs(((float *)got.t[i].data)[k] - ((double *)want.t[i].data)[k]) <=
                            4 * lows[low].rounding);
        finish(&got);
    }
    finish(&want);
}

/* If the device has no such table, or is the host, everything runs on f32 copies. */
static void test_without_a_table_all_is_in_f32(void **state)
{
    for (int on_cpu = 0; on_cpu < 2; on_cpu++) {
        struct net net;
        size_t copied = 0;

        has_16_bits = on_cpu;
        start(&net, on_cpu ? pl_device_cpu() : fake_device(), 0, true);
        run(&net, f_layernorm);
        for (size_t i = 0; i < net.tape.n; i++) {
            assert_ptr_equal(net.tape.nodes[i].k, net.tape.kernels);
            copied += pl_node_f32_bytes(&net.tape.nodes[i], true) > 0;
        }
        assert_true(copied > 3);
        finish(&net);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autocast_runs_products_in_16_bits),
        cmocka_unit_test(test_losses_of_16_bit_logits_are_f32),
        cmocka_unit_test(test_every_op_in_16_bits),
        cmocka_unit_test(test_what_sums_between_its_kernels_is_in_f32),
        cmocka_unit_test(test_what_ops_keep),
        cmocka_unit_test(test_memory_of_random_graphs),
        cmocka_unit_test(test_casts_add_where_others_wrote),
        cmocka_unit_test(test_running_statistics_of_16_bit_batches),
        cmocka_unit_test(test_without_a_table_all_is_in_f32),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
