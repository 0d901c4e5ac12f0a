/* SPDX-License-Identifier: MIT */
/* Passes that a norm's kernel does on the way (tape_fuse.c), on random residual streams: the bits
 * are those of separate kernels, on the host and on a device of the emulated CUDA kernels. */
#include "runtime/engine/tape/tape_private.h"
#include "tests/cuda/fake_device.h"
#include "tests/lib/today.h"
#include "tests/unit/engine/engine_net.h"

#define POOL 8

/* A residual stream x, and what else is read at the end. */
struct stream {
    struct net net;
    struct pl_rng rng;
    uint64_t seed;
    plume_tensor *x, *pool[POOL];
    size_t n;
};

/* A way to run a stream. */
struct how {
    bool host, fuse, reuse;
    enum pl_real real;
    enum plume_dtype low;
    int level; /* of --amp-level */
};

static size_t below(struct stream *s, size_t limit)
{
    return (size_t)pl_rng_below(&s->rng, limit);
}

static plume_tensor *
apply(struct stream *s, enum plume_op op, size_t n, plume_tensor *const *in, int64_t arg, double p)
{
    struct plume_op_args args = {{arg}, {p}};
    struct pl_error err = {0};
    plume_tensor *t = NULL;

    if (pl_op_call(&s->net.tape, op, in, n, &args, &t, &err) < 0)
        fail_msg("seed %d: %s", (int)s->seed, pl_error_text(&err));
    return t;
}

#define APPLY(op, arg, p, ...)                                                                     \
    apply(s, op, sizeof((plume_tensor *[]){__VA_ARGS__}) / sizeof(plume_tensor *),                 \
          (plume_tensor *[]){__VA_ARGS__}, arg, p)

/* Reads t at the end, now and then. */
static plume_tensor *maybe_keep(struct stream *s, plume_tensor *t, size_t one_of)
{
    if (below(s, one_of) == 0 && s->n < POOL)
        s->pool[s->n++] = t;
    return t;
}

static plume_tensor *norm(struct stream *s, plume_tensor *x)
{
    size_t how = below(s, 6);

    if (how < 2) /* 1: of the root mean square */
        return APPLY(PLUME_OP_LAYERNORM, (int64_t)how, 1e-3, x);
    if (how == 2)
        return APPLY(PLUME_OP_LAYERNORM, 1, 1e-3, x, &s->net.t[2]);
    return APPLY(PLUME_OP_LAYERNORM, 0, 1e-3, x, &s->net.t[2], &s->net.t[3]);
}

static plume_tensor *linear(struct stream *s, plume_tensor *x, enum plume_activation act)
{
    return APPLY(PLUME_OP_LINEAR, act, 0, x, &s->net.t[1]);
}

static plume_tensor *branch(struct stream *s, plume_tensor *y)
{
    switch (below(s, 6)) {
    case 0:
        return APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, y);
    case 1:
        return APPLY(PLUME_OP_DROPOUT, 0, 0.25, linear(s, y, PLUME_IDENTITY));
    case 2:
        return linear(s, y, PLUME_GELU);
    case 3:
        return APPLY(PLUME_OP_AFFINE, 0, 0.5, linear(s, y, PLUME_RELU));
    default:
        return linear(s, linear(s, y, PLUME_GELU_TANH), PLUME_IDENTITY);
    }
}

static plume_tensor *end(struct stream *s, plume_tensor *t)
{
    return APPLY(PLUME_OP_MSE, 0, 0, APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, t), &s->net.t[0]);
}

static plume_tensor *trace(struct stream *s)
{
    plume_tensor *loss, *x = &s->net.t[0], *h;

    pl_rng_init(&s->rng, s->seed, 3);
    s->n = 0;
    x = below(s, 4) ? APPLY(PLUME_OP_BINARY, 0, 0, x, linear(s, x, PLUME_IDENTITY))
                    : linear(s, x, PLUME_IDENTITY);
    for (size_t i = 1 + below(s, 6); i > 0; i--) {
        plume_tensor *y;

        if (below(s, 5) == 0)
            maybe_keep(s, APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, x), 1);
        y = maybe_keep(s, norm(s, x), 6);
        h = maybe_keep(s, branch(s, y), 6);
        if (below(s, 4) == 0) /* rows that are repeated, as positions are for each sample, or one */
            h = APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, &s->net.t[below(s, 2) ? 2 : 4]);
        x = h->rank < 3 || below(s, 3) ? APPLY(PLUME_OP_BINARY, 0, 0, x, h)
            : below(s, 3)              ? APPLY(PLUME_OP_BINARY, 0, 0, h, x)
                                       : APPLY(PLUME_OP_BINARY, 1, 0, x, h);
        maybe_keep(s, x, 6);
    }
    s->x = x;
    loss = end(s, norm(s, x));
    for (size_t i = 0; i < s->n; i++)
        loss = APPLY(PLUME_OP_BINARY, 0, 0, loss, end(s, s->pool[i]));
    return loss;
}

/* Two arrays that a kernel uses at the same time. */
static void
check_apart(const void *a, const plume_tensor *of_a, const void *b, const plume_tensor *of_b)
{
    const char *x = a, *y = b;

    if (x && y && x < y + of_b->count * pl_dtype_size(of_b->dtype) &&
        y < x + of_a->count * pl_dtype_size(of_a->dtype))
        fail_msg("a norm's arrays overlap");
}

/* Rows are read before they are written, so that results alone would not show all of it. */
static void check_norm(const struct pl_tape *tape, const struct pl_fusion *f)
{
    check_apart(pl_tape_data(tape, f->x), f->x, f->y->data, f->y);
    if (f->a) {
        check_apart(pl_tape_data(tape, f->a), f->a, f->y->data, f->y);
        check_apart(pl_tape_data(tape, f->b), f->b, f->y->data, f->y);
        check_apart(pl_tape_data(tape, f->a), f->a, f->x->data, f->x);
        check_apart(pl_tape_data(tape, f->b), f->b, f->x->data, f->x);
    }
    check_apart(pl_tape_grad(tape, f->x), f->x, f->y->grad, f->y);
    if (f->too) {
        check_apart(f->too->grad, f->too, f->y->grad, f->y);
        check_apart(f->too->grad, f->too, f->x->grad, f->x);
    }
}

/* Returns the number of nodes that others do. */
static size_t run(struct stream *s, uint64_t seed, const struct how *how, double *ret_loss)
{
    struct pl_device *dev = how->host ? pl_device_cpu() : fake_device();
    size_t width = seed % 3 ? 16 : 1 + seed % 11, absorbed = 0;
    struct pl_tape *tape = &s->net.tape;
    plume_tensor *roots[2];

    *s = (struct stream){.seed = seed};
    pl_tape_init(tape, dev, how->real, true);
    leaf(&s->net, how->real, 3, (size_t[]){2, 3, width});
    leaf(&s->net, how->real, 2, (size_t[]){width, width});
    leaf(&s->net, how->real, 1, (size_t[]){width});
    leaf(&s->net, how->real, 1, (size_t[]){width});
    leaf(&s->net, how->real, 2, (size_t[]){3, width});
    tape->amp_dtype = how->low;
    tape->amp_o2 = how->level == 2;
    tape->amp_o3 = how->level == 3;
    tape->no_reuse = !how->reuse;
    tape->no_fuse = !how->fuse;
    tape->seed = seed;
    pl_tape_begin(tape);
    roots[0] = trace(s);
    roots[1] = s->x; /* as if a hook had asked for it */
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, roots, 1 + seed % 2, 1, NULL), 0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(
                tape, &(struct pl_backward){.loss = roots[0], .seed = 1, .accumulate = i}, NULL),
            0);
    }
    *ret_loss = on_device_scalar(roots[0]);
    for (size_t i = 0; i < tape->n; i++) {
        absorbed += tape->nodes[i].at[0] != i;
        if (tape->nodes[i].op->fuses && tape->nodes[i].back)
            check_norm(tape, &tape->nodes[i].fusion);
    }
    return absorbed;
}

static void same_bits(const struct stream *a, const struct stream *b, const char *what)
{
    for (size_t i = 0; i < a->net.n; i++) {
        const plume_tensor *t = &a->net.t[i];

        if (memcmp(t->grad, b->net.t[i].grad, t->count * pl_dtype_size(t->dtype)) != 0)
            fail_msg("seed %d: gradient %zu, %s", (int)a->seed, i, what);
    }
}

static void compare(const struct how *how, uint64_t seeds, size_t least)
{
    size_t absorbed = 0;

    for (uint64_t seed = 0; seed < seeds; seed++)
        for (int reuse = 0; reuse < 2; reuse++) {
            struct how plain = *how, fused = *how;
            struct stream a, b;
            double x, y;

            if (!today(seed, 3))
                continue;
            fused.fuse = true;
            fused.reuse = reuse;
            absorbed += run(&a, seed, &fused, &x);
            assert_int_equal(run(&b, seed, &plain, &y), 0);
            if (!isfinite(x) || x != y)
                fail_msg("seed %d: loss %.9g, by separate kernels %.9g", (int)seed, x, y);
            same_bits(&a, &b, reuse ? "memory shared" : "memory apart");
            assert_true(reuse || a.net.tape.unshared_bytes <= b.net.tape.unshared_bytes);
            finish(&a.net);
            finish(&b.net);
        }
    print_message("# %zu nodes are done by others\n", absorbed);
    assert_true(absorbed >= (TODAY_ALL ? least : 0));
}

static void test_fused_on_the_host(void **state)
{
    compare(&(struct how){.host = true, .real = PL_REAL_F64}, 25, 30);
    compare(&(struct how){.host = true, .real = PL_REAL_F32}, 25, 30);
    compare(&(struct how){.host = true, .real = PL_REAL_F32, .low = PLUME_BF16, .level = 1}, 10, 5);
    compare(&(struct how){.host = true, .real = PL_REAL_F32, .low = PLUME_F16, .level = 3}, 5, 0);
}

static void test_fused_on_a_device(void **state)
{
    compare(&(struct how){.real = PL_REAL_F32}, 3, 4);
    for (int level = 1; level <= 3; level++) {
        enum plume_dtype low = level == 2 ? PLUME_F16 : PLUME_BF16;

        compare(&(struct how){.real = PL_REAL_F32, .low = low, .level = level}, 4, 6);
    }
}

/* Uses of a loss' logits. */
enum logits {
    LOSS_ONLY,
    COUNTED_BEFORE,  /* by `correct` */
    SCALED,          /* half of the loss */
    READ_BY_A_LAYER, /* of another loss, which comes later and is only shown */
    FUSED_UP_TO_HERE,
    COUNTED_AFTER = FUSED_UP_TO_HERE,
    READ_TOO,   /* by another op with a gradient */
    NORMED_TOO, /* added before the loss, by a norm after it */
    SHOWN,      /* to the hook */
    LOGITS
};

static plume_tensor *loss_of(struct stream *s, enum logits how, plume_tensor **ret_shown)
{
    plume_tensor *h = linear(s, &s->net.t[0], how == NORMED_TOO ? PLUME_RELU : PLUME_GELU_TANH);
    plume_tensor *z = linear(s, h, PLUME_IDENTITY), *loss, *sum = NULL;

    *ret_shown = z;
    if (how == COUNTED_BEFORE)
        *ret_shown = APPLY(PLUME_OP_CORRECT, 0, 0, z, &s->net.t[2]);
    if (how == READ_TOO)
        *ret_shown = APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, z);
    if (how == NORMED_TOO)
        sum = APPLY(PLUME_OP_BINARY, 0, 0, z, h);
    if (how == READ_BY_A_LAYER)
        sum = linear(s, z, PLUME_IDENTITY);
    loss = APPLY(PLUME_OP_CROSS_ENTROPY, 0, 0, z, &s->net.t[2]);
    if (how == NORMED_TOO)
        *ret_shown = APPLY(PLUME_OP_LAYERNORM, 0, 1e-3, sum);
    if (how == READ_BY_A_LAYER)
        *ret_shown = APPLY(PLUME_OP_CROSS_ENTROPY, 0, 0, sum, &s->net.t[2]);
    if (how == COUNTED_AFTER)
        *ret_shown = APPLY(PLUME_OP_CORRECT, 0, 0, z, &s->net.t[2]);
    if (how == READ_TOO)
        return APPLY(PLUME_OP_BINARY, 0, 0, loss,
                     APPLY(PLUME_OP_MSE, 0, 0, *ret_shown, &s->net.t[0]));
    return how == SCALED ? APPLY(PLUME_OP_AFFINE, 0, 0.5, loss) : loss;
}

/* Returns true if the loss writes the gradient of its logits over them. */
static bool
run_loss(struct stream *s, enum logits logits, size_t width, double seed, const struct how *how)
{
    struct pl_tape *tape = &s->net.tape;
    plume_tensor *roots[2];
    bool ahead = false;

    *s = (struct stream){.seed = width};
    pl_tape_init(tape, fake_device(), how->real, true);
    leaf(&s->net, how->real, 2, (size_t[]){7, width});
    leaf(&s->net, how->real, 2, (size_t[]){width, width});
    labels(&s->net, 7, width);
    tape->amp_dtype = how->low;
    tape->amp_o3 = how->level == 3;
    tape->no_reuse = !how->reuse;
    tape->no_fuse = !how->fuse;
    tape->chunk = 3;
    pl_tape_begin(tape);
    roots[0] = loss_of(s, logits, &roots[1]);
    s->x = roots[1];
    pl_tape_end(tape);
    assert_int_equal(
        pl_tape_prepare(tape, roots, logits == LOSS_ONLY || logits == SCALED ? 1 : 2, 1, NULL), 0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(tape, NULL), 0);
        assert_int_equal(
            pl_tape_backward(
                tape, &(struct pl_backward){.loss = roots[0], .seed = seed, .accumulate = i}, NULL),
            0);
    }
    for (size_t i = 0; i < tape->n; i++)
        ahead |= tape->nodes[i].fusion.ahead;
    return ahead;
}

/* One rounding more: of the gradient of a loss whose own gradient is not 1. */
static void test_gradients_of_logits_ahead(void **state)
{
    static const struct how hows[] = {{.real = PL_REAL_F32},
                                      {.real = PL_REAL_F64},
                                      {.real = PL_REAL_F32, .low = PLUME_BF16, .level = 1},
                                      {.real = PL_REAL_F32, .low = PLUME_BF16, .level = 3},
                                      {.real = PL_REAL_F32, .low = PLUME_F16, .level = 1}};

    for (size_t k = 0; k < PL_COUNT(hows) * LOGITS * 2; k++) {
        struct how how = hows[k / LOGITS / 2];
        enum logits logits = (enum logits)(k / 2 % LOGITS);
        size_t width = k % 2 ? 24 : 13;
        double seed = (k + k / 2 + k / LOGITS / 2) % 2 ? 1 : 0.7, most = 0, apart = 0;
        struct stream a, b;
        bool ahead;

        if (!today(k / 2, 3)) /* both widths of one */
            continue;
        how.reuse = k % 3;
        assert_false(run_loss(&b, logits, width, seed, &how));
        how.fuse = true;
        ahead = run_loss(&a, logits, width, seed, &how);
        if (logits != NORMED_TOO) /* where the norm's kernel may do the sum */
            assert_int_equal(ahead, logits < FUSED_UP_TO_HERE && how.low != PLUME_F16);
        for (size_t i = 0; i < 2; i++)
            for (size_t j = 0; j < a.net.t[i].count; j++) {
                const void *x = a.net.t[i].grad, *y = b.net.t[i].grad;
                bool f64 = how.real == PL_REAL_F64;
                double want = f64 ? ((double *)y)[j] : ((float *)y)[j];

                most = fmax(most, fabs(want));
                apart = fmax(apart, fabs(want - (f64 ? ((double *)x)[j] : ((float *)x)[j])));
            }
        assert_true(most > 0 && isfinite(apart));
        if (logits != LOSS_ONLY && logits != SCALED)
            assert_memory_equal(a.x->data, b.x->data, a.x->count * pl_dtype_size(a.x->dtype));
        if (apart > most * (how.low ? 0x1p-6 : how.real == PL_REAL_F64 ? 1e-13 : 2e-6))
            fail_msg("case %zu: gradients are up to %g, and %g apart", k, most, apart);
        finish(&a.net);
        finish(&b.net);
    }
}

/* Forms and uses of a language model's last layer. */
enum last {
    TIED, /* its weights are the first layer's */
    WITH_BIAS,
    AFTER_NORM, /* with autocast the norm casts for it */
    HALF_OF_IT, /* the loss' gradient is 0.5 */
    AFTER_SUM,  /* also; a sum's gradient has the memory of its terms' */
    BESIDE,     /* also; its gradient is another's, which is scratch memory before it is needed */
    INPUT_READ_TOO,
    NO_GRADIENT, /* of its input */
    EVALUATED,   /* no gradient at all */
    BY_CHUNKS_UP_TO_HERE,
    LOGITS_COUNTED = BY_CHUNKS_UP_TO_HERE,
    LOGITS_READ_TOO,
    LOGITS_SHOWN,
    ACTIVATED,
    LASTS
};

/* The shape of a last layer, and rows per chunk. */
struct last_shape {
    size_t rows, width, classes, chunk;
};

static struct last_shape draw_shape(uint64_t seed, enum last last)
{
    struct pl_rng rng;
    struct last_shape s;

    pl_rng_init(&rng, seed, 5);
    s.rows = 2 + (size_t)pl_rng_below(&rng, 20);
    s.width = 1 + (size_t)pl_rng_below(&rng, 24);
    s.classes = 2 + (size_t)pl_rng_below(&rng, 40);
    if (last == TIED || last == ACTIVATED || last == INPUT_READ_TOO || last == LOGITS_READ_TOO)
        s.classes = s.width = 2 + s.width;
    s.chunk = 1 + (size_t)pl_rng_below(&rng, s.rows - 1);
    return s;
}

static plume_tensor *last_loss(struct stream *s, enum last how, plume_tensor **ret_shown)
{
    plume_tensor *x = &s->net.t[0], *h = x, *z, *loss;

    if (how != NO_GRADIENT)
        h = linear(s, x, PLUME_GELU);
    if (how == AFTER_NORM)
        h = APPLY(PLUME_OP_LAYERNORM, 0, 1e-3, h, &s->net.t[5], &s->net.t[5]);
    if (how == AFTER_SUM)
        h = APPLY(PLUME_OP_BINARY, 0, 0, h, linear(s, x, PLUME_TANH));
    if (how == WITH_BIAS)
        z = APPLY(PLUME_OP_LINEAR, PLUME_IDENTITY, 0, h, &s->net.t[3], &s->net.t[4]);
    else
        z = APPLY(PLUME_OP_LINEAR, how == ACTIVATED ? PLUME_RELU : PLUME_IDENTITY, 0, h,
                  &s->net.t[how == TIED || how == ACTIVATED ? 1 : 3]);
    *ret_shown = z;
    if (how == LOGITS_COUNTED)
        *ret_shown = APPLY(PLUME_OP_CORRECT, 0, 0, z, &s->net.t[2]);
    if (how == BESIDE)
        h = APPLY(PLUME_OP_LINEAR, PLUME_GELU, 0, &s->net.t[5], &s->net.t[6]);
    loss = APPLY(PLUME_OP_CROSS_ENTROPY, 0, 0, z, &s->net.t[2]);
    if (how == BESIDE)
        loss = APPLY(PLUME_OP_BINARY, 0, 0, loss, h);
    if (how == INPUT_READ_TOO)
        return APPLY(PLUME_OP_BINARY, 0, 0, loss,
                     APPLY(PLUME_OP_MSE, 0, 0, APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, h), x));
    if (how == LOGITS_READ_TOO)
        return APPLY(PLUME_OP_BINARY, 0, 0, loss,
                     APPLY(PLUME_OP_MSE, 0, 0, APPLY(PLUME_OP_UNARY, PLUME_TANH, 0, z), x));
    return how >= HALF_OF_IT && how <= BESIDE ? APPLY(PLUME_OP_AFFINE, 0, 0.5, loss) : loss;
}

/* Returns true if the logits are nowhere as a whole. */
static bool run_last(struct stream *s,
                     enum last last,
                     const struct last_shape *shape,
                     const struct how *how,
                     double *ret_loss)
{
    struct pl_tape *tape = &s->net.tape;
    const size_t width = shape->width;
    plume_tensor *roots[2];
    bool chunked = false;

    *s = (struct stream){.seed = 0};
    pl_tape_init(tape, how->host ? pl_device_cpu() : fake_device(), how->real, last != EVALUATED);
    leaf(&s->net, how->real, 2, (size_t[]){shape->rows, width})->wants_grad = last != NO_GRADIENT;
    leaf(&s->net, how->real, 2, (size_t[]){width, width});
    labels(&s->net, shape->rows, shape->classes);
    leaf(&s->net, how->real, 2, (size_t[]){shape->classes, width});
    leaf(&s->net, how->real, 1, (size_t[]){shape->classes}); /* a bias */
    leaf(&s->net, how->real, 1, (size_t[]){width});
    leaf(&s->net, how->real, 2, (size_t[]){1, width});
    tape->amp_dtype = how->low;
    tape->amp_o3 = how->level == 3;
    tape->no_reuse = !how->reuse;
    tape->no_fuse = !how->fuse;
    tape->chunk = shape->chunk;
    pl_tape_begin(tape);
    roots[0] = last_loss(s, last, &roots[1]);
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, roots,
                                     last == LOGITS_SHOWN || last == LOGITS_COUNTED ? 2 : 1,
                                     last != EVALUATED, NULL),
                     0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pl_tape_forward(tape, NULL), 0);
        if (last != EVALUATED)
            assert_int_equal(
                pl_tape_backward(
                    tape, &(struct pl_backward){.loss = roots[0], .seed = 0.5 + i, .accumulate = i},
                    NULL),
                0);
    }
    for (size_t i = 0; i < tape->n; i++) {
        const struct pl_node *loss = &tape->nodes[i];

        if (!loss->fusion.product)
            continue;
        chunked = true;
        assert_null(loss->in[0]->data);
        assert_null(loss->in[0]->grad);
    }
    *ret_loss = on_device_scalar(roots[0]);
    return chunked;
}

/* Sums over rows are done in another order; in 16 bits each chunk rounds them. */
static void test_logits_by_chunks(void **state)
{
    static const struct how hows[] = {{.host = true, .real = PL_REAL_F64},
                                      {.host = true, .real = PL_REAL_F32},
                                      {.real = PL_REAL_F32},
                                      {.real = PL_REAL_F64},
                                      {.real = PL_REAL_F32, .low = PLUME_BF16, .level = 1},
                                      {.real = PL_REAL_F32, .low = PLUME_BF16, .level = 3},
                                      {.real = PL_REAL_F32, .low = PLUME_F16, .level = 1},
                                      {.host = true, .real = PL_REAL_F32, .low = PLUME_BF16}};

    for (size_t n = 0; n < PL_COUNT(hows) * LASTS * 2; n++) {
        struct how how = hows[n / LASTS / 2];
        enum last last = (enum last)(n / 2 % LASTS);
        bool f64 = how.real == PL_REAL_F64, copies = how.host && how.low;
        double one, other, most = 0, apart = 0;
        struct last_shape shape = draw_shape(n, last);
        struct stream a, b;

        if (!today(n / 2, 3))
            continue;
        how.reuse = n % 2;
        assert_false(run_last(&b, last, &shape, &how, &other));
        how.fuse = true;
        assert_int_equal(run_last(&a, last, &shape, &how, &one),
                         last < BY_CHUNKS_UP_TO_HERE && !copies &&
                             (how.low != PLUME_F16 || last == EVALUATED));
        if (!isfinite(one) || fabs(one - other) > (1 + fabs(other)) * (how.low ? 0.02
                                                                       : f64   ? 1e-15
                                                                               : 3e-7))
            fail_msg("case %zu: the loss is %.9g, by itself %.9g", n, one, other);
        for (size_t i = 0; last != EVALUATED && i < PL_COUNT(a.net.t); i++)
            for (size_t j = 0; a.net.t[i].wants_grad && j < a.net.t[i].count; j++) {
                const void *x = a.net.t[i].grad, *y = b.net.t[i].grad;
                double want = f64 ? ((double *)y)[j] : ((float *)y)[j];

                most = fmax(most, fabs(want));
                apart = fmax(apart, fabs(want - (f64 ? ((double *)x)[j] : ((float *)x)[j])));
            }
        assert_true(last == EVALUATED || (most > 0 && isfinite(apart)));
        if (apart > most * (how.low ? 0x1p-5 : f64 ? 1e-13 : 2e-6))
            fail_msg("case %zu: gradients are up to %g, and %g apart", n, most, apart);
        finish(&a.net);
        finish(&b.net);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fused_on_the_host),
        cmocka_unit_test(test_fused_on_a_device),
        cmocka_unit_test(test_gradients_of_logits_ahead),
        cmocka_unit_test(test_logits_by_chunks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
