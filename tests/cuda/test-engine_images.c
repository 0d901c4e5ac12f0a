/* SPDX-License-Identifier: MIT */
/* Images on a device of the emulated CUDA kernels, in random networks of convolutions and batch
 * norms: what a norm's kernel does on the way (tape_fuse.c) changes no bit, and channels that are
 * last in memory change only the order of sums. */
#include "runtime/engine/tape/tape_private.h"
#include "tests/cuda/fake_device.h"
#include "tests/unit/engine/engine_net.h"

#define CHANNELS 8
#define SHOWN_MAX 4
#define BATCH 3
/* Of the twelve ways to run, each once with AddressSanitizer, which makes all six times slower;
 * else twice, so that each has memory that is shared and that is not. */
#ifdef __SANITIZE_ADDRESS__
#define ROUNDS 1
#else
#define ROUNDS 2
#endif
#define SEEDS (ROUNDS * 12)

struct how {
    bool host, fuse, reuse, last;
    enum plume_dtype low;
    int level; /* of --amp-level */
};

struct images {
    struct net net;
    struct pl_rng rng;
    uint64_t seed;
    plume_tensor *roots[1 + SHOWN_MAX];
    size_t n_roots;
    double loss;
};

/* The leaves of a network. */
enum { X, STEM, KERNEL, POINT, SCALE, SHIFT, MEAN, VARIANCE, LABELS };

static size_t below(struct images *s, size_t limit)
{
    return (size_t)pl_rng_below(&s->rng, limit);
}

static plume_tensor *apply(struct images *s,
                           enum plume_op op,
                           size_t n,
                           plume_tensor *const *in,
                           const struct plume_op_args *args)
{
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (pl_op_call(&s->net.tape, op, in, n, args, &t, &err) < 0)
        fail_msg("seed %d: %s", (int)s->seed, pl_error_text(&err));
    return t;
}

#define ARGS(...)                                                                                  \
    &(struct plume_op_args)                                                                        \
    {                                                                                              \
        {__VA_ARGS__},                                                                             \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }
#define APPLY(op, args, ...)                                                                       \
    apply(s, op, sizeof((plume_tensor *[]){__VA_ARGS__}) / sizeof(plume_tensor *),                 \
          (plume_tensor *[]){__VA_ARGS__}, args)

static plume_tensor *convolve(struct images *s, plume_tensor *x, int64_t stride, int64_t act)
{
    bool point = below(s, 3) == 0;

    return APPLY(PLUME_OP_CONV2D, ARGS(stride, !point, act), x, &s->net.t[point ? POINT : KERNEL]);
}

static plume_tensor *normalize(struct images *s, plume_tensor *x, int64_t act)
{
    plume_tensor *t = s->net.t;

    return APPLY(PLUME_OP_BATCHNORM, ARGS(act), x, &t[SCALE], &t[SHIFT], &t[MEAN], &t[VARIANCE]);
}

static plume_tensor *add(struct images *s, plume_tensor *a, plume_tensor *b)
{
    return APPLY(PLUME_OP_BINARY, ARGS(0), a, b);
}

static plume_tensor *relu(struct images *s, plume_tensor *x)
{
    return APPLY(PLUME_OP_UNARY, ARGS(PLUME_RELU), x);
}

/* By an op that reads f32 and writes f32 at each level, as losses do. */
static plume_tensor *square_in_f32(struct images *s, plume_tensor *x)
{
    struct plume_op_args args = {{2}, {0}};

    args.i[PLUME_OP_ARG_F32] = 1;
    return APPLY(PLUME_OP_BINARY, &args, x, x);
}

/* As in a ResNet, also where it changes the shape; or something else reads x between the norm and
 * the sum. */
static plume_tensor *block(struct images *s, plume_tensor *x)
{
    plume_tensor *h = normalize(s, convolve(s, x, 1, PLUME_IDENTITY), PLUME_RELU), *other = NULL;
    size_t kind = below(s, 4);

    h = normalize(s, convolve(s, h, 1, PLUME_IDENTITY), PLUME_IDENTITY);
    if (kind == 0)
        x = normalize(s, convolve(s, x, 1, PLUME_IDENTITY), PLUME_IDENTITY);
    if (kind == 1)
        other = relu(s, x);
    h = relu(s, below(s, 2) ? add(s, h, x) : add(s, x, h));
    return other ? add(s, h, other) : h;
}

static plume_tensor *turn(struct images *s, plume_tensor *x)
{
    size_t rows = x->shape[0], rest = x->count / rows, h = x->shape[2], w = x->shape[3];

    x = APPLY(PLUME_OP_RESHAPE, ARGS(2, (int64_t)rows, (int64_t)rest), x);
    return APPLY(PLUME_OP_RESHAPE, ARGS(4, (int64_t)rows, CHANNELS, (int64_t)h, (int64_t)w), x);
}

static plume_tensor *step(struct images *s, plume_tensor *x)
{
    switch (below(s, 12)) {
    case 0:
        return convolve(s, x, 1, PLUME_RELU);
    case 1:
        return x->shape[2] < 4 ? x : convolve(s, x, 2, PLUME_IDENTITY);
    case 2:
        return normalize(s, x, below(s, 2) ? PLUME_RELU : PLUME_IDENTITY);
    case 3:
        return x->shape[2] < 4 ? x : APPLY(PLUME_OP_POOL2D, ARGS(2, 2, 0, (int64_t)below(s, 2)), x);
    case 4:
        return add(s, x, x);
    case 5:
        return turn(s, x);
    case 6:
        return APPLY(PLUME_OP_BINARY, ARGS(2), x, APPLY(PLUME_OP_UNARY, ARGS(PLUME_TANH), x));
    case 7:
        return add(s, x, block(s, x)); /* x has another reader */
    case 8:
        return relu(s, add(s, x, normalize(s, x, PLUME_IDENTITY)));
    case 9:
        return square_in_f32(s, normalize(s, square_in_f32(s, x), PLUME_IDENTITY));
    default:
        return block(s, x);
    }
}

static plume_tensor *trace(struct images *s)
{
    plume_tensor *x = APPLY(PLUME_OP_CONV2D, ARGS(1, 1, 0), &s->net.t[X], &s->net.t[STEM]);

    s->n_roots = 1;
    for (size_t i = 1 + below(s, 4); i > 0; i--) {
        if (below(s, 3) == 0)
            x = normalize(s, x, PLUME_RELU);
        x = step(s, x);
        if (below(s, 5) == 0 && s->n_roots <= SHOWN_MAX)
            s->roots[s->n_roots++] = x; /* as if a hook had asked for it */
    }
    x = APPLY(PLUME_OP_REDUCE, ARGS(2, 4, 0, 1), x);
    return APPLY(PLUME_OP_CROSS_ENTROPY, ARGS(0), x, &s->net.t[LABELS]);
}

static void make_leaves(struct images *s, size_t in, size_t height, size_t width)
{
    struct net *net = &s->net;

    leaf(net, PL_REAL_F32, 4, (size_t[]){BATCH, in, height, width});
    leaf(net, PL_REAL_F32, 4, (size_t[]){CHANNELS, in, 3, 3});
    leaf(net, PL_REAL_F32, 4, (size_t[]){CHANNELS, CHANNELS, 3, 3});
    leaf(net, PL_REAL_F32, 4, (size_t[]){CHANNELS, CHANNELS, 1, 1});
    leaf(net, PL_REAL_F32, 1, (size_t[]){CHANNELS});
    leaf(net, PL_REAL_F32, 1, (size_t[]){CHANNELS});
    for (int i = MEAN; i <= VARIANCE; i++) {
        plume_tensor *t = leaf(net, PL_REAL_F32, 1, (size_t[]){CHANNELS});

        t->wants_grad = t->is_param = false;
    }
    labels(net, BATCH, CHANNELS);
    for (size_t i = 0; i < net->t[KERNEL].count; i++) /* sums of 72 stay small */
        ((float *)net->t[KERNEL].data)[i] /= 6;
    for (size_t i = 0; i < net->t[POINT].count; i++)
        ((float *)net->t[POINT].data)[i] /= 2;
}

static size_t joined; /* sums and relus that norms do, of all runs */

/* Returns the number of other nodes that norms do. */
static size_t run(struct images *s, uint64_t seed, const struct how *how)
{
    struct pl_tape *tape = &s->net.tape;
    struct pl_error err = {0};
    size_t absorbed = 0;

    *s = (struct images){.seed = seed};
    pl_rng_init(&s->rng, seed, 4);
    pl_tape_init(tape, how->host ? pl_device_cpu() : fake_device(), PL_REAL_F32, true);
    make_leaves(s, (size_t[]){1, 3, CHANNELS}[below(s, 3)], 2 + below(s, 5), 2 + below(s, 5));
    tape->amp_dtype = how->low;
    tape->amp_o2 = how->level == 2;
    tape->amp_o3 = how->level == 3;
    tape->no_reuse = !how->reuse;
    tape->no_fuse = !how->fuse;
    tape->channels_last = how->last;
    pl_tape_begin(tape);
    s->roots[0] = trace(s);
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, s->roots, s->n_roots, 1, NULL), 0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(tape, &err), 0);
        assert_int_equal(
            pl_tape_backward(
                tape, &(struct pl_backward){.loss = s->roots[0], .seed = 1, .accumulate = i}, NULL),
            0);
    }
    s->loss = on_device_scalar(s->roots[0]);
    for (size_t i = 0; i < tape->n; i++) {
        absorbed += tape->nodes[i].at[0] != i;
        joined += tape->nodes[i].fusion.r != NULL;
    }
    return absorbed;
}

static double number(const plume_tensor *t, const void *p, size_t i)
{
    return pl_dtype_is_16bit(t->dtype)
               ? (double)pl_f32_of_half(t->dtype == PLUME_F16 ? PL_HALF_F16 : PL_HALF_BF16,
                                        ((const uint16_t *)p)[i])
               : (double)((const float *)p)[i];
}

/* Element (n, c, h, w) or [i], whatever the order in memory. */
static size_t place(const plume_tensor *t, size_t i)
{
    size_t at = t->offset;

    for (size_t d = t->rank; d-- > 0; i /= t->shape[d])
        at += i % t->shape[d] * t->stride[d];
    return at;
}

static void compare_tensor(const struct images *a,
                           const plume_tensor *x,
                           const void *at_x,
                           const plume_tensor *y,
                           const void *at_y,
                           double tolerance,
                           const char *what)
{
    double most = 0, apart = 0;

    for (size_t i = 0; i < x->count; i++) {
        double have = number(x, at_x, place(x, i)), want = number(y, at_y, place(y, i));

        if (!isfinite(have) || !isfinite(want))
            fail_msg("seed %d: %s has %g and %g", (int)a->seed, what, have, want);
        most = fmax(most, fabs(want));
        apart = fmax(apart, fabs(have - want));
    }
    if (apart > tolerance * most)
        fail_msg("seed %d: %s is up to %g, and %g apart", (int)a->seed, what, most, apart);
}

/* tolerance: of the largest number of each tensor. */
static void compare(const struct images *a, const struct images *b, double tolerance)
{
    char what[32];

    for (size_t i = 0; i < a->net.n; i++) {
        const plume_tensor *x = &a->net.t[i], *y = &b->net.t[i];
        bool buffer = i == MEAN || i == VARIANCE;

        if (i == LABELS)
            continue;
        snprintf(what, sizeof(what), "%s %zu", buffer ? "buffer" : "gradient", i);
        compare_tensor(a, x, buffer ? x->data : x->grad, y, buffer ? y->data : y->grad, tolerance,
                       what);
    }
    assert_int_equal(a->n_roots, b->n_roots);
    for (size_t i = 0; i < a->n_roots; i++) {
        const plume_tensor *x = a->roots[i], *y = b->roots[i];

        snprintf(what, sizeof(what), "result %zu", i);
        compare_tensor(a, x, pl_tensor_root((plume_tensor *)x)->data, y,
                       pl_tensor_root((plume_tensor *)y)->data, tolerance, what);
    }
}

/* No norm writes to an array that it still reads. */
static void check_apart(const struct pl_tape *tape)
{
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_fusion *f = &tape->nodes[i].fusion;
        const char *x, *y;

        if (!tape->nodes[i].op->fuses)
            continue;
        for (int grad = 0; grad < 1 + tape->nodes[i].back; grad++) {
            x = grad ? pl_tape_grad(tape, f->x) : pl_tape_data(tape, f->x);
            y = grad ? f->y->grad : f->y->data;
            if (x && y && x < y + f->y->count * pl_dtype_size(f->y->dtype) &&
                y < x + f->x->count * pl_dtype_size(f->x->dtype))
                fail_msg("a norm's arrays overlap");
        }
        x = pl_tape_data(tape, f->x);
        y = f->y->grad;
        if (tape->nodes[i].back && x < y + f->y->count * pl_dtype_size(f->y->dtype) &&
            y < x + f->x->count * pl_dtype_size(f->x->dtype))
            fail_msg("a norm's input is gone before its backward");
    }
}

static const struct how levels[] = {{.low = PLUME_BF16, .level = 1}, {.low = PLUME_F16, .level = 1},
                                    {.low = PLUME_BF16, .level = 2}, {.low = PLUME_F16, .level = 2},
                                    {.low = PLUME_BF16, .level = 3}, {.level = 0}};

static void test_a_norm_does_what_is_around_it(void **state)
{
    size_t absorbed = 0;

    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct how plain = levels[seed % PL_COUNT(levels)], fused;
        struct images a, b;

        plain.last = seed / PL_COUNT(levels) % 2;
        fused = plain;
        fused.fuse = true;
        fused.reuse = seed / 3 % 2;
        absorbed += run(&a, seed, &fused);
        assert_int_equal(run(&b, seed, &plain), 0);
        compare(&a, &b, 0);
        finish(&a.net);
        finish(&b.net);
    }
    print_message("# %zu nodes are done by norms; %zu sums with relu\n", absorbed, joined);
    assert_true(absorbed > 5 * ROUNDS && joined > 2 * ROUNDS);
}

/* The host's kernels convert 16 bits by blocks: between them casts take no memory. */
static void test_a_norm_does_casts_on_the_host(void **state)
{
    size_t absorbed = 0, fused_bytes = 0, plain_bytes = 0;

    for (uint64_t seed = 200; seed < 200 + 2 * SEEDS; seed++) {
        struct how plain = levels[seed % PL_COUNT(levels)], fused;
        struct images a, b;

        plain.host = true;
        fused = plain;
        fused.fuse = true;
        fused.reuse = seed / 3 % 2;
        absorbed += run(&a, seed, &fused);
        assert_int_equal(run(&b, seed, &plain), 0);
        compare(&a, &b, 0);
        check_apart(&a.net.tape);
        fused_bytes += a.net.tape.unshared_bytes;
        plain_bytes += b.net.tape.unshared_bytes;
        finish(&a.net);
        finish(&b.net);
    }
    print_message("# %zu casts are done by norms: %zu bytes, %zu without\n", absorbed, fused_bytes,
                  plain_bytes);
    assert_true(absorbed > 5 * ROUNDS && fused_bytes < plain_bytes);
}

static void test_channels_last_are_the_same_images(void **state)
{
    size_t last = 0;

    for (uint64_t seed = 100; seed < 100 + 6 * ROUNDS; seed++) {
        struct how rows = levels[seed % PL_COUNT(levels)], channels;
        struct images a, b;

        rows.fuse = rows.reuse = true;
        channels = rows;
        channels.last = true;
        run(&a, seed, &channels);
        run(&b, seed, &rows);
        for (size_t i = 0; i < a.net.tape.n; i++) {
            last += a.net.tape.nodes[i].out->channels_last;
            assert_true(rows.level || !a.net.tape.nodes[i].out->channels_last);
        }
        for (size_t i = 0; i < b.net.tape.n; i++)
            assert_false(b.net.tape.nodes[i].out->channels_last);
        compare(&a, &b, rows.level == 0 ? 0 : rows.low == PLUME_F16 ? 0.02 : 0.1);
        finish(&a.net);
        finish(&b.net);
    }
    assert_true(last > 20 * ROUNDS);
}

static size_t count_copies(const struct pl_tape *tape)
{
    size_t n = 0;

    for (size_t i = 0; i < tape->n; i++)
        n += strcmp(tape->nodes[i].op->name, "copy") == 0;
    return n;
}

/* Between the convolutions of a chain nothing is transposed: only the image, the weights of 3x3,
 * and the result are. */
static void test_a_chain_stays_as_it_is(void **state)
{
    struct images one = {.seed = 0}, *s = &one;
    struct pl_tape *tape = &s->net.tape;
    plume_tensor *x, *h;

    pl_tape_init(tape, fake_device(), PL_REAL_F32, true);
    make_leaves(s, CHANNELS, 5, 4);
    tape->amp_dtype = PLUME_BF16;
    tape->channels_last = true;
    pl_tape_begin(tape);
    x = APPLY(PLUME_OP_CONV2D, ARGS(1, 1, 0), &s->net.t[X], &s->net.t[KERNEL]);
    h = normalize(s, x, PLUME_RELU);
    assert_int_equal(h->dtype, PLUME_BF16);
    h = APPLY(PLUME_OP_CONV2D, ARGS(1, 0, 0), h, &s->net.t[POINT]);
    h = relu(s, add(s, normalize(s, h, PLUME_IDENTITY), x));
    h = APPLY(PLUME_OP_CONV2D, ARGS(1, 1, PLUME_RELU), h, &s->net.t[KERNEL]);
    assert_true(h->channels_last);
    assert_int_equal(count_copies(tape), 2);
    h = APPLY(PLUME_OP_REDUCE, ARGS(2, 4, 0, 1), h);
    pl_tape_end(tape);
    assert_int_equal(count_copies(tape), 3);
    finish(&s->net);
}

static unsigned downloads;

static int counted_download(
    struct pl_device *dev, void *to, const void *from, size_t bytes, struct pl_error *err)
{
    downloads++;
    return pl_device_cpu()->ops->download(dev, to, from, bytes, err);
}

static int of_one_rank(void *ctx, double *sums, size_t n)
{
    return 0;
}

/* Over ranks a norm waits for its device once, and once more where the sums lose a variance. */
static void test_a_norm_over_ranks_waits_once(void **state)
{
    struct images one = {.seed = 0}, *s = &one;
    struct pl_tape *tape = &s->net.tape;
    struct pl_device *dev = fake_device();
    const struct pl_device_ops *usual = dev->ops;
    struct pl_device_ops ops = *usual;
    plume_tensor *y;

    ops.download = counted_download;
    dev->ops = &ops;
    pl_tape_init(tape, dev, PL_REAL_F32, true);
    make_leaves(s, CHANNELS, 5, 4);
    tape->allreduce = of_one_rank;
    pl_tape_begin(tape);
    y = normalize(s, &s->net.t[X], PLUME_IDENTITY);
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, &y, 1, 0, NULL), 0);
    for (unsigned times = 1; times <= 2; times++) {
        downloads = 0;
        assert_int_equal(pl_tape_forward(tape, NULL), 0);
        assert_int_equal(downloads, times);
        for (size_t i = 0; i < s->net.t[X].count; i++)
            ((float *)s->net.t[X].data)[i] = 3;
    }
    finish(&s->net);
    dev->ops = usual;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_norm_does_what_is_around_it),
        cmocka_unit_test(test_a_norm_does_casts_on_the_host),
        cmocka_unit_test(test_channels_last_are_the_same_images),
        cmocka_unit_test(test_a_chain_stays_as_it_is),
        cmocka_unit_test(test_a_norm_over_ranks_waits_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
