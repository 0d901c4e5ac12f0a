/* SPDX-License-Identifier: MIT */
/* The tape's record and replay. The ops' gradients: test-engine_ops.c. */
#include "runtime/engine/tape/profile.h"
#include "tests/unit/engine/engine_net.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static plume_tensor *
linear(struct net *net, plume_tensor *x, plume_tensor *w, plume_tensor *b, int64_t act)
{
    return b ? CALL(PLUME_OP_LINEAR, act, x, w, b) : CALL(PLUME_OP_LINEAR, act, x, w);
}

static plume_tensor *entropy(struct net *net, plume_tensor *logits, plume_tensor *with)
{
    return CALL(PLUME_OP_CROSS_ENTROPY, 0, logits, with);
}

static plume_tensor *f_linear(struct net *net)
{
    return entropy(net, linear(net, &net->t[0], &net->t[1], &net->t[2], PLUME_IDENTITY),
                   &net->t[3]);
}

static plume_tensor *f_linear_no_bias(struct net *net)
{
    return entropy(net, linear(net, &net->t[0], &net->t[1], NULL, PLUME_IDENTITY), &net->t[3]);
}

static plume_tensor *f_linear_relu(struct net *net)
{
    return entropy(net, linear(net, &net->t[0], &net->t[1], &net->t[2], PLUME_RELU), &net->t[3]);
}

static plume_tensor *f_relu(struct net *net)
{
    plume_tensor *y = linear(net, &net->t[0], &net->t[1], NULL, PLUME_IDENTITY);

    return entropy(net, CALL(PLUME_OP_UNARY, PLUME_RELU, y), &net->t[3]);
}

/* One tensor used by several nodes: gradients add up. */
static plume_tensor *f_shared(struct net *net)
{
    plume_tensor *h = linear(net, &net->t[0], &net->t[1], &net->t[2], PLUME_RELU);
    plume_tensor *twice = linear(net, h, &net->t[1], &net->t[2], PLUME_IDENTITY);
    plume_tensor *mixed = linear(net, twice, h, NULL, PLUME_IDENTITY); /* an activation as weight */

    return entropy(net, mixed, &net->t[3]);
}

static void gradient_case(function f, size_t rows, size_t in, size_t out)
{
    struct net net = {0};

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){rows, in});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){out, in});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){out});
    labels(&net, rows, out);
    check_gradients(&net, f);
    finish(&net);
}

static void test_gradient_of_linear(void **state)
{
    gradient_case(f_linear, 5, 4, 3);
    gradient_case(f_linear, 1, 1, 2);
    gradient_case(f_linear_no_bias, 3, 5, 4);
    gradient_case(f_linear_relu, 6, 5, 7);
}

static void test_gradient_of_relu(void **state)
{
    gradient_case(f_relu, 4, 3, 5);
}

static void test_gradient_of_cross_entropy(void **state)
{
    gradient_case(f_linear_no_bias, 2, 1, 1); /* one class: no gradient */
    gradient_case(f_linear_no_bias, 7, 2, 11);
}

static void test_gradient_of_shared_tensors(void **state)
{
    gradient_case(f_shared, 4, 4, 4);
}

static plume_tensor *sum_of(struct net *net, plume_tensor *a, plume_tensor *b)
{
    return CALL(PLUME_OP_BINARY, 0, a, b);
}

static plume_tensor *curve(struct net *net, plume_tensor *x)
{
    return CALL(PLUME_OP_UNARY, PLUME_TANH, x);
}

/* The gradients of a and b could be that of their sum, but b's gets more while a's is still read.
 */
static plume_tensor *f_sum_of_a_tensor_used_again(struct net *net)
{
    plume_tensor *a = curve(net, &net->t[0]), *b = curve(net, &net->t[1]), *c = curve(net, b);

    return entropy(net, sum_of(net, sum_of(net, a, b), c), &net->t[2]);
}

/* The same, and backward of b's layer uses b's gradient as scratch memory. */
static plume_tensor *f_sum_with_a_layer(struct net *net)
{
    plume_tensor *a = curve(net, &net->t[0]);
    plume_tensor *b = linear(net, &net->t[0], &net->t[1], NULL, PLUME_GELU_TANH);

    return entropy(net, sum_of(net, a, b), &net->t[2]);
}

/* A residual stream: what is added is read before the stream's gradient gets more. */
static plume_tensor *f_residuals(struct net *net)
{
    plume_tensor *x = curve(net, &net->t[0]);

    for (int i = 0; i < 3; i++)
        x = sum_of(net, x, linear(net, curve(net, x), &net->t[1], NULL, PLUME_IDENTITY));
    return entropy(net, x, &net->t[2]);
}

/* The number of gradients that are a sum's output's. */
static size_t gradient_of_sums(function f)
{
    struct net net = {0};
    size_t shared = 0;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    labels(&net, 4, 4);
    check_gradients(&net, f);
    for (size_t i = 0; i < net.tape.n; i++)
        for (size_t k = 0; k < net.tape.nodes[i].n_in; k++)
            shared += net.tape.nodes[i].alias[k];
    finish(&net);
    return shared;
}

static void test_gradient_of_sums_that_share_it(void **state)
{
    assert_int_equal(gradient_of_sums(f_sum_of_a_tensor_used_again), 3);
    assert_int_equal(gradient_of_sums(f_sum_with_a_layer), 1);
    assert_int_equal(gradient_of_sums(f_residuals), 6);
}

static void test_f32_gradients_are_near_f64(void **state)
{
    struct net a = {0}, b = {0};
    struct net *nets[] = {&a, &b};

    for (int i = 0; i < 2; i++) {
        enum pl_real real = i ? PL_REAL_F32 : PL_REAL_F64;
        plume_tensor *loss;

        pl_tape_init(&nets[i]->tape, pl_device_cpu(), real, true);
        leaf(nets[i], real, 2, (size_t[]){16, 64});
        leaf(nets[i], real, 2, (size_t[]){10, 64});
        leaf(nets[i], real, 1, (size_t[]){10});
        labels(nets[i], 16, 10);
        loss = forward(nets[i], f_linear_relu);
        assert_int_equal(backward(nets[i], loss), 0);
    }
    /* 64 products of numbers around 3, rounded: 64 * 6e-8 * 10 */
    for (size_t k = 0; k < a.t[1].count; k++)
        assert_true(fabs(((double *)a.t[1].grad)[k] - ((float *)b.t[1].grad)[k]) < 4e-5);
    finish(&a);
    finish(&b);
}

static void test_tape_is_static_until_a_shape_changes(void **state)
{
    struct net net = {0};
    plume_tensor *first, *second;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){6, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){3, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){3});
    labels(&net, 6, 3);
    pl_tape_begin(&net.tape);
    first = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_true(net.tape.changed);
    pl_tape_begin(&net.tape);
    second = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_ptr_equal(first, second);
    assert_false(net.tape.changed);
    assert_int_equal(net.tape.recordings, 1);

    net.t[0].shape[0] = net.t[3].shape[0] = 2; /* the last batch */
    net.t[0].count = 8;
    net.t[3].count = 2;
    pl_tape_begin(&net.tape);
    second = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_true(net.tape.changed);
    assert_int_equal(net.tape.recordings, 2);
    assert_int_equal(net.tape.nodes[0].out->shape[0], 2);
    assert_int_equal(pl_tape_prepare(&net.tape, &second, 1, 1, NULL), 0);
    assert_int_equal(pl_tape_forward(&net.tape, NULL), 0);
    assert_int_equal(backward(&net, second), 0);

    pl_tape_begin(&net.tape); /* fewer ops: the rest is dropped */
    second = linear(&net, &net.t[0], &net.t[1], &net.t[2], PLUME_IDENTITY);
    pl_tape_end(&net.tape);
    assert_int_equal(net.tape.n, 1);
    assert_int_equal(net.tape.recordings, 3);
    finish(&net);
}

/* A step for each number of rows from 1 to n; the profile's text, which the caller frees. */
static char *profile_of_rows(size_t n)
{
    struct net net = {0};
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    assert_non_null(out);
    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    net.tape.timed = true;
    leaf(&net, PL_REAL_F64, 2, (size_t[]){n, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){3, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){3});
    labels(&net, 1, 3)->data = calloc(n, sizeof(int32_t));
    for (size_t rows = 1; rows <= n; rows++) {
        net.t[0].shape[0] = net.t[3].shape[0] = net.t[3].count = rows;
        net.t[0].count = 4 * rows;
        assert_int_equal(backward(&net, forward(&net, f_linear)), 0);
    }
    pl_profile_print(&net.tape, n, 1, out);
    assert_int_equal(fclose(out), 0);
    finish(&net);
    return text;
}

static void test_profile_has_the_ops_of_all_recordings(void **state)
{
    char *text = profile_of_rows(4), shape[32], want[64];

    for (int rows = 1; rows <= 4; rows++) {
        snprintf(shape, sizeof(shape), "f64[%d, 3]", rows);
        snprintf(want, sizeof(want), "%-26s %5s ", shape, "0.25");
        if (!strstr(text, want))
            fail_msg("no '%s' in: %s", want, text);
    }
    assert_null(strstr(text, "others"));
    free(text);
}

static void test_profile_adds_up_what_is_too_much(void **state)
{
    char *text = profile_of_rows(300), *others = strstr(text, "\nothers ");
    size_t lines = 0;

    for (const char *p = text; (p = strstr(p, "\nlinear ")); p++)
        lines++;
    assert_int_equal(lines, 199); /* and cross_entropy */
    assert_non_null(others);
    assert_non_null(strstr(others, " 101 more shapes "));
    free(text);
}

static int count_down(void *ctx, size_t index, struct pl_error *err)
{
    size_t *next = ctx;

    assert_int_equal(index, *next - 1);
    (*next)--;
    return index == 1 ? -ECANCELED : 0;
}

static void test_backward_reports_each_node_and_stops_on_failure(void **state)
{
    struct net net = {0};
    plume_tensor *loss;
    size_t next;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    loss = forward(&net, f_shared);
    next = net.tape.n;
    assert_int_equal(
        pl_tape_backward(
            &net.tape,
            &(struct pl_backward){.loss = loss, .seed = 1, .after_node = count_down, .ctx = &next},
            NULL),
        -ECANCELED);
    assert_int_equal(next, 1);
    finish(&net);
}

static void test_tracing_runs_nothing(void **state)
{
    struct net net = {0};
    plume_tensor *loss;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    for (size_t i = 0; i < 3; i++) { /* as before the parameters are laid out */
        free(net.t[i].data);
        net.t[i].data = NULL;
    }
    pl_tape_begin(&net.tape);
    loss = f_linear(&net);
    pl_tape_end(&net.tape);
    assert_int_equal(net.tape.n, 2);
    assert_null(loss->data);
    /* 2 * 4 * 4 * 4 and a bias each; twice that backward */
    assert_true(net.tape.nodes[0].op->flops(&net.tape.nodes[0], false) == 128 + 16);
    assert_true(net.tape.nodes[0].op->flops(&net.tape.nodes[0], true) == 256 + 16);
    assert_true(pl_tape_flops(&net.tape, false) > 144);
    finish(&net);
}

static void test_ops_refuse_shapes_that_do_not_fit(void **state)
{
    struct pl_error err = {0};
    struct net net = {0};
    plume_tensor *t = NULL;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 5});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){3, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){3});
    labels(&net, 4, 4);
    assert_int_equal(
        call(&net, PLUME_OP_LINEAR, 2, (plume_tensor *[]){&net.t[0], &net.t[1]}, 0, &t, &err),
        -EINVAL);
    assert_string_equal(err.text, "linear: shapes do not fit (wanted: x [..., in], w [out, in], b "
                                  "[out]): f64[4, 5], f64[3, 4]");
    assert_int_equal(
        call(&net, PLUME_OP_UNARY, 1, (plume_tensor *[]){&net.t[3]}, PLUME_RELU, &t, &err),
        -EINVAL);
    for (enum plume_op op = PLUME_OP_CROSS_ENTROPY; op <= PLUME_OP_CORRECT; op++)
        assert_int_equal(call(&net, op, 2, (plume_tensor *[]){&net.t[0], &net.t[1]}, 0, &t, &err),
                         -EINVAL);
    assert_int_equal(call(&net, PLUME_OP_BINARY, 1, (plume_tensor *[]){&net.t[0]}, 0, &t, &err),
                     -EINVAL);
    assert_string_equal(err.text, "add: takes 2 to 2 inputs, not 1");
    assert_int_equal(call(&net, (enum plume_op)9999, 0, NULL, 0, &t, &err), -ENOSYS);
    assert_null(t);
    assert_int_equal(net.tape.n, 0);
    finish(&net);
}

static void test_loss_must_depend_on_a_parameter(void **state)
{
    struct net net = {0};
    plume_tensor *loss;

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    for (size_t i = 0; i < 3; i++)
        net.t[i].wants_grad = false;
    loss = forward(&net, f_linear);
    assert_int_equal(backward(&net, loss), -EINVAL);
    finish(&net);
}

/* A gradient of a norm whose kernel gets no scratch memory, and then a tape; the number of the
 * first line that is wrong. */
static int run_without_memory(void)
{
    const struct rlimit none = {0, RLIM_INFINITY}, usual = {RLIM_INFINITY, RLIM_INFINITY};
    enum { ROWS = 64, N = 20000 };
    float *x = calloc((size_t)ROWS * N, sizeof(*x)), *gamma = calloc(N, sizeof(*gamma)),
          *rows = calloc(ROWS, sizeof(*rows));
    const struct pl_layernorm_args args = {
        .rows = ROWS, .n = N, .x = x, .dy = x, .mean = rows, .rstd = rows, .dgamma = gamma};
    struct pl_error err = {0};
    struct net net = {0};

    pl_tape_init(&net.tape, pl_device_cpu(), PL_REAL_F64, true);
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 2, (size_t[]){4, 4});
    leaf(&net, PL_REAL_F64, 1, (size_t[]){4});
    labels(&net, 4, 4);
    backward(&net, forward(&net, f_linear));
    if (pl_device_sync(net.tape.dev, &err) != 0)
        return __LINE__;
    if (setrlimit(RLIMIT_AS, &none) < 0)
        return __LINE__;
    pl_kernels_best(PL_REAL_F32)->layernorm_backward(&args);
    if (setrlimit(RLIMIT_AS, &usual) < 0)
        return __LINE__;
    if (pl_device_sync(net.tape.dev, &err) != -ENOMEM || !strstr(err.text, "out of memory"))
        return __LINE__;
    if (pl_device_download(net.tape.dev, rows, gamma, sizeof(*rows), NULL) != -ENOMEM)
        return __LINE__;
    return pl_tape_forward(&net.tape, &err) == -ENOMEM ? 0 : __LINE__;
}

static void test_want_of_scratch_memory_is_told(void **state)
{
    int status;
    pid_t pid;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    print_message("# skipped: a sanitizer needs its address space\n");
    return;
#endif
    if (pl_kernels_best(PL_REAL_F32) == pl_kernels_ref(PL_REAL_F32)) {
        print_message("# skipped: plain kernels have no scratch memory\n");
        return;
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run_without_memory() & 255);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* else the line, modulo 256 */
}

static void test_bump_goes_back_to_marks(void **state)
{
    struct pl_bump bump = {0};
    struct pl_bump_mark mark;
    char *a, *b, *c;

    a = pl_bump_alloc(&bump, 100);
    assert_int_equal((uintptr_t)a % PL_BUMP_ALIGN, 0);
    mark = pl_bump_mark(&bump);
    b = pl_bump_alloc(&bump, 10);
    assert_ptr_equal(b, a + 128);
    memset(b, 1, 10);
    pl_bump_alloc(&bump, 1000000); /* a chunk of its own */
    pl_bump_reset(&bump, mark);
    c = pl_bump_alloc(&bump, 10);
    assert_ptr_equal(b, c);
    assert_int_equal(c[0], 0);
    for (int i = 0; i < 100; i++)
        memset(pl_bump_alloc(&bump, 50000), 7, 50000);
    pl_bump_reset(&bump, mark);
    assert_non_null(pl_bump_alloc(&bump, 3000000)); /* chunks that are too small make way */
    assert_null(pl_bump_alloc(&bump, SIZE_MAX - 5));
    pl_bump_finish(&bump);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradient_of_linear),
        cmocka_unit_test(test_gradient_of_relu),
        cmocka_unit_test(test_gradient_of_cross_entropy),
        cmocka_unit_test(test_gradient_of_shared_tensors),
        cmocka_unit_test(test_gradient_of_sums_that_share_it),
        cmocka_unit_test(test_f32_gradients_are_near_f64),
        cmocka_unit_test(test_tape_is_static_until_a_shape_changes),
        cmocka_unit_test(test_profile_has_the_ops_of_all_recordings),
        cmocka_unit_test(test_profile_adds_up_what_is_too_much),
        cmocka_unit_test(test_backward_reports_each_node_and_stops_on_failure),
        cmocka_unit_test(test_tracing_runs_nothing),
        cmocka_unit_test(test_ops_refuse_shapes_that_do_not_fit),
        cmocka_unit_test(test_loss_must_depend_on_a_parameter),
        cmocka_unit_test(test_want_of_scratch_memory_is_told),
        cmocka_unit_test(test_bump_goes_back_to_marks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
