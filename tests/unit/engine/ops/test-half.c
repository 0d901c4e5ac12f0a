/* SPDX-License-Identifier: MIT */
/* Functions made of ops, of 16-bit numbers: their steps run in f32 at each level of mixed
 * precision, so that a result that 16 bits can have is right, whatever its steps are. */
#include "plume/ops_attention.h"
#include "plume/ops_image.h"
#include "plume/ops_nn.h"
#include "runtime/engine/ops/ops.h"
#include "runtime/engine/tape/tape_private.h"
#include "tests/unit/engine/ops/op_step.h"

#define ROWS 70000 /* more than f16 has numbers for */

static const struct {
    enum plume_dtype type;
    int level;
} ways[] = {{PLUME_F16, 1},  {PLUME_F16, 2},  {PLUME_F16, 3},
            {PLUME_BF16, 1}, {PLUME_BF16, 2}, {PLUME_BF16, 3}};

static float numbers[2][MOST], grads[MOST], one = 1;

/* A step in 16 bits. */
static void begin_half(struct step *step, size_t way)
{
    begin(step);
    pl_tape_finish(&step->tape);
    pl_tape_init(&step->tape, pl_device_cpu(), PL_REAL_F32, true);
    step->tape.amp_dtype = ways[way].type;
    step->tape.amp_o2 = ways[way].level == 2;
    step->tape.amp_o3 = ways[way].level == 3;
    pl_tape_begin(&step->tape);
}

static plume_tensor *f32_leaf(struct step *step, size_t rank, const size_t *shape, float *data)
{
    plume_tensor *t = &step->leaf[step->n++];

    assert_int_equal(pl_tensor_init(t, PLUME_F32, rank, shape), 0);
    t->data = data;
    return t;
}

/* The numbers, n of them, as a layer makes them: in 16 bits also at O1. */
static plume_tensor *half_leaf(struct step *step, size_t n, const float *list)
{
    float *data = numbers[step->n > 0];
    plume_tensor *x, *w;

    assert_true(n <= MOST);
    memcpy(data, list, n * sizeof(*data));
    x = f32_leaf(step, 2, (size_t[]){n, 1}, data);
    if (step->n == 1) {
        x->wants_grad = x->is_param = true;
        x->grad = grads;
    }
    w = f32_leaf(step, 2, (size_t[]){1, 1}, &one);
    return plume_reshape(&step->pl, plume_matmul(&step->pl, x, w, 0, 0), 1, &n);
}

/* Runs the step whose result y has one element, and compares: by a rounding of the inputs. `slope`:
 * the gradient of the first number. */
static void
check(struct step *step, size_t way, const char *what, plume_tensor *y, double want, double slope)
{
    double got;

    assert_non_null(y);
    pl_tape_end(&step->tape);
    assert_int_equal(pl_tape_prepare(&step->tape, &y, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&step->tape, NULL), 0);
    assert_int_equal(
        pl_tape_backward(&step->tape, &(struct pl_backward){.loss = y, .seed = 1}, NULL), 0);
    assert_int_equal(y->dtype, PLUME_F32);
    got = on_device_scalar(y);
    if (!(got == want || fabs(got - want) <= 1e-5 * fabs(want)))
        fail_msg("%s in %s, O%d: %.9g, not %.9g", what, pl_dtype_name(ways[way].type),
                 ways[way].level, got, want);
    if (!(fabs((double)grads[0] - slope) <= 0.01 * fabs(slope)))
        fail_msg("%s in %s, O%d: the gradient is %.9g, not %.9g", what,
                 pl_dtype_name(ways[way].type), ways[way].level, (double)grads[0], slope);
    pl_tape_finish(&step->tape);
}

/* A step of the function, whose numbers are `x` and perhaps `y`. */
#define CHECK(call, want, slope, ...)                                                              \
    do {                                                                                           \
        const float list[] = {__VA_ARGS__};                                                        \
        plume_tensor *x;                                                                           \
                                                                                                   \
        begin_half(&step, way);                                                                    \
        x = half_leaf(&step, PL_COUNT(list), list);                                                \
        check(&step, way, #call, call, want, slope);                                               \
    } while (0)
#define Y(...) half_leaf(&step, PL_COUNT(((float[]){__VA_ARGS__})), (float[]){__VA_ARGS__})

static void test_sums_of_squares(void **state)
{
    struct step step;

    (void)state;
    for (size_t way = 0; way < PL_COUNT(ways); way++) {
        CHECK(plume_norm(&step.pl, x, 0, 1), 1280, 0.6, 768, 1024);
        CHECK(plume_norm(&step.pl, x, 0, 1), 0x5p-13, 0.6, 0x3p-13, 0x4p-13);
        CHECK(plume_std(&step.pl, x, 0, 1, 0), 768, 0.5, 1024, -512);
        CHECK(plume_var(&step.pl, x, 0, 1, 0), 4096, 64, 128, 0);
        CHECK(plume_var(&step.pl, x, 0, 1, 1), 0x1p15, 256, 256, 0);
        CHECK(plume_prod(&step.pl, x, 0, 1), 256, 0.5, 512, 512, 512, 0x1p-9, 0x1p-10);
    }
}

static void test_logarithms_of_sums(void **state)
{
    struct step step;

    (void)state;
    for (size_t way = 0; way < PL_COUNT(ways); way++) {
        CHECK(plume_logsumexp(&step.pl, x, 0, 1), (double)INFINITY, 0, 1, INFINITY, -2);
        CHECK(plume_logsumexp(&step.pl, x, 0, 1), 1, 1, 1, -INFINITY, -INFINITY);
        CHECK(plume_logsumexp(&step.pl, x, 0, 1), 61440 + log(2), 0.5, 61440, 61440);
    }
}

static void test_losses(void **state)
{
    struct step step;

    (void)state;
    for (size_t way = 0; way < PL_COUNT(ways); way++) {
        CHECK(plume_l1(&step.pl, x, Y(-0x1p15, 0)), 0x1p15, 0.5, 0x1p15, 0);
        CHECK(plume_huber(&step.pl, x, Y(0, 0), 2048), 0.25 * 1024 * 1024, 512, 1024, 0);
        CHECK(plume_bce_with_logits(&step.pl, x, Y(0.5)), 2048, 0.5, 4096);
        CHECK(plume_bce_with_logits(&step.pl, x, Y(1)), log1p(exp(-8)), -exp(-8), 8);
        CHECK(plume_bce_with_logits(&step.pl, x, Y(0)), log1p(exp(-8)), exp(-8), -8);
        CHECK(plume_kl_div(&step.pl, x, Y(0, 1)), 0.5, 0, -1, -1);
    }
}

/* The maxima are numbers of x: no rounding, and the positions are whole numbers at each level. */
/* Of values v [2]; qk has a query of four numbers, and two keys. */
static plume_tensor *attend(struct step *step, plume_tensor *v, plume_tensor *qk)
{
    const struct plume_attention_how how = {.heads = 1, .scale = 0.5};
    plume_tensor *all = plume_reshape(&step->pl, qk, SHAPE(1, 3, 4));
    plume_tensor *q = plume_slice(&step->pl, all, 1, 0, 1),
                 *k = plume_slice(&step->pl, all, 1, 1, 2);

    v = plume_reshape(&step->pl, v, SHAPE(1, 2, 1));
    return pl_f32_sum(&step->pl, plume_attention_with(&step->pl, q, k, v, &how), 0, 5);
}

/* The product of query and key is not a number of f16, and their score is. */
static void test_scores_of_attention(void **state)
{
    struct step step;

    (void)state;
    for (size_t way = 0; way < PL_COUNT(ways); way++)
        CHECK(attend(&step, x, Y(128, 128, 128, 128, 240, 240, 240, 240, 100, 100, 100, 100)), 3, 1,
              3, -2);
}

static void test_adaptive_max_pools(void **state)
{
    struct step step;

    (void)state;
    for (size_t way = 0; way < PL_COUNT(ways); way++) {
        CHECK(pl_f32_sum(&step.pl, plume_adaptive_max_pool(&step.pl, x, 0, 2), 0, 1), 33280, 1, 512,
              1, 3, 3, 0x1p15);
        CHECK(pl_f32_sum(&step.pl, plume_adaptive_max_pool(&step.pl, x, 0, 3), 0, 1), 1027, 2, 512,
              3);
        CHECK(pl_f32_sum(&step.pl, plume_adaptive_max_pool(&step.pl, x, 0, 1), 0, 1), 512, 1, 512,
              3);
    }
}

/* The sum of the rows' weights. */
static void test_more_rows_than_f16_can_count(void **state)
{
    static float rows[2 * ROWS], flows[2 * ROWS];
    static int32_t labels[ROWS];
    struct step step;

    (void)state;
    for (size_t i = 0; i < ROWS; i++)
        rows[2 * i] = 1;
    for (size_t way = 0; way < PL_COUNT(ways); way++) {
        plume_tensor *x, *i, *loss;

        begin_half(&step, way);
        x = f32_leaf(&step, 2, (size_t[]){ROWS, 2}, rows);
        x->wants_grad = x->is_param = true;
        x->grad = flows;
        i = &step.leaf[step.n++];
        assert_int_equal(pl_tensor_init(i, PLUME_I32, 1, (size_t[]){ROWS}), 0);
        i->data = labels;
        loss = plume_cross_entropy_but(&step.pl, x, i, NULL, -100);
        memset(grads, 0, sizeof(grads));
        /* O3's log softmax is in 16 bits. */
        check(&step, way, "cross_entropy_but", loss,
              ways[way].level < 3           ? log(1 + exp(-1))
              : ways[way].type == PLUME_F16 ? 0x1.40cp-2
                                            : 0x1.4p-2,
              0);
    }
}

#define IMAGES 3001 /* of which one call of a convolution or a layer does a part */
#define SIDE 4
#define PIXELS ((size_t)SIDE * SIDE)
#define INS 2
#define OUTS 4
#define TAPS ((size_t)OUTS * INS * 9)
#define WEIGHTS (OUTS * PIXELS * INS * PIXELS) /* of a layer with as many numbers in and out */

/* The gradients of a product's inputs, all of whose sums are exact. */
struct grads {
    float x[IMAGES * INS * PIXELS], w[PL_MAX(WEIGHTS, TAPS)], b[OUTS * PIXELS];
    size_t bytes; /* of the f32 copies of a product's backward */
    double loss;
};

static plume_tensor *
thirds(struct step *step, size_t rank, const size_t *shape, float *data, float *grad, size_t prime)
{
    plume_tensor *t = f32_leaf(step, rank, shape, data);

    for (size_t i = 0; i < t->count; i++)
        data[i] = (float)(i * prime % 17 % 3) - 1;
    t->wants_grad = t->is_param = grad != NULL;
    t->grad = grad;
    return t;
}

/* Two convolutions of the same images, or two layers, so that the second adds to the gradients of
 * the first. */
static void multiply(struct step *step, bool layers, struct grads *ret)
{
    static float x_data[IMAGES * INS * PIXELS], w_data[PL_COUNT(ret->w)], b_data[PL_COUNT(ret->b)],
        by_data[IMAGES * OUTS * PIXELS];
    const size_t in[] = {IMAGES, INS, SIDE, SIDE}, row[] = {IMAGES, INS * PIXELS};
    const size_t taps[] = {OUTS, INS, 3, 3}, weights[] = {OUTS * PIXELS, INS * PIXELS};
    const size_t out[] = {IMAGES, OUTS, SIDE, SIDE}, all = IMAGES * OUTS * PIXELS;
    struct plume_context *pl = &step->pl;
    plume_tensor *x = thirds(step, layers ? 2 : 4, layers ? row : in, x_data, ret->x, 5);
    plume_tensor *w = thirds(step, layers ? 2 : 4, layers ? weights : taps, w_data, ret->w, 7);
    plume_tensor *b = thirds(step, 1, layers ? weights : out + 1, b_data, ret->b, 3);
    plume_tensor *by = thirds(step, 1, &all, by_data, NULL, 11);
    plume_tensor *y = layers ? plume_linear(pl, x, w, b, PLUME_RELU)
                             : plume_conv2d(pl, x, w, b, 1, 1, PLUME_RELU);
    plume_tensor *z = layers ? plume_linear(pl, x, w, NULL, PLUME_IDENTITY)
                             : plume_conv2d(pl, x, w, NULL, 1, 1, PLUME_IDENTITY);
    plume_tensor *sum = plume_add(pl, plume_mul(pl, plume_reshape(pl, y, 1, &all), by),
                                  plume_mul(pl, plume_reshape(pl, z, 1, &all), by));
    plume_tensor *loss = plume_sum(pl, sum, 0, 1);

    pl_tape_end(&step->tape);
    assert_int_equal(pl_tape_prepare(&step->tape, &loss, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&step->tape, NULL), 0);
    assert_int_equal(
        pl_tape_backward(&step->tape, &(struct pl_backward){.loss = loss, .seed = 1}, NULL), 0);
    ret->loss = on_device_scalar(loss);
    ret->bytes = 0;
    for (size_t i = 0; i < step->tape.n; i++)
        if (step->tape.nodes[i].op->two_products)
            ret->bytes = PL_MAX(ret->bytes, pl_node_f32_bytes(&step->tape.nodes[i], true));
    pl_tape_finish(&step->tape);
}

/* Two roundings to bf16 of sums that are as large as the largest. */
static void same_grads(const char *what, const float *got, const float *want, size_t n)
{
    float most = 0;

    for (size_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= most / 128))
            fail_msg("the gradient of %s %zu is %g, not %g", what, i, (double)got[i],
                     (double)want[i]);
}

static void test_a_product_has_f32_copies_of_some_rows_at_a_time(void **state)
{
    static struct grads want, got;
    struct step step;

    (void)state;
    for (size_t layers = 0; layers < 2; layers++) {
        begin(&step);
        pl_tape_finish(&step.tape);
        pl_tape_init(&step.tape, pl_device_cpu(), PL_REAL_F32, true);
        pl_tape_begin(&step.tape);
        multiply(&step, layers, &want);
        assert_int_equal(want.bytes, 0);
        for (size_t way = 0; way < 2; way++) { /* f16 and bf16 at O1 */
            begin_half(&step, 3 * way);
            multiply(&step, layers, &got);
            assert_true(got.loss == want.loss);
            same_grads("x", got.x, want.x, PL_COUNT(want.x));
            same_grads("w", got.w, want.w, layers ? WEIGHTS : TAPS);
            same_grads("b", got.b, want.b, layers ? OUTS * PIXELS : OUTS);
            assert_true(got.bytes > 0 && got.bytes < ((size_t)1 << 20) + 32768); /* of 2.2 MiB */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_of_squares),
        cmocka_unit_test(test_logarithms_of_sums),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_scores_of_attention),
        cmocka_unit_test(test_adaptive_max_pools),
        cmocka_unit_test(test_more_rows_than_f16_can_count),
        cmocka_unit_test(test_a_product_has_f32_copies_of_some_rows_at_a_time),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
