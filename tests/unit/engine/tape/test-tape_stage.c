/* SPDX-License-Identifier: MIT */
/* A random graph whose ops are cut anywhere into stages gives the bits of the whole tape: the loss,
 * and the gradients of its leaves, which several stages may use. */
#include "runtime/engine/tape/op_times.h"
#include "tests/unit/engine/engine_random.h"

#include <time.h>

#define GRAPHS 400
#define STAGES 5

struct whole {
    struct random_net r;
    struct pl_tape_flow flow;
    plume_tensor *loss;
    double value;
    double *grads[4];
};

static double element(const plume_tensor *t, const void *data, size_t i)
{
    return t->dtype == PLUME_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Traces the function, runs a second tape of it whole, and keeps its results. */
static void make_whole(struct whole *w, enum pl_real real, uint64_t seed)
{
    struct random_net *run = calloc(1, sizeof(*run));
    struct pl_error err = {0};
    plume_tensor *loss;

    random_make(&w->r, pl_device_cpu(), real, seed, 4 + seed % 24);
    pl_tape_begin(&w->r.net.tape);
    w->loss = random_function(&w->r.net);
    pl_tape_end(&w->r.net.tape);
    assert_int_equal(pl_tape_flow_init(&w->flow, &w->r.net.tape, w->loss, NULL), 0);

    random_make(run, pl_device_cpu(), real, seed, 4 + seed % 24);
    pl_tape_begin(&run->net.tape);
    loss = random_function(&run->net);
    pl_tape_end(&run->net.tape);
    assert_int_equal(pl_tape_prepare(&run->net.tape, &loss, 1, 1, &err), 0);
    run->net.tape.step = seed;
    assert_int_equal(pl_tape_forward(&run->net.tape, &err), 0);
    assert_int_equal(
        pl_tape_backward(&run->net.tape, &(struct pl_backward){.loss = loss, .seed = 1}, &err), 0);
    w->value = element(loss, pl_tensor_data(loss), 0);
    for (size_t i = 0; i < 4; i++) {
        const plume_tensor *t = &run->net.t[i];

        w->grads[i] = calloc(t->count, sizeof(double));
        for (size_t k = 0; k < t->count; k++)
            w->grads[i][k] = pl_tape_reaches(&run->net.tape, t) ? element(t, t->grad, k) : 0;
    }
    finish(&run->net);
    free(run);
}

static void free_whole(struct whole *w)
{
    pl_tape_flow_finish(&w->flow);
    for (size_t i = 0; i < 4; i++)
        free(w->grads[i]);
    finish(&w->r.net);
}

/* The tensors that leave a stage enter the next one in the same order. */
static void pass_on(struct pl_stage_tape *from, struct pl_stage_tape *to, bool grads)
{
    assert_int_equal(from->n_out, to->n_in);
    for (size_t i = 0; i < from->n_out; i++) {
        assert_int_equal(from->out[i].node, to->in[i].node);
        assert_int_equal(from->out[i].grad, to->in[i].grad);
        if (!grads)
            memcpy(to->in[i].t->data, from->out[i].t->data, from->out[i].bytes);
        else if (from->out[i].grad)
            memcpy(from->out[i].t->grad, to->in[i].t->grad, from->out[i].bytes);
    }
}

static void run_stages(struct whole *w, struct pl_stage_tape *s, unsigned n, double *sums[4])
{
    struct pl_error err = {0};

    for (unsigned i = 0; i < n; i++) {
        s[i].tape.step = w->r.seed;
        if (i > 0)
            pass_on(&s[i - 1], &s[i], false);
        assert_int_equal(pl_tape_forward(&s[i].tape, &err), 0);
        if (s[i].loss && element(s[i].loss, pl_tensor_data(s[i].loss), 0) != w->value)
            fail_msg("seed %llu: another loss", (unsigned long long)w->r.seed);
    }
    for (unsigned i = n; i-- > 0;) {
        for (size_t k = 0; k < 4; k++)
            memset(w->r.net.t[k].grad, 0, w->r.net.t[k].count * 8);
        if (i + 1 < n)
            pass_on(&s[i], &s[i + 1], true);
        assert_int_equal(
            pl_tape_backward(&s[i].tape, &(struct pl_backward){.loss = s[i].loss, .seed = 1}, &err),
            0);
        for (size_t k = 0; k < 4; k++)
            for (size_t e = 0;
                 pl_tape_reaches(&s[i].tape, &w->r.net.t[k]) && e < w->r.net.t[k].count; e++)
                sums[k][e] += element(&w->r.net.t[k], w->r.net.t[k].grad, e);
    }
}

/* Gradients of leaves that several stages use are added up in another order. */
static void compare(const struct whole *w, double *const sums[4], double tolerance)
{
    for (size_t k = 0; k < 4; k++)
        for (size_t e = 0; e < w->r.net.t[k].count; e++)
            if (!(fabs(sums[k][e] - w->grads[k][e]) <= tolerance * (1 + fabs(w->grads[k][e]))))
                fail_msg("seed %llu, leaf %zu: %.17g, not %.17g", (unsigned long long)w->r.seed, k,
                         sums[k][e], w->grads[k][e]);
}

static void cut_anywhere(enum pl_real real, uint64_t seed, double tolerance)
{
    struct whole w = {0};
    struct pl_stage_tape stages[STAGES] = {0};
    struct pl_rng rng;
    double *sums[4];

    make_whole(&w, real, seed);
    pl_rng_init(&rng, seed, 99);
    for (unsigned round = 0; round < 3; round++) { /* the same memory, built again */
        size_t n = w.r.net.tape.n, cut[STAGES + 1] = {0};
        unsigned count = 1 + (unsigned)pl_rng_below(&rng, STAGES);

        for (unsigned i = 1; i < count; i++)
            cut[i] = cut[i - 1] + pl_rng_below(&rng, n - cut[i - 1] + 1);
        cut[count] = n;
        for (size_t k = 0; k < 4; k++)
            sums[k] = calloc(w.r.net.t[k].count, sizeof(double));
        for (unsigned i = 0; i < count; i++) {
            struct pl_error err = {0};
            int r = pl_stage_tape_build(&stages[i], &w.r.net.tape, &w.flow, cut[i], cut[i + 1],
                                        &(struct pl_stage_build){.loss = w.loss}, &err);

            if (r == 0)
                r = pl_stage_tape_prepare(&stages[i], NULL, 0, &err);
            if (r < 0)
                fail_msg("seed %llu: %s", (unsigned long long)seed, pl_error_text(&err));
        }
        run_stages(&w, stages, count, sums);
        compare(&w, sums, tolerance);
        for (size_t k = 0; k < 4; k++)
            free(sums[k]);
    }
    for (unsigned i = 0; i < STAGES; i++)
        pl_stage_tape_finish(&stages[i]);
    free_whole(&w);
}

static void test_stages_are_the_whole(void **state)
{
    for (uint64_t seed = 0; seed < GRAPHS; seed++) {
        cut_anywhere(PL_REAL_F64, seed, 1e-12);
        cut_anywhere(PL_REAL_F32, seed, 1e-4);
    }
}

/* Ops are timed although the tape and the leaves have no memory. */
static void test_ops_are_timed_alone(void **state)
{
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct whole w = {0};
        double *seconds, *kept, sum = 0, bytes = 0;
        void *data[4];

        make_whole(&w, PL_REAL_F32, seed);
        seconds = calloc(w.r.net.tape.n, sizeof(*seconds));
        kept = calloc(w.r.net.tape.n, sizeof(*kept));
        for (size_t i = 0; i < 4; i++) {
            data[i] = w.r.net.t[i].data;
            w.r.net.t[i].data = NULL;
            w.r.net.t[i].number = (unsigned)i + 1; /* parameters */
        }
        assert_int_equal(pl_op_times(&w.r.net.tape, &w.flow, w.loss, seconds, kept, NULL), 0);
        for (size_t i = 0; i < w.r.net.tape.n; i++) {
            assert_true(w.r.net.tape.nodes[i].op->view ? seconds[i] == 0 : seconds[i] > 0);
            sum += seconds[i];
            bytes += kept[i];
        }
        assert_true(sum < 10 && bytes > 0);
        for (size_t i = 0; i < 4; i++)
            w.r.net.t[i].data = data[i];
        free(seconds);
        free(kept);
        free_whole(&w);
    }
}

#define HELD_NS 60000000 /* longer than ops are repeated for */

static struct pl_op slow_once;
static const struct pl_op *slow_of;
static unsigned slow_calls;

static void held_forward(const struct pl_call *call)
{
    if (slow_calls++ == 0)
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){0, HELD_NS}, NULL);
    slow_of->forward(call);
}

/* Another process has the processor while an op runs for the first time. */
static void test_an_op_that_is_held_up_once_is_timed_again(void **state)
{
    struct net net = {0};
    struct pl_tape_flow flow;
    struct pl_error err = {0};
    plume_tensor *out;
    double seconds, kept;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F32, true);
    leaf(&net, PL_REAL_F32, 1, (size_t[]){3});
    pl_tape_begin(&net.tape);
    assert_int_equal(pl_op_call(&net.tape, PLUME_OP_AFFINE, (plume_tensor *[]){&net.t[0]}, 1,
                                &(struct plume_op_args){{0}, {1, 0}}, &out, &err),
                     0);
    pl_tape_end(&net.tape);
    slow_of = net.tape.nodes[0].op;
    slow_once = *slow_of;
    slow_once.forward = held_forward;
    net.tape.nodes[0].op = &slow_once;
    assert_int_equal(pl_tape_flow_init(&flow, &net.tape, NULL, &err), 0);
    assert_int_equal(pl_op_times(&net.tape, &flow, NULL, &seconds, &kept, &err), 0);
    assert_true(slow_calls > 1 && seconds < 0.9e-9 * HELD_NS);
    net.tape.nodes[0].op = slow_of;
    pl_tape_flow_finish(&flow);
    finish(&net);
}

/* More tensors than may cross are told. */
static void test_too_many_crossing_tensors(void **state)
{
    struct net net = {0};
    struct pl_tape_flow flow;
    struct pl_stage_tape stage = {0};
    struct pl_error err = {0};
    plume_tensor *list[PL_STAGE_PASSES_MAX + 1], *sum;
    double forward, back;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F32, true);
    leaf(&net, PL_REAL_F32, 1, (size_t[]){3});
    pl_tape_begin(&net.tape);
    for (size_t i = 0; i < PL_COUNT(list); i++)
        assert_int_equal(pl_op_call(&net.tape, PLUME_OP_AFFINE, (plume_tensor *[]){&net.t[0]}, 1,
                                    &(struct plume_op_args){{0}, {(double)i, 0}}, &list[i], &err),
                         0);
    assert_int_equal(pl_op_call(&net.tape, PLUME_OP_CAT, list, PL_COUNT(list),
                                &(struct plume_op_args){{0}, {0}}, &sum, &err),
                     0);
    pl_tape_end(&net.tape);
    assert_int_equal(pl_tape_flow_init(&flow, &net.tape, NULL, &err), 0);
    assert_int_equal(pl_tape_crossing(&net.tape, &flow, PL_COUNT(list), &forward, &back),
                     PL_COUNT(list));
    assert_true(forward == (double)(PL_COUNT(list) * 3 * sizeof(float)) && back == 0);
    assert_int_equal(pl_stage_tape_build(&stage, &net.tape, &flow, 0, PL_COUNT(list),
                                         &(struct pl_stage_build){0}, &err),
                     -E2BIG);
    assert_non_null(strstr(err.text, "tensors cross the cut before op"));
    pl_stage_tape_finish(&stage);
    pl_tape_flow_finish(&flow);
    finish(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_are_the_whole),
        cmocka_unit_test(test_ops_are_timed_alone),
        cmocka_unit_test(test_an_op_that_is_held_up_once_is_timed_again),
        cmocka_unit_test(test_too_many_crossing_tensors),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
