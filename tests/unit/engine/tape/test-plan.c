/* SPDX-License-Identifier: MIT */
/* The plan of memory and of the first writers of gradients, on random lifetimes and random graphs.
 */
#include "runtime/engine/tape/tape_private.h"
#include "tests/lib/on_device.h"
#include "tests/unit/engine/engine_random.h"

/* No two that are alive at the same position overlap, and all lie within the total. */
static void check_places(const struct pl_lifetimes *p, size_t total)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct pl_lifetime *a = &p->list[i];

        assert_int_equal(a->offset % PL_BUMP_ALIGN, 0);
        assert_true(a->offset + a->bytes <= total);
        for (size_t k = 0; k < i; k++) {
            const struct pl_lifetime *b = &p->list[k];
            bool together = a->from <= b->to && b->from <= a->to;
            bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;

            if (together && !apart)
                fail_msg("places %zu and %zu overlap", i, k);
        }
    }
}

static void test_places_of_random_lives(void **state)
{
    for (uint64_t seed = 0; seed < 200; seed++) {
        struct pl_lifetimes p = {0};
        size_t span, total, sum = 0, crowded = 0;
        struct pl_rng rng;

        pl_rng_init(&rng, seed, 1);
        span = 1 + (size_t)pl_rng_below(&rng, 100);
        for (size_t i = (size_t)pl_rng_below(&rng, 300); i > 0; i--) {
            size_t from = (size_t)pl_rng_below(&rng, span), bytes;

            bytes = (size_t)pl_rng_below(&rng, pl_rng_below(&rng, 2) ? 100 : 100000);
            pl_lifetimes_add(&p, bytes, from, from + (size_t)pl_rng_below(&rng, span - from));
        }
        total = pl_lifetimes_set(&p, false);
        check_places(&p, total);
        for (size_t i = 0; i < p.n; i++)
            sum += p.list[i].bytes;
        for (size_t at = 0; at < span; at++) {
            size_t alive = 0;

            for (size_t i = 0; i < p.n; i++)
                if (p.list[i].from <= at && at <= p.list[i].to)
                    alive += p.list[i].bytes;
            crowded = PL_MAX(crowded, alive);
        }
        assert_true(total >= crowded && total <= sum);
        assert_int_equal(pl_lifetimes_set(&p, true), sum); /* no_reuse: no gap, nothing shared */
        free(p.list);
    }
}

static void test_places_of_nothing(void **state)
{
    struct pl_lifetimes p = {0};

    assert_int_equal(pl_lifetimes_add(&p, 0, 0, 9), SIZE_MAX);
    assert_int_equal(pl_lifetimes_set(&p, false), 0);
    assert_false(p.bad);
}

enum kind { F64, F32, AUTOCAST, ALL_BF16 };

/* Runs seed's function with all memory, and all gradients, full of NaNs before. Returns the
 * loss. */
static double
run_random(struct random_net *r, uint64_t seed, size_t ops, enum kind kind, bool spread)
{
    struct pl_tape *tape = &r->net.tape;
    plume_tensor *loss;

    random_make(r, pl_device_cpu(), kind == F64 ? PL_REAL_F64 : PL_REAL_F32, seed, ops);
    tape->amp_dtype = kind >= AUTOCAST ? PLUME_BF16 : 0;
    tape->amp_o3 = kind == ALL_BF16;
    tape->no_reuse = spread;
    pl_tape_begin(tape);
    loss = random_function(&r->net);
    pl_tape_end(tape);
    assert_int_equal(pl_tape_prepare(tape, &loss, 1, 1, NULL), 0);
    memset(tape->memory, 0xff, tape->memory_bytes);
    assert_int_equal(pl_tape_forward(tape, NULL), 0);
    for (size_t i = 0; i < r->net.n; i++)
        if (pl_tape_reaches(tape, &r->net.t[i]))
            memset(r->net.t[i].grad, 0xff, r->net.t[i].count * 8);
    assert_int_equal(backward(&r->net, loss), 0);
    return on_device_scalar(loss);
}

/* Sharing memory changes no bit in any type, and nothing is read before it is written. */
static void test_sharing_memory_changes_nothing(void **state)
{
    size_t shared = 0, alone = 0;

    for (uint64_t seed = 0; seed < 400; seed++) {
        enum kind kind = (enum kind)(seed % 4);
        struct random_net a, b;
        double x = run_random(&a, seed, 5 + seed % 40, kind, false);
        double y = run_random(&b, seed, 5 + seed % 40, kind, true);

        if (!isfinite(x) || x != y)
            fail_msg("seed %d: loss %g, without sharing %g", (int)seed, x, y);
        for (size_t i = 0; i < a.net.n; i++) {
            const plume_tensor *g = &a.net.t[i];

            for (size_t k = 0; k < g->count; k++)
                if (!isfinite(kind == F64 ? ((double *)g->grad)[k] : ((float *)g->grad)[k]))
                    fail_msg("seed %d: gradient %zu[%zu] is no number", (int)seed, i, k);
            if (memcmp(g->grad, b.net.t[i].grad, g->count * pl_dtype_size(g->dtype)) != 0)
                fail_msg("seed %d: gradient %zu depends on sharing", (int)seed, i);
        }
        shared += a.net.tape.memory_bytes;
        alone += b.net.tape.memory_bytes;
        finish(&a.net);
        finish(&b.net);
    }
    print_message("# %zu bytes of %zu\n", shared, alone);
    assert_true(2 * shared < alone);
}

/* The gradient along one direction against central differences, as in engine_net.h. */
static void test_gradients_of_random_graphs(void **state)
{
    const double h = 1e-5;

    for (uint64_t seed = 1000; seed < 1300; seed++) {
        double slope = 0, value[2], want;
        struct random_net r;
        struct pl_rng rng;

        run_random(&r, seed, 5 + seed % 40, F64, false);
        pl_rng_init(&rng, seed, 8);
        for (size_t i = 0; i < r.net.n; i++)
            for (size_t k = 0; k < r.net.t[i].count; k++) {
                double way = pl_rng_normal(&rng), *x = (double *)r.net.t[i].data + k;

                slope += way * ((double *)r.net.t[i].grad)[k];
                *x += h * way;
            }
        value[0] = value_of(&r.net, random_function);
        pl_rng_init(&rng, seed, 8);
        for (size_t i = 0; i < r.net.n; i++)
            for (size_t k = 0; k < r.net.t[i].count; k++)
                ((double *)r.net.t[i].data)[k] -= 2 * h * pl_rng_normal(&rng);
        value[1] = value_of(&r.net, random_function);
        want = (value[0] - value[1]) / (2 * h);
        if (fabs(slope - want) > 1e-6 * fmax(1, fabs(want)))
            fail_msg("seed %d: slope %.9g, differences say %.9g", (int)seed, slope, want);
        assert_int_equal(r.net.tape.recordings, 1);
        finish(&r.net);
    }
}

/* Nodes 0 and 1: a layer and a batch norm of it, which nobody reads, but which updates its
 * statistics. Nodes 2 and 3: a layer and its activation, which nobody reads. Node 4: the loss. */
static plume_tensor *f_unread(struct net *net)
{
    plume_tensor *x = &net->t[0], *w = &net->t[1], *b = &net->t[2], *layer;

    layer = CALL(PLUME_OP_LINEAR, 0, x, w, b);
    CALL(PLUME_OP_BATCHNORM, 0, layer, b, &net->t[5], &net->t[3], &net->t[4]);
    layer = CALL(PLUME_OP_LINEAR, PLUME_RELU, x, w, b);
    CALL(PLUME_OP_UNARY, PLUME_TANH, layer);
    return CALL(PLUME_OP_MSE, 0, w, &net->t[6]);
}

static void test_what_nobody_reads_does_not_run(void **state)
{
    static const bool unread[] = {false, false, true, true, false};
    const struct pl_node *node;
    struct net net = {0};
    plume_tensor *roots[2];
    double mean, flops;

    (void)state;
    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){6, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    for (size_t i = 0; i < 4; i++)
        leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    net.t[3].wants_grad = net.t[4].wants_grad = false;
    mean = *(double *)net.t[3].data;
    roots[0] = forward(&net, f_unread);
    assert_int_equal(net.tape.n, PL_COUNT(unread));
    for (size_t i = 0; i < net.tape.n; i++) {
        node = &net.tape.nodes[i];
        assert_int_equal(node->unread, unread[i]);
        assert_int_equal(!node->out->data, node->unread);
    }
    assert_true(*(double *)net.t[3].data != mean);
    flops = pl_tape_flops(&net.tape, false);
    roots[1] = net.tape.nodes[2].out; /* the caller reads it now */
    assert_int_equal(pl_tape_prepare(&net.tape, roots, 2, 1, NULL), 0);
    assert_false(net.tape.nodes[2].unread);
    node = &net.tape.nodes[2];
    assert_true(pl_tape_flops(&net.tape, false) == flops + node->op->flops(node, false));
    assert_true(net.tape.nodes[3].unread);
    net.tape.no_drop = true;
    net.tape.planned = false;
    assert_int_equal(pl_tape_prepare(&net.tape, roots, 2, 1, NULL), 0);
    assert_false(net.tape.nodes[3].unread);
    finish(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places_of_random_lives),
        cmocka_unit_test(test_places_of_nothing),
        cmocka_unit_test(test_sharing_memory_changes_nothing),
        cmocka_unit_test(test_gradients_of_random_graphs),
        cmocka_unit_test(test_what_nobody_reads_does_not_run),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
