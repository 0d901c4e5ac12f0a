/* SPDX-License-Identifier: MIT */
/* Weights in 16 bits that are not cast in each step, and their gradients, which products write in
 * f32 (`lends_all` and `wide_grads` of a tape), on a device of the emulated CUDA kernels: against
 * casts, which round to 16 bits on the way. And what the optimizers do on a GPU alone: copies of
 * the parameters in 16 bits, and clipping that waits for nobody. */
#include "runtime/engine/optim/optimizer.h"
#include "runtime/engine/params/halves.h"
#include "runtime/engine/tape/tape_private.h"
#include "tests/cuda/fake_device.h"
#include "tests/unit/engine/engine_net.h"

#define WIDTH 16
#define ROWS 5

/* Uses of the weights and the bias of a layer. */
static const struct use {
    const char *what;
    bool twice, in_f32, no_bias, view, shown, later; /* later: in f32, after the layer */
    unsigned wide;                                   /* gradients that products write in f32 */
    unsigned lent;                                   /* casts that are not done, x's included */
} uses[] = {
    {.what = "a layer", .wide = 2, .lent = 3},
    {.what = "without a bias", .no_bias = true, .wide = 1, .lent = 2},
    {.what = "twice", .twice = true, .wide = 0, .lent = 3},
    {.what = "in f32, too", .in_f32 = true, .wide = 2, .lent = 3},
    {.what = "in f32 after it", .later = true, .wide = 2, .lent = 3},
    {.what = "a view of them", .view = true, .wide = 1, .lent = 2},
    {.what = "shown", .shown = true, .wide = 2, .lent = 3},
};

enum how { CASTS, WIDE, LENDS, BOTH, AGAIN, HOWS };

struct result {
    float loss, grad[3][WIDTH * WIDTH], twice[3][WIDTH * WIDTH];
    unsigned wide, lent;
};

static plume_tensor *
apply(struct net *net, enum plume_op op, size_t n, plume_tensor *const *in, struct plume_op_args a)
{
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (pl_op_call(&net->tape, op, in, n, &a, &t, &err) < 0)
        fail_msg("%s", pl_error_text(&err));
    return t;
}

static plume_tensor *mean_square(struct net *net, plume_tensor *t, plume_tensor *to)
{
    return apply(net, PLUME_OP_MSE, 2, (plume_tensor *[]){t, to}, (struct plume_op_args){{0}, {0}});
}

static plume_tensor *sum(struct net *net, plume_tensor *a, plume_tensor *b)
{
    return apply(net, PLUME_OP_BINARY, 2, (plume_tensor *[]){a, b},
                 (struct plume_op_args){{0}, {0}});
}

static plume_tensor *of_weights(struct net *net)
{
    plume_tensor *w = &net->t[1];

    w = apply(net, PLUME_OP_UNARY, 1, &w, (struct plume_op_args){{PLUME_TANH}, {0}});
    return mean_square(net, w, &net->t[4]);
}

static plume_tensor *trace(struct net *net, const struct use *use)
{
    plume_tensor *in[] = {&net->t[0], &net->t[1], &net->t[2]}, *loss = NULL;

    if (use->in_f32)
        loss = of_weights(net);
    if (use->view)
        in[1] =
            apply(net, PLUME_OP_RESHAPE, 1, &in[1], (struct plume_op_args){{2, WIDTH, WIDTH}, {0}});
    for (unsigned i = 0; i < (use->twice ? 2 : 1); i++)
        in[0] = apply(net, PLUME_OP_LINEAR, use->no_bias ? 2 : 3, in,
                      (struct plume_op_args){{PLUME_GELU_TANH}, {0}});
    if (use->later)
        loss = of_weights(net);
    in[0] = mean_square(net, in[0], &net->t[3]);
    return loss ? sum(net, in[0], loss) : in[0];
}

/* Writes as the lender of the memory would. */
static void lend(struct net *net, uint16_t (*halves)[WIDTH * WIDTH], enum plume_dtype low)
{
    for (size_t i = 0; i < net->tape.n; i++) {
        struct pl_node *node = &net->tape.nodes[i];
        size_t k = 0;

        if (!node->lent)
            continue;
        assert_null(node->out->data);
        while (node->in[0] != &net->t[k])
            k++;
        for (size_t j = 0; j < net->t[k].count; j++)
            halves[k][j] = pl_half_of_f32(pl_tape_half_of(low), ((const float *)net->t[k].data)[j]);
        node->out->data = halves[k];
    }
}

static void run(const struct use *use, enum how how, enum plume_dtype low, struct result *ret)
{
    static uint16_t halves[5][WIDTH * WIDTH];
    struct net net = {0};
    plume_tensor *roots[2];

    memset(ret, 0, sizeof(*ret));
    pl_tape_init(&net.tape, fake_device(), PL_REAL_F32, true);
    leaf(&net, PL_REAL_F32, 2, (size_t[]){ROWS, WIDTH});
    leaf(&net, PL_REAL_F32, 2, (size_t[]){WIDTH, WIDTH});
    leaf(&net, PL_REAL_F32, 1, (size_t[]){WIDTH});
    leaf(&net, PL_REAL_F32, 2, (size_t[]){ROWS, WIDTH})->wants_grad = false;
    leaf(&net, PL_REAL_F32, 2, (size_t[]){WIDTH, WIDTH})->wants_grad = false;
    net.tape.amp_dtype = low;
    net.tape.wide_grads = how == WIDE || how == BOTH || how == AGAIN;
    net.tape.lends = net.tape.lends_all = how >= LENDS;
    net.tape.recompute = how == AGAIN;
    net.tape.segments = how == AGAIN ? 2 : 0;
    pl_tape_begin(&net.tape);
    roots[0] = trace(&net, use);
    roots[1] = &net.t[1];
    pl_tape_end(&net.tape);
    assert_int_equal(pl_tape_prepare(&net.tape, roots, use->shown ? 2 : 1, 1, NULL), 0);
    memset(net.tape.memory, 0xff, net.tape.memory_bytes);
    lend(&net, halves, low);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(&net.tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(&net.tape,
                             &(struct pl_backward){.loss = roots[0], .seed = 1, .accumulate = i},
                             NULL),
            0);
        for (size_t k = 0; k < 3; k++)
            memcpy(i ? ret->twice[k] : ret->grad[k], net.t[k].grad, net.t[k].count * sizeof(float));
    }
    ret->loss = (float)on_device_scalar(roots[0]);
    for (size_t i = 0; i < net.tape.n; i++) {
        ret->wide += net.tape.nodes[i].wide;
        ret->lent += net.tape.nodes[i].lent;
    }
    finish(&net);
}

static float rounded(enum plume_dtype low, float x)
{
    enum pl_half half = pl_tape_half_of(low);

    return pl_f32_of_half(half, pl_half_of_f32(half, x));
}

/* The gradient of t[k] has one term, which comes by a cast. */
static bool has_one_term(const struct use *use, size_t k)
{
    return k == 2 || !(use->in_f32 || use->later);
}

static void compare(const struct use *use, enum how how, enum plume_dtype low)
{
    struct result casts, got;
    unsigned finer = 0;

    run(use, CASTS, low, &casts);
    run(use, how, low, &got);
    if (got.wide != ((how == WIDE || how == BOTH) && low == PLUME_BF16 ? use->wide : 0) ||
        got.lent != (how >= LENDS ? use->lent : 0))
        fail_msg("%s, %d: %u gradients are wide, %u casts are lent", use->what, (int)how, got.wide,
                 got.lent);
    assert_true(got.loss == casts.loss);
    for (size_t k = 0; k < 3; k++)
        for (size_t j = 0; j < (k == 1 ? WIDTH * WIDTH : k ? WIDTH : ROWS * WIDTH); j++) {
            float x = got.grad[k][j], want = casts.grad[k][j];

            /* Sums over the same terms, which the casts have rounded. */
            if (!got.wide || k == 0 || has_one_term(use, k) ? rounded(low, x) != want && x != want
                                                            : fabsf(x - want) > 0x1p-7f)
                fail_msg("%s, %d: gradient %zu[%zu] is %.9g, by casts %.9g", use->what, (int)how, k,
                         j, (double)x, (double)want);
            finer += x != want;
            if (has_one_term(use, k) && got.twice[k][j] != x + x)
                fail_msg("%s, %d: gradient %zu[%zu] twice is %.9g, once %.9g", use->what, (int)how,
                         k, j, (double)got.twice[k][j], (double)x);
        }
    assert_int_equal(finer > 0, got.wide > 0);
}

static void test_gradients_in_f32_and_lent_weights(void **state)
{
    for (size_t i = 0; i < PL_COUNT(uses); i++)
        for (enum how how = WIDE; how < HOWS; how++) {
            compare(&uses[i], how, PLUME_BF16);
            compare(&uses[i], how, PLUME_F16);
        }
}

static void check_halves(const struct pl_params *params)
{
    for (size_t i = 0; i < params->count; i++) {
        float x = ((const float *)params->values)[i];

        assert_int_equal(params->halves[i], pl_bf16_of_f32(x));
    }
}

static void test_the_update_writes_16_bits(void **state)
{
    static const struct plume_optimizer one = {.struct_size = sizeof(one),
                                               .kind = PLUME_ADAMW,
                                               .lr = 0.1,
                                               .beta1 = 0.9,
                                               .beta2 = 0.99,
                                               .eps = 1e-8,
                                               .weight_decay = 0.1};
    struct plume_optimizer options[2] = {one, one};
    const struct pl_kernels *kernels = pl_kernels_cuda(PL_REAL_F32);
    struct pl_world world = {.size = 1, .local_size = 1};
    const struct pl_clip_rule no_clip = {0};
    struct pl_optimizers o;
    struct pl_params params;
    struct pl_tape tape;
    struct pl_comm *comm;
    plume_tensor *t[2];
    struct pl_rng rng;

    options[1].prefixes = "b"; /* its parameter comes after the other one's */
    pl_rng_init(&rng, 1, 2);
    assert_int_equal(pl_comm_create(&world, NULL, &comm, NULL), 0);
    pl_params_init(&params, fake_device(), PL_REAL_F32);
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pl_params_declare(&params, i ? "b" : "w", PLUME_INIT_ONE, 1,
                                           (size_t[]){i ? 3 : 1001}, &t[i], NULL),
                         0);
    pl_tape_init(&tape, params.dev, PL_REAL_F32, true);
    assert_int_equal(pl_params_layout(&params, &tape, comm, NULL), 0);
    assert_int_equal(pl_optimizers_init(&o, &params, options, 2, NULL), 0);
    assert_int_equal(pl_params_init_values(&params, comm, 1, NULL), 0);
    assert_false(pl_halves_are_used(&params)); /* no autocast */
    assert_int_equal(pl_halves_refresh(&params, kernels, NULL), 0);
    assert_null(params.halves);
    params.half_dtype = PLUME_BF16;
    assert_false(pl_halves_are_current(&params));
    assert_int_equal(pl_halves_refresh(&params, kernels, NULL), 0);
    assert_true(pl_halves_are_current(&params));
    check_halves(&params);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < t[0]->count; i++)
            ((float *)t[0]->grad)[i] = (float)pl_rng_normal(&rng);
        memset(t[1]->grad, step, t[1]->count * sizeof(float));
        params.values_version++;
        assert_int_equal(pl_optimizers_step(&o, kernels, &no_clip, NULL, NULL, NULL), 0);
        assert_false(pl_halves_are_current(&params));
        pl_halves_follow(&params);
        assert_true(((const float *)t[0]->data)[1000] != 1);
        check_halves(&params);
    }
    ((float *)t[1]->data)[2] = 1.7f; /* a checkpoint, say */
    params.values_version++;
    assert_int_equal(pl_halves_refresh(&params, kernels, NULL), 0);
    check_halves(&params);
    pl_optimizers_finish(&o);
    pl_tape_finish(&tape);
    pl_params_finish(&params);
    pl_comm_destroy(comm);
}

static unsigned downloads;

static int counted_download(
    struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    downloads++;
    return pl_device_cpu()->ops->download(dev, to, from, bytes, err);
}

/* The values after three steps with clipping; norms: as the host finds them, or NULL. */
static void clipped(double limit, bool nan, double *norms, float *ret, size_t n)
{
    static const struct plume_optimizer options = {
        .struct_size = sizeof(options), .kind = PLUME_SGD, .lr = 0.1, .momentum = 0.9};
    const struct pl_clip_rule clip = {PL_CLIP_NORM, limit};
    const struct pl_kernels *kernels = pl_kernels_cuda(PL_REAL_F32);
    struct pl_world world = {.size = 1, .local_size = 1};
    struct pl_device *dev = fake_device();
    const struct pl_device_ops *usual = dev->ops;
    struct pl_device_ops ops = *usual;
    struct pl_optimizers_result result;
    struct pl_optimizers o;
    struct pl_params params;
    struct pl_tape tape;
    struct pl_comm *comm;
    plume_tensor *t;
    struct pl_rng rng;

    ops.download = counted_download;
    dev->ops = &ops;
    pl_rng_init(&rng, 3, 4);
    assert_int_equal(pl_comm_create(&world, NULL, &comm, NULL), 0);
    pl_params_init(&params, dev, PL_REAL_F32);
    assert_int_equal(pl_params_declare(&params, "w", PLUME_INIT_ZERO, 1, (size_t[]){n}, &t, NULL),
                     0);
    pl_tape_init(&tape, dev, PL_REAL_F32, true);
    assert_int_equal(pl_params_layout(&params, &tape, comm, NULL), 0);
    assert_int_equal(pl_optimizers_init(&o, &params, &options, 1, NULL), 0);
    downloads = 0;
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < n; i++)
            ((float *)t->grad)[i] = nan && step == 2 ? NAN : (float)pl_rng_normal(&rng);
        assert_int_equal(pl_optimizers_step(&o, kernels, &clip, NULL, norms ? &result : NULL, NULL),
                         0);
        if (norms)
            norms[step] = result.norm;
    }
    assert_int_equal(downloads > 0, norms != NULL);
    memcpy(ret, t->data, n * sizeof(float));
    pl_optimizers_finish(&o);
    pl_tape_finish(&tape);
    pl_params_finish(&params);
    pl_comm_destroy(comm);
    dev->ops = usual;
}

/* The device clips as the host does, to the bit, and the host does not wait for it. */
static void test_clipping_waits_for_nobody(void **state)
{
    static float host[40000], device[40000];
    static const size_t sizes[] = {1, 77, 40000};

    for (size_t i = 0; i < PL_COUNT(sizes); i++)
        for (unsigned how = 0; how < 3; how++) {
            size_t n = sizes[i];
            double norms[3];

            clipped(how == 1 ? 1e6 : 0.25, how == 2, norms, host, n);
            assert_true(how == 2 ? isnan(norms[2]) : norms[2] > 0);
            clipped(how == 1 ? 1e6 : 0.25, how == 2, NULL, device, n);
            assert_memory_equal(host, device, n * sizeof(float));
            assert_int_equal(isnan(device[0]), how == 2);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_in_f32_and_lent_weights),
        cmocka_unit_test(test_the_update_writes_16_bits),
        cmocka_unit_test(test_clipping_waits_for_nobody),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
