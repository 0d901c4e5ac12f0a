/* SPDX-License-Identifier: MIT */
/* Gradients of biases that somebody else adds up, who completes the gradient of the layer's output
 * (`bias_of` of a node): the norm after a residual sum, the product before which a gelu is, and an
 * attention. On a device of the emulated CUDA kernels, against the layer's own sums, which casts
 * round to 16 bits. */
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/tape/tape_private.h"
#include "tests/cuda/fake_device.h"
#include "tests/lib/today.h"
#include "tests/unit/engine/engine_net.h"

#define ROWS 19
#define WIDTH 16
#define BLOCKS 2
#define PARAMS (2 + 4 * BLOCKS)

/* The use of a block's second layer, and what else there is. */
enum what {
    PLAIN,
    TURNED,      /* the branch is the sum's first operand */
    ADDED_TWICE, /* the second layer's output is in the sum two times */
    READ_TWICE,  /* and by another op */
    SHOWN,       /* a root of the tape */
    RELU,        /* the second layer has relu, which its own backward does */
    DROPPED,     /* elements of its output are dropped before the sum */
    FROZEN,      /* the second bias has no gradient */
    GIVEN,       /* the second bias is no parameter, but another tape's, say */
    IN_F32_BEFORE,
    IN_F32_BETWEEN, /* between layer and norm */
    IN_F32_AFTER,
    NO_NORM, /* nothing but the loss after the last sum */
    WHATS,
};

static const struct {
    const char *what;
    unsigned summed; /* of a block; that of the first layer is 1 */
} cases[] = {
    [PLAIN] = {"a block", 2},
    [TURNED] = {"h + x", 2},
    [ADDED_TWICE] = {"h + h", 1},
    [READ_TWICE] = {"read by another", 1},
    [SHOWN] = {"shown", 1},
    [RELU] = {"relu", 1},
    [DROPPED] = {"dropped", 1},
    [FROZEN] = {"frozen", 1},
    [GIVEN] = {"given", 2},
    [IN_F32_BEFORE] = {"in f32 before", 2},
    [IN_F32_BETWEEN] = {"in f32 in between", 1},
    [IN_F32_AFTER] = {"in f32 after", 2},
    [NO_NORM] = {"no norm", 1},
};

struct how {
    enum what what;
    enum plume_dtype low;
    bool o2, wide, reuse;
    size_t width, blocks;
};

struct result {
    float loss, grad[PARAMS][4 * WIDTH * WIDTH], twice[PARAMS][4 * WIDTH * WIDTH];
    unsigned summed;
};

struct made {
    struct net net;
    plume_tensor *shown;
};

static plume_tensor *apply(
    struct net *net, enum plume_op op, size_t n, plume_tensor *const *in, int64_t arg, double real)
{
    struct plume_op_args args = {{arg}, {real}};
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (pl_op_call(&net->tape, op, in, n, &args, &t, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return t;
}

#define APPLY(op, arg, real, ...)                                                                  \
    apply(net, op, sizeof((plume_tensor *[]){__VA_ARGS__}) / sizeof(plume_tensor *),               \
          (plume_tensor *[]){__VA_ARGS__}, arg, real)

/* A small loss of t alone. */
static plume_tensor *loss_of(struct net *net, plume_tensor *t)
{
    return APPLY(PLUME_OP_MSE, 0, 0, APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, t), t);
}

static void also(struct net *net, plume_tensor **loss, plume_tensor *t)
{
    *loss = *loss ? APPLY(PLUME_OP_BINARY, 0, 0, *loss, t) : t;
}

static plume_tensor *trace(struct made *m, const struct how *how)
{
    struct net *net = &m->net;
    plume_tensor *x = APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, &net->t[0]), *loss = NULL, *h, *b;
    enum what what = how->what;

    for (size_t i = 0; i < how->blocks; i++) {
        plume_tensor *p = &net->t[2 + 4 * i];

        b = &p[3];
        if (what == IN_F32_BEFORE)
            also(net, &loss, loss_of(net, b));
        h = APPLY(PLUME_OP_LAYERNORM, 0, 1e-3, x);
        h = APPLY(PLUME_OP_LINEAR, PLUME_GELU_TANH, 0, h, &p[0], &p[1]);
        h = APPLY(PLUME_OP_LINEAR, what == RELU ? PLUME_RELU : PLUME_IDENTITY, 0, h, &p[2], b);
        if (what == READ_TWICE)
            also(net, &loss, loss_of(net, h));
        if (what == SHOWN)
            m->shown = h;
        if (what == IN_F32_BETWEEN)
            also(net, &loss, loss_of(net, b));
        if (what == DROPPED)
            h = APPLY(PLUME_OP_DROPOUT, 0, 0.25, h);
        x = what == TURNED ? APPLY(PLUME_OP_BINARY, 0, 0, h, x)
                           : APPLY(PLUME_OP_BINARY, 0, 0, what == ADDED_TWICE ? h : x, h);
    }
    if (what == NO_NORM)
        also(net, &loss, APPLY(PLUME_OP_MSE, 0, 0, x, &net->t[1]));
    else /* a layer, so that the norm has 16-bit numbers */
        also(net, &loss,
             loss_of(net, APPLY(PLUME_OP_LINEAR, PLUME_IDENTITY, 0,
                                APPLY(PLUME_OP_LAYERNORM, 0, 1e-3, x), &net->t[2])));
    if (what == IN_F32_AFTER)
        for (size_t i = 0; i < how->blocks; i++)
            also(net, &loss, loss_of(net, &net->t[5 + 4 * i]));
    return loss;
}

static void make(struct made *m, const struct how *how)
{
    size_t w = how->width;

    memset(m, 0, sizeof(*m));
    pl_tape_init(&m->net.tape, fake_device(), PL_REAL_F32, true);
    leaf(&m->net, PL_REAL_F32, 2, (size_t[]){ROWS, w});
    leaf(&m->net, PL_REAL_F32, 2, (size_t[]){ROWS, w})->wants_grad = false;
    for (size_t i = 0; i < how->blocks; i++) {
        leaf(&m->net, PL_REAL_F32, 2, (size_t[]){2 * w, w});
        leaf(&m->net, PL_REAL_F32, 1, (size_t[]){2 * w});
        leaf(&m->net, PL_REAL_F32, 2, (size_t[]){w, 2 * w});
        leaf(&m->net, PL_REAL_F32, 1, (size_t[]){w})->wants_grad = how->what != FROZEN;
        m->net.t[m->net.n - 1].is_param = how->what != GIVEN;
    }
    m->net.tape.amp_dtype = how->low;
    m->net.tape.amp_o2 = how->o2;
    m->net.tape.wide_grads = how->wide;
    m->net.tape.no_reuse = !how->reuse;
}

static void run(const struct how *how, struct result *ret)
{
    static struct made m;
    struct pl_tape *tape = &m.net.tape;
    plume_tensor *roots[2];

    memset(ret, 0, sizeof(*ret));
    make(&m, how);
    pl_tape_begin(tape);
    roots[0] = trace(&m, how);
    roots[1] = m.shown;
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, roots, m.shown ? 2 : 1, 1, NULL), 0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(
                tape, &(struct pl_backward){.loss = roots[0], .seed = 1, .accumulate = i}, NULL),
            0);
        for (size_t k = 0; k < m.net.n; k++)
            memcpy(i ? ret->twice[k] : ret->grad[k], m.net.t[k].grad,
                   m.net.t[k].count * sizeof(float));
    }
    ret->loss = (float)on_device_scalar(roots[0]);
    for (size_t i = 0; i < tape->n; i++)
        ret->summed += tape->nodes[i].fusion.summed;
    finish(&m.net);
}

static void compare(const struct how *how)
{
    static struct result got, want;
    struct how casts = *how;
    bool wide = how->wide && how->low == PLUME_BF16;
    unsigned blocks = (unsigned)how->blocks, finer = 0, summed = cases[how->what].summed * blocks;

    casts.wide = false;
    run(&casts, &want);
    run(how, &got);
    assert_int_equal(want.summed, 0);
    if (how->what == NO_NORM || how->what == SHOWN) /* of several blocks only the last one is it */
        summed = 2 * blocks - 1;
    if (how->o2 && how->what >= IN_F32_BEFORE && how->what <= IN_F32_AFTER) /* in 16 bits there */
        summed = blocks;
    if (got.summed != (wide ? summed : 0))
        fail_msg("%s, o2 %d, %zu blocks: %u biases are summed", cases[how->what].what, how->o2,
                 how->blocks, got.summed);
    assert_true(got.loss == want.loss);
    for (size_t k = 0; k < 2 + 4 * how->blocks; k++)
        for (size_t j = 0; j < PL_COUNT(got.grad[k]); j++) {
            float x = got.grad[k][j], y = want.grad[k][j];
            float twice = how->what == GIVEN && k % 4 == 1 ? x : x + x;

            /* The casts round each term of a gradient to 16 bits, and sums have another order. */
            if (!(fabsf(x - y) <= 0x1p-7f * fabsf(y) + 2e-5f))
                fail_msg("%s, o2 %d: gradient %zu[%zu] is %.9g, by the layer %.9g",
                         cases[how->what].what, how->o2, k, j, (double)x, (double)y);
            finer += x != y;
            if (k >= 2 && got.twice[k][j] != twice && how->what < IN_F32_BEFORE)
                fail_msg("%s, o2 %d: gradient %zu[%zu] twice is %.9g, once %.9g",
                         cases[how->what].what, how->o2, k, j, (double)got.twice[k][j], (double)x);
        }
    assert_int_equal(finer > 0, wide);
}

static void test_biases_are_summed_by_others(void **state)
{
    struct how how = {.low = PLUME_F16, .wide = true, .width = WIDTH, .blocks = 1};

    compare(&how);
    how.low = PLUME_BF16;
    for (how.what = PLAIN; how.what < WHATS; how.what++)
        for (unsigned i = 0; i < 3; i++) {
            if (!today(how.what + i, 3))
                continue;
            how.o2 = i == 1;
            how.reuse = i != 1;
            how.width = i < 2 ? WIDTH : 9;
            how.blocks = i < 2 ? BLOCKS : 1;
            compare(&how);
        }
}

/* The place where an attention reads the layer's output. */
enum reader {
    ALONE,
    AND_ANOTHER, /* op, whose gradient is added */
    BY_PARTS,    /* by three inputs, views of it */
    RELUS,       /* of the layer, whose slope its own backward applies */
    TANHS,
    IN_F16,
    NOBODY, /* but the loss */
    READERS,
};

#define TIMES 23
#define BATCHES 2

static plume_tensor *trace_attention(struct net *net, enum reader reader, size_t heads)
{
    plume_tensor *x = APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, &net->t[0]), *y;
    enum plume_activation act = reader == RELUS   ? PLUME_RELU
                                : reader == TANHS ? PLUME_TANH
                                                  : PLUME_IDENTITY;
    plume_tensor *h = APPLY(PLUME_OP_LINEAR, act, 0, x, &net->t[1], &net->t[2]);
    struct plume_op_args args = {{(int64_t)heads, 1}, {0}};
    plume_tensor *in[3] = {h}, *loss = NULL;
    size_t n = reader == BY_PARTS ? 3 : 1, width = h->shape[2] / 3;

    for (size_t i = 0; i < n && n > 1; i++) {
        struct plume_op_args slice = {{2, (int64_t)(i * width), (int64_t)width}, {0}};

        assert_int_equal(pl_op_call(&net->tape, PLUME_OP_SLICE, &h, 1, &slice, &in[i], NULL), 0);
    }
    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_ATTENTION, in, n, &args, &y, NULL), 0);
    if (reader == NOBODY)
        y = h;
    if (reader == AND_ANOTHER)
        also(net, &loss, loss_of(net, h));
    also(net, &loss, loss_of(net, y));
    return loss;
}

/* Gradients of the bias, once and then added twice. Returns the number of biases that are summed.
 */
static unsigned
run_attention(enum reader reader, size_t heads, size_t width, bool wide, float *once, float *twice)
{
    static struct net net;
    unsigned summed = 0;
    plume_tensor *loss;

    memset(&net, 0, sizeof(net));
    pl_tape_init(&net.tape, fake_device(), PL_REAL_F32, true);
    leaf(&net, PL_REAL_F32, 3, (size_t[]){BATCHES, TIMES, width});
    leaf(&net, PL_REAL_F32, 2, (size_t[]){3 * width, width});
    leaf(&net, PL_REAL_F32, 1, (size_t[]){3 * width});
    net.t[1].is_param = net.t[2].is_param = true;
    net.tape.amp_dtype = reader == IN_F16 ? PLUME_F16 : PLUME_BF16;
    net.tape.wide_grads = wide;
    pl_tape_begin(&net.tape);
    loss = trace_attention(&net, reader, heads);
    pl_tape_end(&net.tape);
    assert_int_equal(pl_tape_prepare(&net.tape, &loss, 1, 1, NULL), 0);
    memset(net.tape.memory, 0xff, net.tape.memory_bytes);
    for (int i = 0; i < 2; i++) {
        struct pl_backward back = {.loss = loss, .seed = 1, .accumulate = i};

        assert_int_equal(pl_tape_forward(&net.tape, NULL), 0);
        assert_int_equal(pl_tape_backward(&net.tape, &back, NULL), 0);
        memcpy(i ? twice : once, net.t[2].grad, 3 * width * sizeof(float));
    }
    for (size_t i = 0; i < net.tape.n; i++)
        summed += net.tape.nodes[i].fusion.summed;
    finish(&net);
    return summed;
}

/* The sums for keys are 0 but for roundings, those for values the sums of the output's gradient. */
static void test_an_attention_sums_the_bias_before_it(void **state)
{
    static float want[3 * WIDTH], got[3 * WIDTH], twice[3 * WIDTH];

    for (enum reader reader = ALONE; reader < READERS; reader++)
        for (size_t width = WIDTH - 4; width <= WIDTH; width += 4) {
            size_t heads = width / 4;
            float most = 0;

            if (!today(reader + width / 4, 2))
                continue;
            assert_int_equal(run_attention(reader, heads, width, false, want, twice), 0);
            assert_int_equal(run_attention(reader, heads, width, true, got, twice),
                             reader == ALONE);
            for (size_t i = 0; i < 3 * width; i++)
                most = fmaxf(most, fabsf(want[i]));
            for (size_t i = 0; i < 3 * width; i++) {
                /* A sum of BATCHES TIMES numbers that are rounded to 8 bits, and may cancel. */
                float error = 0x1p-8f * fabsf(want[i]) + 0x1p-5f * most;

                if (!(fabsf(got[i] - want[i]) <= error))
                    fail_msg("reader %d: gradient %zu of the bias is %.9g, by the layer %.9g",
                             (int)reader, i, (double)got[i], (double)want[i]);
                assert_true(twice[i] == got[i] + got[i]);
                if (reader == ALONE && i / width == 1)
                    assert_true(got[i] == 0);
            }
            assert_true(most > 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_biases_are_summed_by_others),
        cmocka_unit_test(test_an_attention_sums_the_bias_before_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
