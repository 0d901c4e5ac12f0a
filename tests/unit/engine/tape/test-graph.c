/* SPDX-License-Identifier: MIT */
/* Graphs of a tape (tape_graph.c), on a fake device with graphs: the CPU, whose kernels are
 * recorded by wrapping its table. The bits are compared with a run on the CPU itself. */
#include "runtime/engine/tape/tape_private.h"
#include "tests/unit/engine/engine_net.h"

#define JOBS_MAX 64
#define ROWS 6
#define WIDTH 5

struct job {
    void (*run)(const void *args);
    _Alignas(16) char args[256];
};

struct pl_device_graph {
    struct job jobs[JOBS_MAX];
    size_t n;
};

static struct {
    struct pl_device_graph *recording; /* NULL: calls are done */
    bool fails;                        /* captures do, from now on */
    bool stale;                        /* the next replay is */
    unsigned captures, failures, replays, alive;
} fake;

static void keep(void (*run)(const void *args), const void *args, size_t bytes)
{
    struct pl_device_graph *g = fake.recording;

    if (!g) {
        run(args);
        return;
    }
    assert_true(bytes <= sizeof(g->jobs[0].args) && g->n < JOBS_MAX);
    g->jobs[g->n].run = run;
    memcpy(g->jobs[g->n++].args, args, bytes);
}

/* The CPU's table is that of f32. */
#define WRAP(function, args)                                                                       \
    static void run_##function(const void *a)                                                      \
    {                                                                                              \
        pl_device_cpu()->ops->kernels(pl_device_cpu(), PL_REAL_F32)->function(a);                  \
    }                                                                                              \
    static void wrapped_##function(const struct pl_##args##_args *a)                               \
    {                                                                                              \
        keep(run_##function, a, sizeof(*a));                                                       \
    }
PL_KERNEL_LIST(WRAP)
#undef WRAP

static const struct pl_kernels *fake_kernels(struct pl_device *dev, enum pl_real real)
{
    static struct pl_kernels table;

    assert_int_equal(real, PL_REAL_F32);
    table = *pl_device_cpu()->ops->kernels(pl_device_cpu(), real);
#define SET(function, args) table.function = wrapped_##function;
    PL_KERNEL_LIST(SET)
#undef SET
    return &table;
}

struct fill {
    void *to;
    size_t bytes;
};

static void run_zero(const void *args)
{
    const struct fill *f = args;

    memset(f->to, 0, f->bytes);
}

static void fake_zero(struct pl_device *dev, void *to, size_t bytes)
{
    keep(run_zero, &(struct fill){to, bytes}, sizeof(struct fill));
}

static void fake_upload(struct pl_device *dev, void *to, const void *from, size_t bytes)
{
    assert_null(fake.recording);
    memcpy(to, from, bytes);
}

static int fake_begin(struct pl_device *dev, struct pl_error *err)
{
    assert_null(fake.recording);
    fake.recording = calloc(1, sizeof(*fake.recording));
    assert_non_null(fake.recording);
    return 0;
}

static int fake_end(struct pl_device *dev, struct pl_device_graph **ret, struct pl_error *err)
{
    struct pl_device_graph *graph = fake.recording;

    assert_non_null(graph);
    fake.recording = NULL;
    if (fake.fails) {
        fake.failures++;
        free(graph);
        return pl_error_set(err, -EIO, "a test wants it");
    }
    fake.captures++;
    fake.alive++;
    *ret = graph;
    return 0;
}

static int fake_replay(struct pl_device *dev, struct pl_device_graph *graph)
{
    assert_null(fake.recording);
    if (fake.stale) {
        fake.stale = false;
        return -ESTALE;
    }
    fake.replays++;
    for (size_t i = 0; i < graph->n; i++)
        graph->jobs[i].run(graph->jobs[i].args);
    return 0;
}

static void fake_free(struct pl_device *dev, struct pl_device_graph *graph)
{
    fake.alive -= graph != NULL;
    free(graph);
}

static struct pl_device *fake_device(void)
{
    static struct pl_device_ops ops;
    static struct pl_device dev = {.ops = &ops, .name = "fake"};

    ops = *pl_device_cpu()->ops;
    ops.kernels = fake_kernels;
    ops.zero = fake_zero;
    ops.upload = fake_upload;
    ops.capture_begin = fake_begin;
    ops.capture_end = fake_end;
    ops.replay = fake_replay;
    ops.graph_free = fake_free;
    return &dev;
}

/* Two nets of the same numbers: [0] with graphs, [1] without. */
struct pair {
    struct net net[2];
    unsigned rows;
    bool norm;
};

static plume_tensor *f_drop(struct net *net)
{
    plume_tensor *in[] = {&net->t[0], &net->t[1], &net->t[2]}, *h = NULL;

    assert_int_equal(call(net, PLUME_OP_LINEAR, 3, in, PLUME_RELU, &h, NULL), 0);
    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_DROPOUT, &h, 1,
                                &(struct plume_op_args){{0}, {0.5}}, &h, NULL),
                     0);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, h, &net->t[3]);
}

/* A node with a collective, between others. */
static plume_tensor *f_norm(struct net *net)
{
    plume_tensor *in[] = {&net->t[0], &net->t[1], NULL}, *h = NULL;
    plume_tensor *more[] = {NULL, &net->t[4], &net->t[5], &net->t[6], &net->t[7]};

    assert_int_equal(call(net, PLUME_OP_LINEAR, 2, in, PLUME_IDENTITY, &h, NULL), 0);
    h = CALL(PLUME_OP_UNARY, PLUME_TANH, h);
    more[0] = h;
    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_BATCHNORM, more, 5,
                                &(struct plume_op_args){{0}, {0}}, &h, NULL),
                     0);
    h = CALL(PLUME_OP_UNARY, PLUME_TANH, h);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, h, &net->t[3]);
}

/* A layer whose rows the loss has by chunks. */
static plume_tensor *f_chunks(struct net *net)
{
    plume_tensor *in[] = {NULL, &net->t[1], &net->t[2]}, *h = NULL;

    in[0] = CALL(PLUME_OP_UNARY, PLUME_TANH, &net->t[0]);
    assert_int_equal(call(net, PLUME_OP_LINEAR, 3, in, PLUME_IDENTITY, &h, NULL), 0);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, h, &net->t[3]);
}

static void start(struct pair *p)
{
    memset(&fake, 0, sizeof(fake));
    *p = (struct pair){0};
    for (int i = 0; i < 2; i++) {
        struct net *net = &p->net[i];

        pl_tape_init(&net->tape, i ? pl_device_cpu() : fake_device(), PL_REAL_F32, true);
        net->tape.graphs = true; /* the CPU has none */
        net->tape.seed = 77;
        leaf(net, PL_REAL_F32, 2, (size_t[]){ROWS, WIDTH});
        leaf(net, PL_REAL_F32, 2, (size_t[]){3, WIDTH});
        leaf(net, PL_REAL_F32, 1, (size_t[]){3});
        labels(net, ROWS, 3);
        for (int k = 0; k < 4; k++)
            leaf(net, PL_REAL_F32, 1, (size_t[]){3})->wants_grad = k < 2;
    }
}

static void end(struct pair *p)
{
    for (int i = 0; i < 2; i++)
        finish(&p->net[i]);
    assert_int_equal(fake.alive, 0);
}

/* One step of both, and the same bits; then the parameters move. */
static void step(struct pair *p, function f, uint64_t number, struct pl_backward how)
{
    float value[2];

    for (int i = 0; i < 2; i++) {
        struct net *net = &p->net[i];

        net->tape.step = number;
        how.loss = forward(net, f);
        value[i] = *(float *)pl_tensor_data(how.loss);
        assert_int_equal(pl_tape_backward(&net->tape, &how, NULL), 0);
    }
    assert_memory_equal(&value[0], &value[1], sizeof(value[0]));
    for (size_t k = 0; k < 3; k++) {
        const plume_tensor *a = &p->net[0].t[k], *b = &p->net[1].t[k];

        assert_memory_equal(a->grad, b->grad, a->count * sizeof(float));
        for (int i = 0; i < 2; i++)
            for (size_t e = 0; e < a->count; e++)
                ((float *)p->net[i].t[k].data)[e] -= 1e-3f * ((float *)p->net[i].t[k].grad)[e];
    }
}

static const struct pl_backward once = {.seed = 1};

static void test_the_third_step_is_captured_and_replayed(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 6; i++) {
        step(&p, f_drop, i, once); /* dropout drops others each time */
        assert_int_equal(fake.captures, i < 2 ? 0 : 2);
        assert_int_equal(fake.replays, i < 2 ? 0 : 2 * (i - 1));
    }
    end(&p);
}

static void test_a_loss_scale_is_no_part_of_it(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 6; i++)
        step(&p, f_drop, i, (struct pl_backward){.seed = 1 << i});
    assert_int_equal(fake.captures, 2);
    end(&p);
}

static void test_writing_and_adding_are_two(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 8; i++)
        step(&p, f_drop, i, (struct pl_backward){.seed = 1, .accumulate = i % 2});
    assert_int_equal(fake.captures, 3);
    end(&p);
}

static void test_a_batch_elsewhere_is_another_graph(void **state)
{
    float *places[2][2];
    struct pair p;

    start(&p);
    for (int i = 0; i < 2; i++) {
        places[i][0] = p.net[i].t[0].data;
        places[i][1] = calloc(ROWS * WIDTH, sizeof(float));
        for (size_t e = 0; e < ROWS * WIDTH; e++)
            places[i][1][e] = (float)e / 10 - 1;
    }
    for (uint64_t n = 0; n < 10; n++) {
        for (int i = 0; i < 2; i++)
            p.net[i].t[0].data = places[i][n % 2];
        step(&p, f_drop, n, once);
    }
    assert_int_equal(fake.captures, 4);
    assert_int_equal(fake.replays, 12);
    assert_int_equal(p.net[0].tape.plans, 1);
    for (int i = 0; i < 2; i++)
        free(places[i][1]);
    p.net[0].t[0].data = places[0][0];
    p.net[1].t[0].data = places[1][0];
    end(&p);
}

static void test_weights_elsewhere_are_another_graph_of_a_loss_by_chunks(void **state)
{
    float *places[2][2];
    struct pair p;

    start(&p);
    for (int i = 0; i < 2; i++) {
        p.net[i].tape.chunk = 4;
        places[i][0] = p.net[i].t[1].data;
        places[i][1] = calloc(3 * WIDTH, sizeof(float));
        for (size_t e = 0; e < 3 * WIDTH; e++)
            places[i][1][e] = (float)e / 10 - 1;
    }
    for (uint64_t n = 0; n < 8; n++) {
        for (int i = 0; i < 2; i++)
            p.net[i].t[1].data = places[i][n % 2];
        step(&p, f_chunks, n, once);
    }
    assert_true(p.net[0].tape.nodes[2].fusion.product == 2);
    assert_int_equal(fake.captures, 4);
    for (int i = 0; i < 2; i++) {
        free(places[i][1]);
        p.net[i].t[1].data = places[i][0];
    }
    end(&p);
}

static void test_there_are_so_many_graphs_at_most(void **state)
{
    float *place[2], *home[2];
    struct pair p;

    start(&p);
    for (int i = 0; i < 2; i++) {
        home[i] = p.net[i].t[0].data;
        place[i] = calloc(200 + ROWS * WIDTH, sizeof(float));
    }
    for (uint64_t n = 0; n < 600; n++) {
        for (int i = 0; i < 2; i++)
            p.net[i].t[0].data = place[i] + n / 3;
        step(&p, f_drop, n, once);
    }
    assert_in_range(fake.captures, 32, 64);
    assert_int_equal(fake.alive, fake.captures);
    for (int i = 0; i < 2; i++) {
        p.net[i].t[0].data = home[i];
        free(place[i]);
    }
    end(&p);
}

/* The batch has fewer rows for one step. */
static void resize(struct pair *p, size_t rows)
{
    for (int i = 0; i < 2; i++) {
        plume_tensor *x = &p->net[i].t[0], *y = &p->net[i].t[3];

        x->shape[0] = y->shape[0] = rows;
        x->count = rows * WIDTH;
        y->count = rows;
    }
}

/* Epochs of three batches and a short one: each of the two has its graphs from its third step on.
 */
static void test_a_short_batch_keeps_its_own_graphs(void **state)
{
    struct pair p;
    uint64_t n = 0;

    start(&p);
    for (unsigned epoch = 0; epoch < 5; epoch++) {
        resize(&p, ROWS);
        for (unsigned i = 0; i < 3; i++)
            step(&p, f_drop, n++, once);
        assert_int_equal(fake.captures, epoch < 3 ? 2 : 4);
        resize(&p, ROWS - 2);
        step(&p, f_drop, n++, once);
        assert_int_equal(fake.captures, epoch < 2 ? 2 : 4);
    }
    assert_int_equal(fake.alive, 4);
    assert_int_equal(p.net[0].tape.plans, 10);
    assert_int_equal(fake.replays, 2 * (n - 2 * 2)); /* all but the first two of each size */
    end(&p);
}

static void test_the_plan_used_last_keeps_its_graphs_longest(void **state)
{
    struct pair p;
    uint64_t n = 0;

    start(&p);
    for (size_t rows = ROWS; rows > ROWS - 5; rows--) { /* one more than are kept */
        resize(&p, rows);
        for (unsigned i = 0; i < 3; i++)
            step(&p, f_drop, n++, once);
    }
    assert_int_equal(fake.captures, 10);
    assert_int_equal(fake.alive, 8);
    resize(&p, ROWS - 1);
    step(&p, f_drop, n++, once);
    assert_int_equal(fake.replays, 12);
    resize(&p, ROWS);
    step(&p, f_drop, n++, once);
    assert_int_equal(fake.captures, 10);
    assert_int_equal(fake.alive, 6);
    end(&p);
}

static void test_graphs_of_freed_memory_are_dropped(void **state)
{
    struct pair p;
    void *old;

    start(&p);
    resize(&p, ROWS - 2);
    for (uint64_t n = 0; n < 4; n++)
        step(&p, f_drop, n, once);
    assert_int_equal(fake.alive, 2);
    old = p.net[0].tape.memory; /* which the test keeps, so that the next is another one */
    p.net[0].tape.memory = NULL;
    p.net[0].tape.memory_cap = 0;
    resize(&p, ROWS);
    step(&p, f_drop, 4, once);
    assert_int_equal(fake.alive, 0);
    resize(&p, ROWS - 2);
    for (uint64_t n = 5; n < 9; n++)
        step(&p, f_drop, n, once);
    assert_int_equal(fake.captures, 4);
    pl_device_free(p.net[0].tape.dev, old);
    end(&p);
}

static double drop_share;

static plume_tensor *f_share(struct net *net)
{
    plume_tensor *in[] = {&net->t[0], &net->t[1], &net->t[2]}, *h = NULL;

    assert_int_equal(call(net, PLUME_OP_LINEAR, 3, in, PLUME_RELU, &h, NULL), 0);
    assert_int_equal(pl_op_call(&net->tape, PLUME_OP_DROPOUT, &h, 1,
                                &(struct plume_op_args){{0}, {drop_share}}, &h, NULL),
                     0);
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, h, &net->t[3]);
}

/* The shapes, and so all addresses, are equal. */
static void test_plans_that_differ_in_a_number_are_two(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t n = 0; n < 8; n++) {
        drop_share = n % 2 ? 0.25 : 0.5;
        step(&p, f_share, n, once);
    }
    assert_int_equal(fake.captures, 4);
    assert_int_equal(fake.replays, 8);
    end(&p);
}

/* Of which the numbers of dropout depend. */
static void test_other_rows_of_the_batch_are_another_graph(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t n = 0; n < 8; n++) {
        for (int i = 0; i < 2; i++) {
            p.net[i].tape.rows = ROWS;
            p.net[i].tape.first_row = n % 2 * 2 * ROWS;
        }
        step(&p, f_drop, n, once);
    }
    assert_int_equal(fake.captures, 4);
    assert_int_equal(p.net[0].tape.plans, 1);
    end(&p);
}

static void test_what_cannot_be_captured_is_not_tried_again(void **state)
{
    struct pair p;

    start(&p);
    fake.fails = true;
    for (uint64_t i = 0; i < 6; i++)
        step(&p, f_drop, i, once);
    assert_int_equal(fake.failures, 1);
    fake.fails = false;
    for (uint64_t i = 6; i < 10; i++)
        step(&p, f_drop, i, once);
    assert_int_equal(fake.captures, 0);
    resize(&p, ROWS - 1); /* a new plan, a new trial */
    for (uint64_t i = 10; i < 13; i++)
        step(&p, f_drop, i, once);
    assert_int_equal(fake.captures, 2);
    end(&p);
}

/* Forward is replayed when backward turns out to be impossible: both have the same dropout. */
static void test_backward_alone_may_fail(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 6; i++) {
        struct pl_backward how = once;

        how.accumulate = i >= 3; /* another graph, two steps later */
        fake.fails = i == 5;
        step(&p, f_drop, i, how);
    }
    assert_int_equal(fake.captures, 2);
    assert_int_equal(fake.failures, 1);
    step(&p, f_drop, 6, once);
    assert_int_equal(fake.replays, 5);
    end(&p);
}

static void test_a_stale_graph_is_made_anew(void **state)
{
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 6; i++) {
        fake.stale = i == 4;
        step(&p, f_drop, i, once);
    }
    assert_int_equal(fake.captures, 3);
    assert_int_equal(fake.alive, 2);
    assert_int_equal(fake.replays, 8);
    end(&p);
}

static void test_off_means_off(void **state)
{
    struct pair p;

    start(&p);
    p.net[0].tape.graphs = false;
    for (uint64_t i = 0; i < 5; i++)
        step(&p, f_drop, i, once);
    p.net[0].tape.graphs = p.net[0].tape.timed = true;
    for (uint64_t i = 5; i < 9; i++)
        step(&p, f_drop, i, once);
    assert_int_equal(fake.captures, 0);
    end(&p);
}

static unsigned met;

static int meet(void *ctx, double *sums, size_t n)
{
    assert_null(fake.recording);
    met++;
    return 0;
}

static void test_nodes_that_meet_stand_alone(void **state)
{
    struct pair p;

    start(&p);
    for (int i = 0; i < 2; i++)
        p.net[i].tape.allreduce = meet;
    met = 0;
    for (uint64_t i = 0; i < 5; i++)
        step(&p, f_norm, i, once);
    assert_int_equal(met, 5 * 2 * 2);
    assert_int_equal(fake.captures, 4); /* before it and after it, both ways */
    assert_int_equal(fake.replays, 12);
    end(&p);
}

/* As a reducer does: `at` is the node of the next after_node. */
struct stops {
    size_t at[3], n, called[16], n_called;
};

static size_t stop_there(const void *ctx)
{
    const struct stops *s = ctx;

    return s->n < PL_COUNT(s->at) ? s->at[s->n] : 0;
}

static int after_node(void *ctx, size_t index, struct pl_error *err)
{
    struct stops *s = ctx;

    assert_null(fake.recording);
    s->called[s->n_called++] = index;
    while (s->n < PL_COUNT(s->at) && s->at[s->n] >= index)
        s->n++;
    return 0;
}

static void test_backward_stops_where_it_is_asked_to(void **state)
{
    struct pl_backward how = {.seed = 1, .after_node = after_node, .stop = stop_there};
    plume_tensor *loss;
    struct pair p;

    start(&p);
    for (uint64_t i = 0; i < 4; i++) {
        struct stops s = {.at = {SIZE_MAX, 2, 2}};

        p.net[0].tape.step = i;
        how.loss = loss = forward(&p.net[0], f_norm);
        how.ctx = &s;
        assert_int_equal(pl_tape_backward(&p.net[0].tape, &how, NULL), 0);
        assert_int_equal(s.n_called, 3); /* at once, after 2, at the end */
        assert_int_equal(s.called[0], 4);
        assert_int_equal(s.called[1], 2);
        assert_int_equal(s.called[2], 0);
    }
    assert_int_equal(fake.captures, 3); /* forward, 3 and 2, 1 and 0; one node is none */
    how.stop = NULL;
    for (uint64_t i = 4; i < 8; i++) {
        struct stops s = {0};

        how.loss = loss = forward(&p.net[0], f_norm);
        how.ctx = &s;
        assert_int_equal(pl_tape_backward(&p.net[0].tape, &how, NULL), 0);
        assert_int_equal(s.n_called, 5);
    }
    assert_int_equal(fake.captures, 3);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_third_step_is_captured_and_replayed),
        cmocka_unit_test(test_a_loss_scale_is_no_part_of_it),
        cmocka_unit_test(test_writing_and_adding_are_two),
        cmocka_unit_test(test_a_batch_elsewhere_is_another_graph),
        cmocka_unit_test(test_weights_elsewhere_are_another_graph_of_a_loss_by_chunks),
        cmocka_unit_test(test_there_are_so_many_graphs_at_most),
        cmocka_unit_test(test_a_short_batch_keeps_its_own_graphs),
        cmocka_unit_test(test_the_plan_used_last_keeps_its_graphs_longest),
        cmocka_unit_test(test_graphs_of_freed_memory_are_dropped),
        cmocka_unit_test(test_plans_that_differ_in_a_number_are_two),
        cmocka_unit_test(test_other_rows_of_the_batch_are_another_graph),
        cmocka_unit_test(test_what_cannot_be_captured_is_not_tried_again),
        cmocka_unit_test(test_backward_alone_may_fail),
        cmocka_unit_test(test_a_stale_graph_is_made_anew),
        cmocka_unit_test(test_off_means_off),
        cmocka_unit_test(test_nodes_that_meet_stand_alone),
        cmocka_unit_test(test_backward_stops_where_it_is_asked_to),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
